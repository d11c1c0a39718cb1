"""The part of `linnet evaluate` that reads a text: one model, or several on the same documents."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnet.cli.console import note
from linnet.cli.evaluate_report import AskedReport
from linnet.cli.report import echo_json, echo_parts
from linnet.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from linnet.evaluation.measured import Measured

RESAMPLES = 1000


def measure_text(
    models: list[Path],
    data: Path,
    where: dict[str, Any],
    operator: str | None,
    seed: int | None,
    retentions: list[str] | None,
    resamples: int | None,
    plot: Path | None,
    page: AskedReport,
    as_json: bool,
) -> None:
    """Measure and print. where: arguments of `evaluate` that one model and several have in common."""
    check_plot(plot)
    if len(models) > 1:
        _refuse_of_one({"--operator": operator, "--seed": seed, "--retention": retentions})
        _several(models, data, where, resamples, plot, page, as_json)
        return
    if resamples is not None:
        raise UserError(f"--bootstrap {resamples}: goes with several models")
    _one(models[0], data, where, operator, drawn_from(seed, operator), retentions, plot, as_json)


def check_plot(plot: Path | None) -> None:
    """`UserError` for a file that is no picture."""
    if plot is not None and plot.suffix != ".png":
        raise UserError(f"--plot {plot}: expected a file that ends in .png")


def _one(
    model: Path,
    data: Path,
    where: dict[str, Any],
    operator: str | None,
    drawn_from: int | None,
    retentions: list[str] | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    from linnet.evaluation.interface import evaluate as measured

    found = measured(model, data, operator=operator, seed=drawn_from or 0, retentions=retentions, **where)
    _draw(plot, [str(model)], [found])
    if as_json:
        replaced = {"operator": operator, "seed": drawn_from}
        echo_json({"model": str(model), **_on(data, where), **replaced, "weights": where["weights"], **found.figures()})
        return
    from linnet.evaluation.tables import measured_tables

    rows = []
    if operator is not None:
        drawn = "" if drawn_from is None else f", drawn from seed {drawn_from}"
        rows.append(("operator", operator, f"in the place of the model's own{drawn}"))
    echo_parts(*measured_tables(found, rows))


def _several(
    models: list[Path],
    data: Path,
    where: dict[str, Any],
    resamples: int | None,
    plot: Path | None,
    page: AskedReport,
    as_json: bool,
) -> None:
    from linnet.evaluation.interface import evaluate_several

    found = evaluate_several(models, data, resamples=resamples or RESAMPLES, **where)
    _draw(plot, found.names, found.measured)
    page.write_text(found, data, where["device"], where["weights"])
    if as_json:
        echo_json({**_on(data, where), "weights": where["weights"], **found.figures()})
        return
    from linnet.evaluation.tables import comparison_tables

    echo_parts(*comparison_tables(found))


def _refuse_of_one(options: dict[str, Any]) -> None:
    """`UserError` for an option that several models have not in common."""
    for name, value in options.items():
        if value is not None:
            said = " ".join(value) if isinstance(value, list) else value
            raise UserError(f"{name} {said}: goes with one model")


def _on(data: Path, where: dict[str, Any]) -> dict[str, Any]:
    """What was read; a file has no sides."""
    return {"data": str(data), "split": where["split"] or ("validation" if data.is_dir() else None)}


def _draw(plot: Path | None, names: "Sequence[str]", measured: "Sequence[Measured]") -> None:
    if plot is not None:
        from linnet.evaluation.pictures import positions_plot

        positions_plot(names, measured).write(plot)
        note(f"plot: {plot}")


def drawn_from(seed: int | None, operator: str | None) -> int | None:
    """The seed of random operators, None where nothing is drawn."""
    if operator != "random":
        if seed is not None:
            raise UserError(f"--seed {seed}: goes with --operator random; nothing else is drawn")
        return None
    return seed or 0
