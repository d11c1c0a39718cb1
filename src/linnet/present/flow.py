"""A Sankey diagram of a chain of steps, each of which takes something out: the bands are as wide as what they carry."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from linnet.present.style import INK, PALETTE, drawing, new_figure


@dataclass(frozen=True)
class Flow:
    """What flows through steps, in one panel for each quantity.

    quantities: their names, such as documents and bytes. start: the amount of each before the first step. steps: the
    name of each step, and what it takes of each quantity; less than 0 is what it adds.
    """

    quantities: Sequence[str]
    start: Sequence[int]
    steps: Sequence[tuple[str, Sequence[int]]]

    def figure(self) -> Any:
        """Return the diagram as a Matplotlib `Figure`."""
        with drawing():
            figure = new_figure(max(6.0, 1.9 * (len(self.steps) + 1)), 2.9 * len(self.quantities))
            for number, axes in enumerate(figure.subplots(len(self.quantities), 1, squeeze=False).ravel()):
                self._draw(axes, number)
            return figure

    def shares(self, number: int) -> list[float]:
        """Return the share of a quantity that is left before the first step and after each."""
        left, found = self.start[number], [1.0]
        for _, taken in self.steps:
            left -= taken[number]
            found.append(left / max(1, self.start[number]))
        return found

    def _draw(self, axes: Any, number: int) -> None:
        shares = self.shares(number)
        axes.set_title(self.quantities[number])
        axes.text(0, 1.04, f"{self.start[number]:,}", ha="left", va="bottom", color=INK)
        for place, (name, taken) in enumerate(self.steps):
            axes.fill_between(
                [place, place + 1], [1 - shares[place + 1]] * 2, [1, 1], color=PALETTE[0], alpha=0.75, lw=0
            )
            if taken[number] > 0:
                self._draw_taken(axes, place, shares)
            sign = "−" if taken[number] > 0 else "+" if taken[number] else ""
            amount = f"{sign}{abs(taken[number]):,}"
            axes.text(place + 0.5, -0.2, f"{name}\n{amount}", ha="center", va="top", color=INK)
        axes.text(len(self.steps) + 0.04, 1 - shares[-1] / 2, f"{shares[-1]:.1%}", ha="left", va="center", color=INK)
        axes.set(xlim=(-0.05, len(self.steps) + 0.5), ylim=(-0.55, 1.2))
        axes.axis("off")

    def _draw_taken(self, axes: Any, place: int, shares: Sequence[float]) -> None:
        """Draw what a step takes out: it leaves downwards, with the width that the band loses."""
        top, bottom = 1 - shares[place + 1], 1 - shares[place]
        ends = [place, place + 0.3, place + 0.6]
        lower, upper = [bottom, bottom, -0.14], [top, top, top - bottom - 0.14]
        axes.fill_between(ends, lower, upper, color=PALETTE[1], lw=0)
