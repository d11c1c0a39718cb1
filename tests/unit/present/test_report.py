"""The report as files: everything is in the one page, nothing is fetched, no text is obeyed."""

import re
from base64 import b64decode
from html.parser import HTMLParser

import pytest

from linnet.present.report import Picture, Report, Table, page, write_report

HOSTILE = "<script src='http://example.com/x.js'></script>\"&\x1b"
PICTURES = [
    Picture("A", "A", b"\x89PNG first", "of A"),
    Picture("singular_values", "Values", b"\x89PNG second", "of A_LM"),
]
TABLES = [Table("Outputs", ("", "RMSE"), [("A", "0.5"), ("  layer 0", "0.25"), ("G", "one head")], "What to look for.")]


class Balanced(HTMLParser):
    """Fails on tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def _report(title: str = "Operators of x", facts: str = "2 layers", **changes) -> Report:
    tables, conclusion = changes.get("tables", TABLES), changes.get("conclusion", "")
    return Report(title, {"operators": facts}, tables, PICTURES, "linnet inspect operator x", conclusion)


def test_the_page_has_every_picture_and_table(tmp_path):
    written = write_report(_report(), tmp_path / "new" / "folder")
    text = written.read_text()
    Balanced(text)
    inlined = [b64decode(data) for data in re.findall(r'src="data:image/png;base64,([^"]+)"', text)]
    assert inlined == [picture.png for picture in PICTURES]
    for picture in PICTURES:
        assert (written.parent / f"{picture.name}.png").read_bytes() == picture.png
        assert picture.caption in text
    for table in TABLES:
        assert table.meaning in text
        for name, *cells in table.rows:
            assert re.search(rf">{name}</th>" + "".join(f"<td[^>]*>{cell}</td>" for cell in cells), text)
    assert text.count('class="part"') == 1
    assert "linnet inspect operator x" in text


def test_what_follows_stands_before_the_tables():
    text = page(_report(conclusion="So it is."))
    Balanced(text)
    assert text.index("2 layers") < text.index("<p>So it is.</p>") < text.index("Outputs")
    assert "<p></p>" not in page(_report())


def test_a_table_of_words_is_marked_and_needs_no_head():
    words = Table("Plan", ("", ""), [("steps", "of 8 x 16 tokens")], "What to do.", text=True)
    text = page(_report(tables=[words]))
    Balanced(text)
    assert '<table class="figures text">' in text and "<thead>" not in text
    assert "<thead>" in page(_report())


def test_nothing_is_fetched():
    text = page(_report())
    assert "default-src 'none'" in text
    assert not re.search(r"(?:https?:)?//", text)


@pytest.mark.parametrize("field", ["title", "facts", "cell", "conclusion"])
def test_text_from_outside_is_shown_and_not_obeyed(field: str):
    tables = [Table(HOSTILE, ("", HOSTILE), [(HOSTILE, HOSTILE)], HOSTILE)]
    report = _report(tables=tables) if field == "cell" else _report(**{field: HOSTILE})
    text = page(report)
    Balanced(text)
    assert "<script" not in text and "&lt;script" in text and "\x1b" not in text
