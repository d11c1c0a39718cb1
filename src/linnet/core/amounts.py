"""Amounts as people write them: `1e18`, `50M`, `2 MB`."""

import math
import re
from collections.abc import Mapping

from linnet.core.errors import UserError

FACTORS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15}
"""What a letter behind a number multiplies it by. `B` is the billion of parameters and tokens, never a byte."""

_AMOUNT = re.compile(r"\s*((?:[0-9][0-9,_]*)?\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_units(text: str, units: Mapping[str, float]) -> float | None:
    """A positive number with one of `units` behind it, each with what it stands for: `2 MB`, `1e3k`, `12,000`.

    Commas between digits are accepted: our own messages print them. None for anything else.
    """
    found = _AMOUNT.fullmatch(text)
    value = float(re.sub("[,_]", "", found[1])) * units.get(found[2], 0.0) if found else 0.0
    return value if 0 < value < math.inf else None


def parse_amount(text: str, name: str) -> float:
    """A positive number as people write it: `1e18`, `50M`, `2B`, `1.5 G`, `12,000`.

    `UserError` names the field or option `name`, the text, and what would be accepted.
    """
    value = parse_units(text, FACTORS)
    if value is None:
        accepted = "a positive number, with k, M, G (or B), T or P behind it or none: 1e18, 50M, 2B"
        raise UserError(f"{name} {text}: expected {accepted}")
    return value
