"""Numbers, bytes and durations as text for people."""

import math
from decimal import Decimal


def metric(count: float) -> str:
    """Write a count with three digits and a unit: `1.08 M`; `2 M` if that is exact."""
    return _readable(count, 1000, ("", "k", "M", "G", "T"))


def scientific(value: float, digits: int = 3) -> str:
    """Write a number with a power of ten: `5.76e23`; `1e18` if that is exact."""
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    plain = mantissa.rstrip("0").rstrip(".") if float(f"{value:.0e}") == value else mantissa
    return f"{plain}e{int(exponent)}"


def binary(size_bytes: float) -> str:
    """Write bytes with three digits and a binary unit: `2.13 MiB`; `2 MiB` if that is exact."""
    return _readable(size_bytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def decimal(size_bytes: float) -> str:
    """Write bytes with three digits and a decimal unit: `2.13 MB`."""
    return _readable(size_bytes, 1000, ("B", "kB", "MB", "GB", "TB"))


def percent_of(share: float) -> str:
    """Write a share in percent with three digits: `6.25`; `< 0.01` for smaller shares above 0."""
    return "< 0.01" if 0 < share < 0.0001 else significant(100 * share)


def grouped(count: float) -> str:
    """Write a whole number with separators: `12,345`."""
    return f"{count:,.0f}"


def counted(count: int, name: str) -> str:
    """Write a number of things: `1 file`, `1,234 files`."""
    return f"{count:,} {name}" + ("" if count == 1 else "s")


def bits(bits_per_byte: float) -> str:
    """Write bits per byte: `0.912`."""
    return f"{bits_per_byte:.3f}"


def signed(value: float, decimals: int) -> str:
    """Write a difference with its sign: `+0.0312`; `0.0000` if it rounds to zero."""
    text = f"{value:+.{decimals}f}"
    return text if float(text) else text[1:]


def tokens(count: int) -> str:
    """Write a context length: `64k` for 65536, `1M` for 1048576."""
    if count >= 1 << 20 and count % (1 << 20) == 0:
        return f"{count >> 20}M"
    return f"{count // 1024}k" if count >= 1024 and count % 1024 == 0 else grouped(count)


def duration(seconds: float) -> str:
    """Write a duration: `0 s`, `0.42 s`, `8.3 s`, `42 s`, `2 min 31 s`, `1 h 02 min`."""
    if seconds < 0.005:
        return "0 s"
    if seconds < 9.95:
        return f"{seconds:.2f} s" if seconds < 0.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def ratio(value: float, reference: float) -> str:
    """Write a value as a multiple of the reference: `0.50`, `1.2`, `12`."""
    return significant(value / reference, digits=2)


def significant(value: float, digits: int = 3) -> str:
    """Write a number with that many significant digits: `1.20`, `12.0`, `120`."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    # 9.995 rounds to 10.00: one digit too many.
    return text if decimals == 0 or len(text.lstrip("-0.").replace(".", "")) <= digits else f"{value:.{decimals - 1}f}"


def exact(value: float) -> str:
    """Write the shortest text that reads back as this number: `1e-8` (below 0.01), `0.05`, `10`."""
    if not math.isfinite(value):
        return f"{value}"
    exact = Decimal(repr(float(value))).normalize()
    return f"{exact:e}" if 0 < abs(value) < 0.01 else f"{exact:f}"


def _readable(count: float, step: int, units: tuple[str, ...]) -> str:
    power = 0
    while round(count, 1) >= step and power < len(units) - 1:
        count, power = count / step, power + 1
    number = f"{count:,.0f}" if count == round(count) or count >= 999.5 else significant(count)
    return f"{number} {units[power]}".rstrip()
