"""Loss by position as a picture."""

import math
from collections.abc import Sequence

from linnet.evaluation.likelihood import PositionLoss
from linnet.evaluation.measured import TextEvaluation
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Series, line_style


def positions_plot(names: Sequence[str], measured: Sequence[TextEvaluation]) -> Plot:
    """`positions_panel`, large."""
    return Plot([positions_panel(names, measured)], (9.0, 4.6))


def positions_panel(names: Sequence[str], measured: Sequence[TextEvaluation]) -> Panel:
    """Bits per byte over the position in a window, a line for each model, with a band of its standard error."""
    series = [
        _line(name, one.positions, number) for number, (name, one) in enumerate(zip(names, measured, strict=True))
    ]
    x = Axis("tokens of the window before the predicted one", "log2", numbers.grouped)
    return Panel(x, Axis("bits per byte"), series)


def _line(name: str, positions: Sequence[PositionLoss], number: int) -> Series:
    """Each part at its middle; the first, that has nothing before it, at one."""
    shown = [(one, one.bits_per_byte) for one in positions if one.bits_per_byte is not None]
    known = [(one, bits) for one, bits in shown if math.isfinite(bits.value)]
    middles = [max(1.0, (one.begin + one.end - 1) / 2) for one, _ in known]
    values = [bits.value for _, bits in known]
    errors = [bits.standard_error or 0.0 for _, bits in known]
    low = [value - error for value, error in zip(values, errors, strict=True)]
    high = [value + error for value, error in zip(values, errors, strict=True)]
    return Series(middles, values, name, line_style(number), number, low=low, high=high)
