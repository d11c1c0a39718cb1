"""The picture of a run: loss, learning rate and gradient norm over the steps."""

from pathlib import Path
from typing import Any

from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Series
from linnet.present.style import INK


def draw_curves(lines: list[dict[str, Any]], path: Path, title: str, causal: bool) -> None:
    """Draw the lines of `metrics.jsonl` as a PNG.

    `causal` False: the training loss is that of a pass that sees the future, and the legend says so.
    """
    curves(lines, title, causal).write(path)


def curves(lines: list[dict[str, Any]], title: str, causal: bool) -> Plot:
    """Every loss from the first on: a logarithmic axis shows it, and the end of the run as well."""
    steps, x = [line["step"] for line in lines], Axis("step")
    rate = Series(steps, [line["lr"] for line in lines], color=2)
    norm = Series(steps, [line["gradient_norm"] for line in lines], color=INK, faint=True)
    panels = [
        Panel(x, Axis("loss, bits per byte", "log"), _losses(lines, causal), title),
        Panel(x, Axis("learning rate", format=numbers.exact, low=0), [rate]),
        Panel(x, Axis("gradient norm", "log"), [norm]),
    ]
    return Plot(panels, (9.0, 2.5), shared="x", heights=(3, 1, 1))


def _losses(lines: list[dict[str, Any]], causal: bool) -> list[Series]:
    evaluated = [line for line in lines if "validation" in line]
    points = [line["step"] for line in evaluated]
    found = [line["validation"] for line in evaluated]
    training = "training" if causal else "training (the pass sees the whole sequence)"
    drawn = [Series([line["step"] for line in lines], [line["bits_per_byte"] for line in lines], training, faint=True)]
    validation = [one["bits_per_byte"] for one in found]
    if found:
        latest = f"validation, causal: {validation[-1]:.3f} at the end"
        drawn.append(Series(points, validation, latest, "o-", color=1))
    if found and not causal:
        whole = [one["whole_sequence_bits_per_byte"] for one in found]
        drawn.append(Series(points, whole, "validation, whole sequence", "--", color=1))
    return drawn
