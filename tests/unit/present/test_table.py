"""Tables: every figure is there, whatever the width of the terminal, and nothing is wider than it need be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.present.table import Table, table_lines, word_columns

MODELS = Table(
    "Models",
    ("", "parameters", "bits per byte", "training, tokens/s", "decoding, tokens/s", "state at 1k", "state at 64k"),
    [
        ("attention", "558 k", "0.192", "22,128", "2,270", "2 MiB", "128 MiB"),
        ("PLDR-LLM", "627 k", "0.209", "23,390", "2,392", "2.03 MiB", "128 MiB"),
    ],
    "What to look for.",
)


def test_a_row_is_one_line_if_there_is_room():
    head, *rows = table_lines(MODELS, 200)
    assert head.split("  ")[-1] == "state at 64k" and head.startswith(" " * 9)
    assert [row.split() for row in rows] == [" ".join(row).split() for row in MODELS.rows]
    assert len({len(line) for line in (head, *rows)}) == 1, "figures end below each other"


def test_with_less_room_heads_are_folded_and_aligned_at_the_bottom():
    lines = table_lines(MODELS, 72)
    assert max(map(len, lines)) <= 72
    assert [line.split() for line in lines[:3]] == [
        ["bits"],
        ["per", "training,", "decoding,", "state", "at", "state"],
        ["parameters", "byte", "tokens/s", "tokens/s", "1k", "at", "64k"],
    ]
    assert lines[3].split()[:3] == ["attention", "558", "k"] and len(lines) == 5


def test_with_little_room_columns_are_shown_in_blocks_that_repeat_the_names():
    lines = table_lines(MODELS, 40)
    assert max(map(len, lines)) <= 40
    assert [line.split()[0] for line in lines if line.startswith(("att", "PLDR"))] == ["attention", "PLDR-LLM"] * 2
    assert lines[lines.index("") + 1 :], "an empty line parts the blocks"


def test_long_names_are_folded_with_their_indent_before_columns_are_split():
    table = Table("", ("", "exactly", ""), [("  forward FLOPs without output head", "6,593,445,888", "6.59 G")])
    assert table_lines(table, 45) == [
        "                              exactly",
        "  forward FLOPs         6,593,445,888  6.59 G",
        "  without output head",
    ]


def test_words_are_folded_and_figures_never():
    words = Table("", ("score", "what it is"), [("entropy", "entropy of the layers, less for depth")], text=True)
    assert table_lines(words, 30) == [
        "score    what it is",
        "entropy  entropy of the",
        "         layers, less for",
        "         depth",
    ]
    assert "12,345,678,901,234 bytes" in "\n".join(
        table_lines(Table("", ("", "n"), [("a", "12,345,678,901,234 bytes")]), 5)
    )


def test_columns_of_words_begin_at_the_left_and_what_is_empty_may_hold_figures():
    rows = [("a", "12.3", "ted", "", "of 12 models drawn were 3 within"), ("b", "none", "plga", "", "")]
    assert word_columns(Table("", ("", "x", "mixer", "bits", "what"), rows)) == {0, 2, 4}
    assert word_columns(Table("", ("", "x", "mixer", "bits", "what"), rows, text=True)) == {0, 1, 2, 3, 4}
    assert word_columns(Table("", ("", "x"), [])) == {0}


def test_names_with_digits_are_words():
    rows = [("repetition", "top_2_gram", "none", "tiny-rwkv7"), ("quality", "short", "0.5", "9")]
    assert word_columns(Table("", ("step", "reason", "leak", "x"), rows)) == {0, 1}


def test_without_heads_there_is_no_line_for_them_and_wide_characters_take_two_columns():
    assert table_lines(Table("", ("", ""), [("日本", "1"), ("abcde", "22")]), 60) == ["日本    1", "abcde  22"]


def test_terminal_escapes_are_not_printed():
    assert table_lines(Table("", ("", ""), [("\x1b[2Jb\a", "1")]), 60) == ["\\x1b[2Jb\\x07  1"]


cells = st.text("ab1,. ", min_size=1, max_size=12).map(lambda text: text.strip() or "0")


@given(st.lists(st.tuples(cells, cells, cells, cells), min_size=1, max_size=4), st.integers(30, 80))
def test_every_figure_is_in_its_row_at_any_width(rows: list[tuple[str, ...]], width: int):
    lines = table_lines(Table("", ("name", "first of them", "second one", "third"), rows), width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(cell in text for row in rows for cell in row)


@pytest.mark.parametrize("width", [20, 60, 200])
def test_a_table_of_one_column_or_no_rows_is_drawn(width: int):
    assert table_lines(Table("", ("name",), [("a",)]), width) == ["name", "a"]
    assert table_lines(Table("", ("name", "value"), []), width) == ["name  value"]
