"""CSV files: their head, their rows, and what is said of wrong ones."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.csv_table import read_rows
from linnet.core.errors import UserError


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("csv") / "t.csv"


def test_rows_know_their_line_and_their_columns(path: Path):
    path.write_text('a,b\n1,2\n\n"3, or 4"\n5,6, ,\n')
    rows = read_rows(path, [])
    assert [row.origin for row in rows] == [f"{path}, line {line}" for line in (2, 4, 5)]
    assert [row.cells for row in rows] == [{"a": "1", "b": "2"}, {"a": "3, or 4", "b": ""}, {"a": "5", "b": "6"}]


BLANKS = st.text(" \t", max_size=3)


@given(mark=st.sampled_from(["", "\ufeff"]), blanks=st.lists(BLANKS, min_size=8, max_size=8))
def test_blanks_and_a_byte_order_mark_do_not_count(path: Path, mark: str, blanks: list[str]):
    around = [f"{before}{word}{after}" for word, before, after in zip("ab12", blanks[::2], blanks[1::2], strict=True)]
    path.write_text(f"{mark}{around[0]},{around[1]}\n{around[2]},{around[3]}\n", encoding="utf-8")
    (row,) = read_rows(path, [("a",), ("b",)])
    assert row.cells == {"a": "1", "b": "2"}


def test_cells_beyond_the_columns_are_refused(path: Path):
    """Our own messages print commas in numbers: 340,000 would be read as 340."""
    path.write_text("a,b\n1,2\n3,340,000\n")
    with pytest.raises(UserError, match=r"t.csv, line 3: 000: more cells than the 2 columns; expected quotes around"):
        read_rows(path, [])
    path.write_text("a,b,a\n1,2,3\n")
    with pytest.raises(UserError, match=r"t.csv: column a is there 2 times; expected once"):
        read_rows(path, [])


def test_one_column_of_each_group_is_needed(path: Path):
    path.write_text("a,b\n1,2\n")
    assert len(read_rows(path, [("x", "b"), ("a",)])) == 1
    with pytest.raises(UserError, match=r"t.csv: column x or y is missing; found a, b$"):
        read_rows(path, [("a",), ("x", "y")])
    path.write_text("")
    with pytest.raises(UserError, match=r"t.csv: column x is missing; found nothing$"):
        read_rows(path, [("x",)])


def test_a_line_that_is_no_csv_is_named(path: Path):
    path.write_text("a,b\n1,2\n" + "9" * 200_000 + ",1\n")
    with pytest.raises(UserError, match=r"t.csv, line 3: not valid CSV \(field larger than field limit"):
        read_rows(path, [])
