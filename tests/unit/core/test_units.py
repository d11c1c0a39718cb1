"""Amounts as people write them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.core import units
from linnet.core.errors import UserError
from linnet.core.units import read_rows


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e18", 1e18),
        ("5.76E23", 5.76e23),
        ("50M", 5e7),
        ("2B", 2e9),
        ("60G", 6e10),
        ("1.5 T", 1.5e12),
        (".5k", 500),
        ("3P", 3e15),
        ("12,000", 12_000),
        ("12_000K", 12_000_000),
        (" 7 ", 7),
        ("1e3M", 1e9),
        ("2  M", 2e6),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, value: float):
    assert units.parse_amount(text, "--tokens") == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    "text", ["", "M", "0", "-5M", "2m", "2MB", "1e", "nan", "inf", "1e400", "1.2.3", "0x10", "٣", "12,"]
)
def test_an_invalid_amount_is_refused_by_name(text: str):
    with pytest.raises(UserError, match=r"^--tokens .*: expected a positive number, with k, M, G"):
        units.parse_amount(text, "--tokens")


def test_an_amount_has_one_of_the_units_it_is_asked_for():
    sizes = {"B": 1.0, "MiB": 2.0**20}
    assert units.parse_units("1,024 B", sizes) == 1024 and units.parse_units("1.5MiB", sizes) == 1.5 * 2**20
    assert [units.parse_units(text, sizes) for text in ("2", "2M", "2 mib", "0B", "B", "1e400B", "")] == [None] * 7


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
    with pytest.raises(UserError, match=r"t.csv: column a occurs 2 times; expected once"):
        read_rows(path, [])


def test_one_column_of_each_group_is_needed(path: Path):
    path.write_text("a,b\n1,2\n")
    assert len(read_rows(path, [("x", "b"), ("a",)])) == 1
    with pytest.raises(UserError, match=r"t.csv: column x or y is missing; found a, b$"):
        read_rows(path, [("a",), ("x", "y")])
    path.write_text("")
    with pytest.raises(UserError, match=r"t.csv: column x is missing; found nothing$"):
        read_rows(path, [("x",)])


def test_an_invalid_csv_line_is_named(path: Path):
    path.write_text("a,b\n1,2\n" + "9" * 200_000 + ",1\n")
    with pytest.raises(UserError, match=r"t.csv, line 3: not valid CSV \(field larger than field limit"):
        read_rows(path, [])
