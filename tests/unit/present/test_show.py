"""A report on terminals of any width: no line is wider, but commands, which are there to be copied."""

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from linnet.present.result import Commands, Facts, Paragraph, Passage, Result
from linnet.present.show import parts_lines, result_text, show, terminal_width
from linnet.present.table import Table
from parts_result import PartsResult

COMMAND = "linnet train --model planned.yaml --data DIR --out runs/planned --set training.tokens=219333628"
REPORT = PartsResult(
    "Plan",
    {"law": "replication, " + "of a law " * 12},
    [
        Paragraph("for a page", "alone"),
        Facts("for a page", {"too": "alone"}),
        Table("Sizes", ("", "parameters"), [("a model", "12 M")], "What to look for, in words " * 6),
        Passage("TED", "Once upon", " a time.\nThe end " + "of it " * 30, 0),
        Commands("Commands", {"Train it:": [COMMAND]}),
    ],
    ending="So it is. " * 9 + "\nOn a line of its own.",
)


@pytest.mark.parametrize("width", [30, 60, 130])
def test_lines_are_as_wide_as_the_terminal_at_most(width: int):
    lines = result_text(REPORT, width).splitlines()
    assert max(len(line) for line in lines if "linnet train" not in line) <= width
    assert f"  {COMMAND}" in lines and "alone" not in "".join(lines)
    assert lines[-1] == "On a line of its own."


def test_parts_are_separated_and_a_passage_is_shown_completely():
    text = result_text(REPORT, 60)
    for part in ("\n\nSizes\n", "\n\nTED ───", "\n\nCommands\nTrain it:\n", "\n\nSo it is. "):
        assert part in text
    story = text.split("───\n")[1].split("\n\n")[0]
    assert " ".join(story.split()) == "Once upon a time. The end " + "of it " * 29 + "of it"
    assert textwrap.dedent(story) != story, "it stands apart from what is about it"


def test_only_a_terminal_gets_bold_and_dim():
    plain, styled = (result_text(REPORT, 60, on) for on in (False, True))
    assert "\x1b" not in plain and "\x1b[1mSizes\x1b[0m" in styled and "\x1b[1mOnce upon\x1b[0m a time." in styled
    assert styled.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "") == plain


def test_markup_and_control_characters_have_no_effect():
    (_, _, line) = parts_lines([Passage("x", "", "[red]a\x1b[2Jb\ac", 0)], 60, styled=True)
    assert line == r"  [red]a\x1b[2Jb\x07c"


def test_the_width_is_that_of_the_terminal_and_unlimited_for_a_pipe(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "93")
    assert terminal_width() == 93
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr("os.get_terminal_size", lambda _: (_ for _ in ()).throw(OSError))
    columns = [f"figure {number}" for number in range(40)]
    wide = Table("", ("", *columns), [("a model", *["1,234"] * 40)])
    story = Passage("TED", "Once", " upon a time" * 20, 0)
    empty, head, _, *passage = parts_lines([wide, story], terminal_width())
    assert empty == "" and all(column in head for column in columns)
    assert max(map(len, passage)) <= 100


@dataclass(frozen=True)
class Found(Result):
    """A result with everything that is optional left out."""

    bits_per_byte: float

    def title(self) -> str:
        return ""

    def to_dict(self) -> dict[str, float]:
        return {"bits_per_byte": self.bits_per_byte}

    def tables(self) -> list[Table]:
        return [Table("", ("", "value"), [("bits per byte", f"{self.bits_per_byte}")])]


def test_a_result_is_shown_as_tables_or_json(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    show(Found(0.5), "linnet x")
    assert capsys.readouterr() == ("               value\nbits per byte    0.5\n", "")
    show(Found(0.5), "linnet x", as_json=True)
    assert json.loads(capsys.readouterr().out) == {"bits_per_byte": 0.5}


def test_a_page_is_written_before_anything_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    show(REPORT, "linnet plan --flops 1e18", out=tmp_path / "page")
    out, err = capsys.readouterr()
    assert err == f"report: {tmp_path / 'page' / 'report.html'}\n" and out.startswith("Plan: replication")
    assert "linnet plan --flops 1e18" in (tmp_path / "page" / "report.html").read_text()


def test_numbers_that_json_cannot_hold_are_refused():
    with pytest.raises(ValueError, match="JSON"):
        show(Found(float("nan")), "linnet x", as_json=True)
