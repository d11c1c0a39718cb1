"""What `linnet design` does with a task: look for one model, run it as well, or look for a front; print and write."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from linnet.cli.console import check_out_folder, invocation, note, note_replaced, show
from linnet.core.errors import UserError

if TYPE_CHECKING:
    from linnet.design.metrics import CostCounts, Metric
    from linnet.design.search import SearchResult, SearchTask
    from linnet.present.table import Table

POINTS = {1: 16, 2: 6}
"""Limits on each goal, by how many goals there are beside the score."""


class LatencyOptions(NamedTuple):
    """What was said of latency."""

    limit: str | None
    kind: Literal["token", "sequence"]
    device: str
    threads: int | None


def show_found(task: "SearchTask", tokens: int, out: Path | None, as_json: bool) -> None:
    """One model within its budgets."""
    from linnet.design.report import result_figures, result_tables
    from linnet.design.search import search as run_search

    found = run_search(task, name=out.stem if out else None)
    _write(task, found, out, as_json)
    _show(task, result_figures(task, found, tokens), result_tables(task, found, tokens), as_json)


def show_checked(task: "SearchTask", tokens: int, clock: LatencyOptions, out: Path | None, as_json: bool) -> None:
    """One model within its budgets and a limit of time, which is measured."""
    from linnet.design.feasibility import find_within_budgets
    from linnet.design.latency import PartTimes, Timing, measure_latency, search_with_latency
    from linnet.design.metrics import Budget, read_seconds
    from linnet.design.report import latency_figures, latency_table, result_figures, result_tables
    from linnet.inference.device import resolve_device
    from linnet.training.machine import threads

    assert clock.limit is not None
    limit_s = read_seconds(clock.limit, "--max-latency")
    timing = Timing(clock.kind, tokens, resolve_device(clock.device))
    with threads(clock.threads, "threads"):
        find_within_budgets(task.budgets, task.tables())  # what nothing meets is said before anything is timed
        times = PartTimes(task.space, timing)
        times.time_all()
        limit = Budget(times.metric(), limit_s, f"--max-latency {clock.limit}")
        name = out.stem if out else None
        checked = search_with_latency(task, limit, lambda model: measure_latency(model, timing), times.time_again, name)
        found, task = checked.found, checked.task
        _write(task, found, out, as_json)
        figures = {**result_figures(task, found, tokens), "latency": latency_figures(checked, timing)}
        tables = [*result_tables(task, found, tokens), latency_table(checked, timing)]
    _show(task, figures, tables, as_json)


def show_front(
    task: "SearchTask",
    pareto: str,
    points: int | None,
    counting: "CostCounts",
    clock: LatencyOptions,
    out: Path | None,
    as_json: bool,
) -> None:
    """Several goals at once; `out` is a folder."""
    from linnet.design.pareto import front, write_front
    from linnet.design.report import front_figures, front_pictures, front_table

    if clock.limit is not None:
        raise UserError(f"--max-latency {clock.limit}: does not go with --pareto; give one of both")
    check_out_folder(out, "--out")
    goals = _goals(pareto, counting)
    found = front(task, goals, points or POINTS[len(goals)], out.name if out else task.space.spec.name)
    if out is not None:
        write_front(found, goals, task.score, out, invocation())
        note(f"descriptions and table: {out}")
    elif not as_json:
        note("nothing is written; --out DIR writes the descriptions, a table and a picture")
    figures, tables = front_figures(found, goals, task.score), [front_table(found, goals, task.score)]
    pictures = partial(front_pictures, found, goals, task.score)
    show(f"Front of {pareto}", _facts(task), figures, tables, pictures, out, as_json)


def _goals(text: str, counting: "CostCounts") -> "list[Metric]":
    """The metrics among the goals; the score is always one."""
    names = [name.strip() for name in text.split(",")]
    goals = [counting.metric(name) for name in names if name != "score"]
    known = [goal for goal in goals if goal is not None]
    if "score" not in names or len(set(names)) < len(names) or len(known) < len(goals) or len(known) not in POINTS:
        raise UserError(
            f"--pareto {text}: expected score and one or two of flops, parameters, active_parameters, weights,"
            " training_memory, state@TOKENS, as in flops,score"
        )
    return known


def _show(task: "SearchTask", figures: dict[str, Any], tables: "list[Table]", as_json: bool) -> None:
    show(f"Design by {task.score}", _facts(task), figures, tables, list, None, as_json)


def _facts(task: "SearchTask") -> dict[str, str]:
    return {"space": f"space {task.space.spec.name}"}


def _write(task: "SearchTask", found: "SearchResult", out: Path | None, as_json: bool) -> None:
    from linnet.design.search import write_description

    if out is not None:
        note_replaced(out)
        write_description(found.plain, out, [invocation(), f"{task.score} {found.score:,.7g}"])
        note(f"description: {out}")
    elif not as_json:
        note("nothing is written; --out FILE writes the description for linnet train --model")
