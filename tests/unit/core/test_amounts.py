"""Amounts as people write them."""

import pytest

from linnet.core import amounts
from linnet.core.errors import UserError


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
    assert amounts.parse_amount(text, "--tokens") == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    "text", ["", "M", "0", "-5M", "2m", "2MB", "1e", "nan", "inf", "1e400", "1.2.3", "0x10", "٣", "12,"]
)
def test_what_is_no_amount_is_refused_by_name(text: str):
    with pytest.raises(UserError, match=r"^--tokens .*: expected a positive number, with k, M, G"):
        amounts.parse_amount(text, "--tokens")


def test_an_amount_has_one_of_the_units_it_is_asked_for():
    units = {"B": 1.0, "MiB": 2.0**20}
    assert amounts.parse_units("1,024 B", units) == 1024 and amounts.parse_units("1.5MiB", units) == 1.5 * 2**20
    assert [amounts.parse_units(text, units) for text in ("2", "2M", "2 mib", "0B", "B", "1e400B", "")] == [None] * 7
