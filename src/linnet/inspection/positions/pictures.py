"""A picture of the loss by position."""

import math

from linnet.inspection.positions.measure import PositionLosses, VariantLosses
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.present.result import Picture


def positions_pictures(found: PositionLosses) -> list[Picture]:
    """A line for each way of reading."""
    return [
        Picture(
            "loss_by_position",
            "Loss by position",
            positions_plot(found),
            "Each point is the mean over a part of the windows, at its middle; the band is its standard error over the"
            " windows. The dashed line: the trained length.",
        )
    ]


def positions_plot(found: PositionLosses) -> Plot:
    """Bits per byte over the position, on a logarithmic scale."""
    x = Axis("position", "log2", numbers.grouped)
    series = [_line(one, number) for number, one in enumerate(found.variants)]
    trained = Rule(found.trained, "trained", upright=True)
    return Plot([Panel(x, Axis("bits per byte"), series, rules=[trained])], (9.0, 4.6))


def _line(one: VariantLosses, number: int) -> Series:
    shown = [part for part in one.parts if math.isfinite(part.bits_per_byte)]
    middles = [(part.begin + part.end) / 2 for part in shown]
    bits = [part.bits_per_byte for part in shown]
    errors = [part.standard_error or 0.0 for part in shown]
    low = [value - error for value, error in zip(bits, errors, strict=True)]
    high = [value + error for value, error in zip(bits, errors, strict=True)]
    return Series(middles, bits, one.name, "o-", number, low=low, high=high)
