"""One page and one Markdown table of several models."""

from pathlib import Path

from example_models import NAMES, compared

from linnet.experiments.measures import ModelMeasures
from linnet.experiments.report import write_report
from linnet.present.table import Table


def rows_of(text: str) -> dict[str, list[str]]:
    """The first table of a Markdown file, by the names of its rows."""
    lines = text[text.index("\n| ") :].strip().split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0]: row[1:] for row in [cells[0], *cells[2:]]}


def test_the_markdown_is_one_table_with_models_as_columns(tmp_path: Path):
    page = write_report(compared(), tmp_path / "new", "linnet compare x")
    text = (tmp_path / "new" / "report.md").read_text()
    assert page == tmp_path / "new" / "report.html"
    rows = rows_of(text)
    assert rows[""] == list(NAMES)
    assert rows["bits per byte"] == ["1.0345 ± 0.0067", "1.1345 ± 0.0067", "1.2345 ± 0.0067"]
    assert rows["less attention"] == ["–", "+0.1", "+0.2"]
    assert rows["decoding, tokens/s"] == ["1,234"] * 3
    assert rows["memory at 1M"][::2] == ["64.1 MiB<br>64.0 MiB of state", "106 KiB<br>8 KiB of state"]
    assert rows["task arc\\_easy (chance 25.0 %)"][1] == "31.0 ± 2.0<br>not distinguishable from chance"
    assert rows["task Avg-1 (chance 30.0 %)"] == ["40.0"] * 3
    assert rows["ability recall pairs=8 (chance \\< 0.01 %)"][0] == "50.0 ± 7.0<br>above chance"
    assert rows["continuation of “Once”"][2].endswith("a \\| time 2. …"), "cut, and a bar of its own"
    assert "| GPT | 31.0 |" in text and "Made by linnet compare x" in text


def test_unmeasured_figures_are_left_out(tmp_path: Path):
    bare = compared(extras={name: ModelMeasures() for name in NAMES}, differences=[], further=[])
    titles = [part.title for part in bare.tables()]
    assert titles == ["Held-out text", "In pictures", "Memory against context", "Memory against context"]
    assert all(not name.startswith(("task", "ability", "continuation", "decoding")) for name, *_ in bare.summary().rows)


def test_a_model_may_have_the_name_of_a_column():
    names = ("chance", "chance, %")
    of_models = dict(zip(names, compared().extras.values(), strict=False))
    memory = dict(zip(names, compared().memory.values(), strict=False))
    told = compared(quality=[], differences=[], memory=memory, extras=of_models).summary()
    rows = {row[0]: row[1:] for row in told.rows}
    assert told.columns == ("", *names)
    assert rows["memory weights alone"] == ["97.7 KiB"] * 2 and rows["decoding, tokens/s"] == ["1,234"] * 2
    assert rows["task arc_easy (chance 25.0 %)"][1] == "31.0 ± 2.0\nnot distinguishable from chance"


def test_a_table_without_a_title_has_a_note_without_one():
    assert compared(quality=[Table("", ("run", "x"), [["a", "1"]], "what x is")]).notes()[0] == "what x is"


def test_abilities_that_no_model_can_be_asked_are_named_without_a_row():
    (table,) = [part for part in compared().tables() if part.title == "Abilities"]
    assert [row[0] for row in table.rows] == ["recall pairs=8"]
    assert "Not asked of any model: too long for the context: needle." in table.meaning
