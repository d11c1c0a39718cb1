"""The report as files: everything is in the one page, nothing is fetched, no text is obeyed."""

import re
from base64 import b64decode
from html.parser import HTMLParser

import pytest

from linnet.present.page import page, timestamp, write_page
from linnet.present.plot import Axis, Panel, Plot, Series
from linnet.present.result import Commands, Facts, Paragraph, Passage, Picture
from linnet.present.table import Table
from parts_result import PartsResult

COMMAND = "linnet inspect operator x"
HOSTILE = "<script src='http://example.com/x.js'></script>\"&\x1b"
PLOT = Plot([Panel(Axis("x"), Axis("y"), [Series([1, 2], [3, 4], "one")])], (3.0, 2.0))
PICTURES = [Picture("A", "A", PLOT, "of A"), Picture("singular_values", "Values", PLOT, "of A_LM")]
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


def _report(title: str = "Operators of x", facts: str = "2 layers", **changes) -> PartsResult:
    tables, conclusion = changes.get("tables", TABLES), changes.get("conclusion", "")
    return PartsResult(title, {"operators": facts}, tables, PICTURES, conclusion)


def _page(report: PartsResult) -> str:
    svgs = {picture.name: f"<svg>{picture.name}</svg>" for picture in PICTURES}
    return page(report, report.page(), svgs, COMMAND, timestamp())


def test_the_page_has_every_picture_and_table(tmp_path):
    written = write_page(_report(), tmp_path / "new" / "folder", COMMAND)
    text = written.read_text()
    Balanced(text)
    inlined = [b64decode(data).decode() for data in re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', text)]
    assert len(inlined) == 2 and all(svg.startswith("<svg") and ">one</text>" in svg for svg in inlined)
    for picture in PICTURES:
        assert (written.parent / f"{picture.name}.png").read_bytes().startswith(b"\x89PNG")
        assert picture.caption in text
    for table in TABLES:
        assert table.meaning in text
        for name, *cells in table.rows:
            assert re.search(rf">{name}</th>" + "".join(f"<td[^>]*>{cell}</td>" for cell in cells), text)
    assert text.count('class="part"') == 1
    assert "linnet inspect operator x" in text


def test_the_conclusion_is_before_the_tables():
    text = _page(_report(conclusion="So it is."))
    Balanced(text)
    assert text.index("2 layers") < text.index("<p>So it is.</p>") < text.index("Outputs")
    assert "<p></p>" not in _page(_report())


def test_a_table_of_words_is_marked_and_needs_no_head():
    words = Table("Plan", ("", ""), [("steps", "of 8 x 16 tokens")], "What to do.", text=True)
    text = _page(_report(tables=[words]))
    Balanced(text)
    assert '<td class="words">of 8 x 16 tokens</td>' in text and "<thead>" not in text
    assert "<thead>" in _page(_report()) and '<td class="value">0.5</td>' in _page(_report())


def test_nothing_is_fetched():
    text = _page(_report())
    assert "default-src 'none'" in text
    assert not re.search(r"(?:https?:)?//", text)


@pytest.mark.parametrize("field", ["title", "facts", "cell", "conclusion"])
def test_text_from_outside_is_escaped(field: str):
    tables = [Table(HOSTILE, ("", HOSTILE), [(HOSTILE, HOSTILE)], HOSTILE)]
    report = _report(tables=tables) if field == "cell" else _report(**{field: HOSTILE})
    text = _page(report)
    Balanced(text)
    assert "<script" not in text and "&lt;script" in text and "\x1b" not in text


def test_command_and_time_are_at_the_top_and_pictures_before_tables():
    text = _page(_report())
    made = re.search(r"Made by <code>linnet inspect operator x</code>, \d{4}-\d\d-\d\d \d\d:\d\d", text)
    assert made is not None and text.index("<h1>") < made.start() < text.index("<img") < text.index(
        '<table class="figures'
    )


def test_notes_explain_rows_in_the_place_of_the_meaning_and_a_second_line_is_smaller():
    text = _page(
        _report(tables=[Table("T", ("", "x"), [("a", "1\n2 × b"), ("c", "3")], "Shortly.", notes={"a": "Why."})])
    )
    Balanced(text)
    assert '<td class="value">1<small>2 × b</small></td></tr>\n<tr class="note"><td colspan="2">Why.</td></tr>' in text
    assert "Shortly." not in text


def test_passages_facts_words_and_commands_are_escaped():
    parts = [
        Paragraph(HOSTILE, HOSTILE),
        Passage(HOSTILE, HOSTILE, HOSTILE, 0, HOSTILE),
        Passage("two", "", "b", 1),
        Facts(HOSTILE, {HOSTILE: HOSTILE}),
        Commands(HOSTILE, {HOSTILE: [HOSTILE, "second"]}),
    ]
    text = page(PartsResult("x"), parts, {}, HOSTILE, "now")
    Balanced(text)
    assert "<script" not in text and "\x1b" not in text and text.count("&lt;script") == 13
    assert text.count('<div class="cards passages">') == 1, "what follows each other stands side by side"


@pytest.mark.parametrize("end", ["", " …"])
def test_the_prompt_of_a_passage_is_bold_across_lines(end: str):
    passage = Passage("one", "Max ran.\nMax", f" fell.\n\nThe end.{end}", 0)
    story = page(PartsResult("x"), [passage], {}, "y", "now").split('<div class="text">')[1].split("</div>")[0]
    assert story.strip() == f"<p><b>Max ran.</b></p>\n<p><b>Max</b> fell.</p>\n<p>The end.{end}</p>"
