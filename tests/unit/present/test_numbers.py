"""Numbers as people read them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.core import units
from linnet.present import numbers


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
    ("size_bytes", "text"),
    [(512, "512 B"), (1000, "1 kB"), (1_000_000, "1 MB"), (1_048_576, "1.05 MB"), (3 * 10**15, "3,000 TB")],
)
def test_decimal(size_bytes: float, text: str):
    assert numbers.decimal(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0041, "0 s"),
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


def test_bits_have_three_decimals_and_a_difference_has_a_sign():
    assert numbers.bits(0.73129) == "0.731"
    assert numbers.signed(0.03129, 3) == "+0.031"
    assert numbers.signed(-0.03129, 3) == "-0.031"


@pytest.mark.parametrize(
    ("count", "text"), [(1, "1"), (1000, "1,000"), (1024, "1k"), (65536, "64k"), (1 << 20, "1M"), (1500, "1,500")]
)
def test_lengths_of_text(count: int, text: str):
    assert numbers.tokens(count) == text


@pytest.mark.parametrize(
    ("value", "reference", "text"), [(1, 2, "0.50"), (6, 5, "1.2"), (10, 10, "1.0"), (1234, 10, "123")]
)
def test_a_ratio_has_two_digits(value: float, reference: float, text: str):
    assert numbers.ratio(value, reference) == text


@settings(deadline=None)
@given(st.floats(1e-6, 1e12), st.integers(1, 6))
def test_significant_digits_are_right(value: float, digits: int):
    text = numbers.significant(value, digits)
    assert float(text) == pytest.approx(value, rel=0.5001 * 10 ** (1 - digits))
    whole, _, fraction = text.partition(".")
    shown = (whole + fraction).lstrip("0")
    assert len(shown) == digits if fraction else len(shown) >= digits


def test_plain_numbers():
    values = (1e-8, 1.25e-12, 1e-3, 0.01, 0.1, 2.0, 1e6, 0.0, -1.0, float("nan"), float("-inf"))
    texts = ["1e-8", "1.25e-12", "1e-3", "0.01", "0.1", "2", "1000000", "0", "-1", "nan", "-inf"]
    assert [numbers.exact(value) for value in values] == texts


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_plain_number_is_just_that_number(value: float):
    assert float(numbers.exact(value)) == value and "e-0" not in numbers.exact(value)


@given(st.floats(1e-3, 1e18))
def test_exact_numbers_read_back_the_same(value: float):
    assert units.parse_amount(numbers.scientific(value), "x") == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e18, "1e18"), (5.76e23, "5.76e23"), (1.0000001e18, "1.00e18"), (0.05, "5e-2"), (123456, "1.23e5")],
)
def test_powers_of_ten(value: float, text: str):
    assert numbers.scientific(value) == text


def test_a_share_that_is_too_small_to_read_is_not_written_out():
    assert [numbers.percent_of(share) for share in (5e-20, 1e-4, 0.0625, 0.0)] == ["< 0.01", "0.0100", "6.25", "0"]


def test_one_thing_has_a_name_without_s():
    assert [numbers.counted(count, "file") for count in (0, 1, 1234)] == ["0 files", "1 file", "1,234 files"]
