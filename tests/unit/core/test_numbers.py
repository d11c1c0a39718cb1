"""Numbers as people read them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.core import numbers
from linnet.core.errors import UserError


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1 k"),
        (1_083_776, "1.08 M"),
        (12_345, "12.3 k"),
        (819_200, "819 k"),
        (999_960, "1.00 M"),
        (2_500_000_000, "2.50 G"),
    ],
)
def test_metric(count: int, text: str):
    assert numbers.metric(count) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (512, "512 B"),
        (1024, "1 KiB"),
        (4096 * 1024, "4 MiB"),
        (4096 * 1024 + 65536, "4.06 MiB"),
        (256 * 1024**2 + 65536, "256 MiB"),
        (1023.99 * 1024, "1.00 MiB"),
        (3 * 1024**5, "3,072 TiB"),
    ],
)
def test_binary(size_bytes: float, text: str):
    assert numbers.binary(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0421, "0.04 s"),
        (0.999, "1.0 s"),
        (8.34, "8.3 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (151, "2 min 31 s"),
        (3725, "1 h 02 min"),
    ],
)
def test_duration(seconds: float, text: str):
    assert numbers.duration(seconds) == text


def test_bits_are_told_to_three_places_and_a_difference_has_a_sign():
    assert numbers.bits(0.73129) == "0.731"
    assert numbers.signed_bits(0.03129) == "+0.031"
    assert numbers.signed_bits(-0.03129) == "-0.031"


@pytest.mark.parametrize(("count", "text"), [(1, "1"), (1000, "1,000"), (1024, "1k"), (65536, "64k"), (1500, "1,500")])
def test_lengths_of_text(count: int, text: str):
    assert numbers.tokens(count) == text


@pytest.mark.parametrize(
    ("value", "reference", "text"), [(1, 2, "0.50"), (6, 5, "1.2"), (10, 10, "1.0"), (1234, 10, "123")]
)
def test_a_ratio_has_two_digits(value: float, reference: float, text: str):
    assert numbers.ratio(value, reference) == text


@settings(deadline=None)
@given(st.floats(1e-6, 1e12), st.integers(1, 6))
def test_significant_digits_are_as_many_as_asked_for_and_right(value: float, digits: int):
    text = numbers.significant(value, digits)
    assert float(text) == pytest.approx(value, rel=0.5001 * 10 ** (1 - digits))
    whole, _, fraction = text.partition(".")
    shown = (whole + fraction).lstrip("0")
    assert len(shown) == digits if fraction else len(shown) >= digits


def test_plain_numbers():
    values = (1e-8, 1.25e-12, 1e-3, 0.01, 0.1, 2.0, 1e6, 0.0, -1.0, float("nan"), float("-inf"))
    texts = ["1e-8", "1.25e-12", "1e-3", "0.01", "0.1", "2", "1000000", "0", "-1", "nan", "-inf"]
    assert [numbers.plain(value) for value in values] == texts


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_plain_number_is_just_that_number(value: float):
    assert float(numbers.plain(value)) == value and "e-0" not in numbers.plain(value)


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
    assert numbers.parse(text, "--tokens") == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    "text", ["", "M", "0", "-5M", "2m", "2MB", "1e", "nan", "inf", "1e400", "1.2.3", "0x10", "٣", "12,"]
)
def test_what_is_no_amount_is_refused_by_name(text: str):
    with pytest.raises(UserError, match=r"^--tokens .*: expected a positive number, with k, M, G"):
        numbers.parse(text, "--tokens")


def test_an_amount_has_one_of_the_units_it_is_asked_for():
    units = {"B": 1.0, "MiB": 2.0**20}
    assert numbers.amount("1,024 B", units) == 1024 and numbers.amount("1.5MiB", units) == 1.5 * 2**20
    assert [numbers.amount(text, units) for text in ("2", "2M", "2 mib", "0B", "B", "1e400B", "")] == [None] * 7


@given(st.floats(1e-3, 1e18))
def test_what_is_written_short_is_read_again(value: float):
    assert numbers.parse(numbers.scientific(value), "x") == pytest.approx(value, rel=0.0051)
    if value >= 1:
        assert numbers.parse(numbers.compact(value), "x") == pytest.approx(value, rel=0.0501)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e18, "1e18"), (5.76e23, "5.76e23"), (1.0000001e18, "1.00e18"), (0.05, "5e-2"), (123456, "1.23e5")],
)
def test_powers_of_ten(value: float, text: str):
    assert numbers.scientific(value) == text


@pytest.mark.parametrize(("count", "text"), [(21_310_000, "21.3M"), (6e10, "60G"), (999, "999"), (3e18, "3000000T")])
def test_compact(count: float, text: str):
    assert numbers.compact(count) == text
