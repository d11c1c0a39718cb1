"""Bounds of numbers on the command line that name none themselves: no amount reaches them, libraries break beyond."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from typer.core import TyperArgument, TyperOption

from linnet.cli.options import MOST_AMOUNT
from linnet.core.errors import UserError

MOST_SEED = (1 << 63) - 1
"""What the random generators take."""


def check_numbers(parameters: Sequence[TyperOption | TyperArgument], values: Mapping[str, Any]) -> None:
    """`UserError` for a whole number beyond all amounts, or one that is infinite or none, and which option has it."""
    for parameter in parameters:
        value, most = values.get(parameter.name or ""), MOST_SEED if parameter.name == "seed" else MOST_AMOUNT
        for number in value if isinstance(value, list | tuple) else [value]:
            accepted = _accepted(number, most)
            if accepted is not None:
                raise UserError(field=parameter.name, value=number, accepted=accepted)


def _accepted(value: Any, most: int) -> str | None:
    """What would be, where this is not."""
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    if isinstance(value, int) and abs(value) > most:
        if most == MOST_SEED:
            return "a whole number from 0 to 2**63 - 1"
        return f"at most {most}" if value > 0 else f"at least {-most}"
    return None
