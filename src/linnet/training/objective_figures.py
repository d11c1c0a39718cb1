"""What a run's own objective measured, as text, table rows and curves: pairs of answers, or judged answers to prompts.

Bits per byte say little of such runs: a run on preferences makes answers less likely that are wrong, and one on prompts
earns rewards. Read without PyTorch.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from linnet.present import numbers

PAIRS, PROMPTS = "preferences", "rollouts"
"""The fields of lines of metrics and of `run.json` (`callbacks.preferences`, `callbacks.rollouts`)."""


class ObjectiveCurve(NamedTuple):
    """A figure of the objective over the steps, of the answers that were trained on and of held-out ones."""

    title: str
    held_out_name: str
    steps: list[int]
    trained: list[float]
    held_out_steps: list[int]
    held_out: list[float]


def pairs_text(figures: Mapping[str, Any]) -> str:
    """Figures of held-out pairs in one line."""
    margin = numbers.signed(figures["margin"], 3)
    loss = f"loss {figures['preference_loss']:.4f}"
    return f"{figures['accuracy']:.1%} of {figures['pairs']:,} with the chosen answer ahead, margin {margin}, {loss}"


def prompts_text(figures: Mapping[str, Any]) -> str:
    """Figures of held-out prompts in one line."""
    shown = [f"{name} {value['value']:.1%}" for name, value in figures.items() if name.startswith("pass@")]
    counts = f"{figures['prompts']:,} prompts, {figures['answers']:,} answers each"
    if shown and "chance" in figures:
        shown.append("by chance " + " and ".join(f"{share:.1%}" for share in figures["chance"].values()))
    if shown and "ceiling" in figures:
        shown.append(f"reference answers {figures['ceiling']:.1%}")
    shown.append(f"mean reward {figures['reward']:.3g}")
    return f"{', '.join(shown)} ({counts})"


def held_out_rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and text of what a run measured of held-out pairs or prompts.

    figures: of `run.json`, which has those of prompts before the first step as well, or of a line of metrics.
    """
    rows = list[tuple[str, str]]()
    if pairs := figures.get(PAIRS):
        rows.append(("held-out pairs", pairs_text(pairs)))
    prompts = figures.get(PROMPTS) or {}
    if "prompts" in prompts:
        rows.append(("held-out prompts", prompts_text(prompts)))
    rows += [
        (f"held-out prompts {when}", prompts_text(prompts[when])) for when in ("before", "after") if prompts.get(when)
    ]
    return rows


def is_judged(figures: Mapping[str, Any]) -> bool:
    """Whether a run is judged by pairs or prompts, and not by the bits per byte of its held-out text."""
    return bool(figures.get(PAIRS) or figures.get(PROMPTS))


def objective_curve(lines: Sequence[Mapping[str, Any]]) -> ObjectiveCurve | None:
    """The share of pairs whose chosen answer is ahead, or the mean reward, over the steps; None for other runs."""
    kinds = ((PAIRS, "accuracy", "chosen answer ahead", "pairs"), (PROMPTS, "reward", "mean reward", "prompts"))
    for field, figure, title, examples in kinds:
        trained = [line for line in lines if figure in line.get("terms", {})]
        measured = [line for line in lines if field in line]
        if trained and measured:
            return ObjectiveCurve(
                title,
                f"held-out {examples}: {measured[-1][field][figure]:.3g} at the end",
                [line["step"] for line in trained],
                [line["terms"][figure] for line in trained],
                [line["step"] for line in measured],
                [line[field][figure] for line in measured],
            )
    return None
