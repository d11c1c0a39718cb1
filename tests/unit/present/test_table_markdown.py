"""Tables as Markdown."""

from linnet.present.table import Table, cell_markdown, table_markdown


def test_figures_stand_at_the_right_and_second_lines_in_their_own():
    table = Table("T", ("", "a", "b"), [("size", "1\n2 of state", "–"), ("name", "12", "–")])
    assert table_markdown(table) == (
        "|   | a | b |\n| --- | ---: | --- |\n| size | 1<br>2 of state | – |\n| name | 12 | – |\n"
    )


def test_generated_text_is_escaped():
    written = "a|b *c* `d` [e](f) <b> \\ \x1b\nnext  "
    assert cell_markdown(written) == "a\\|b \\*c\\* \\`d\\` \\[e\\](f) \\<b\\> \\\\ \\\\x1b<br>next"
    assert cell_markdown(" \n") == " ", "an empty cell is a cell"
