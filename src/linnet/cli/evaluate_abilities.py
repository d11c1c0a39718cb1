"""`linnet evaluate --suite abilities`: generated questions, their answers against chance."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from linnet.cli.report import echo_json, echo_parts
from linnet.present import numbers

if TYPE_CHECKING:
    from linnet.evaluation.abilities.measure import MeasuredAbility
    from linnet.present.table import Table

ITEMS, SEED = 200, 0
COLUMNS = ("ability", "right, %", "chance, %", "symbols, %", "chance, %", "")


def measure_abilities(
    model: Path,
    files: Sequence[Path],
    limit: int | None,
    seed: int | None,
    device: str,
    weights: str | None,
    as_json: bool,
) -> None:
    """Measure the suite, or the abilities of files, on so many items each, and print them."""
    from linnet.evaluation.abilities.measure import figures_of, measure_all
    from linnet.evaluation.abilities.registry import read_suite, suite
    from linnet.inference.language_model import load

    abilities = [ability for file in files for ability in read_suite(file)] if files else suite()
    speaker, count, drawn_from = load(model, device, weights), limit or ITEMS, SEED if seed is None else seed
    found = measure_all(speaker, abilities, count, drawn_from)
    if as_json:
        measured = {"model": str(model), "seed": drawn_from, "weights": weights}
        echo_json({**measured, "abilities": figures_of(found)})
    else:
        echo_parts(_table(found, count))


def _table(found: Sequence["MeasuredAbility"], items: int) -> "Table":
    from linnet.evaluation.abilities.measure import above_chance
    from linnet.present.table import Table

    meaning = (
        f"right: whole answers, greedily, of {items:,} items each, with their standard error; symbols: those of"
        " answers, given the true ones before them; told from chance: two-sided, 5 % for all abilities together (Holm)"
    )
    rows = [[one.ability.said, *_cells(one, above)] for one, above in zip(found, above_chance(found), strict=True)]
    return Table("Abilities", COLUMNS, rows, meaning)


def _cells(one: "MeasuredAbility", above: bool) -> list[str]:
    if one.score is None:
        return ["", "", "", "", f"not measured: {one.missing}"]
    score, chance = one.score, one.ability.chance
    return [
        score.percent,
        numbers.significant(100 * chance.answer),
        "" if chance.symbol is None else f"{100 * score.symbols:.1f}",
        "" if chance.symbol is None else numbers.significant(100 * chance.symbol),
        _note(one, above),
    ]


def _note(one: "MeasuredAbility", above: bool) -> str:
    """What becomes of the final answer where steps are written before it, and whether chance could be as good."""
    said = [] if above else ["not distinguishable from chance"]
    if one.final is not None and one.final is not one.score:
        said.insert(0, f"final answer {one.final.percent} % right")
    return "; ".join(said)
