"""Bounds of numbers on the command line that name none themselves: no amount reaches them, libraries break beyond."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from typer.core import TyperArgument, TyperOption

from linnet.cli.options import MOST_AMOUNT
from linnet.core.errors import UserError

SEEDS = "a whole number from 0 to 2**63 - 1"
"""What the random generators take."""


def check_numbers(parameters: Sequence[TyperOption | TyperArgument], values: Mapping[str, Any]) -> None:
    """`UserError` for a whole number beyond all amounts, or one that is infinite or none, and which option has it."""
    for parameter in parameters:
        value = values.get(parameter.name or "")
        for number in value if isinstance(value, list | tuple) else [value]:
            accepted = _accepted_seed(number) if parameter.name == "seed" else _accepted(number)
            if accepted is not None:
                raise UserError(field=parameter.name, value=number, accepted=accepted)


def _accepted_seed(value: Any) -> str | None:
    return None if value is None or 0 <= value < 1 << 63 else SEEDS


def _accepted(value: Any) -> str | None:
    """What would be, where this is not."""
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    if isinstance(value, int) and abs(value) > MOST_AMOUNT:
        return f"at most {MOST_AMOUNT}" if value > 0 else f"at least {-MOST_AMOUNT}"
    return None
