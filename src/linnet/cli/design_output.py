"""What `linnet design` prints."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from linnet import numbers
from linnet.design.budget import Budget
from linnet.design.scores import SCORES
from linnet.design.search import Found, Task
from linnet.model.cost import model_cost
from linnet.model.spec import BlockSpec, ModelSpec


def print_json(task: Task, found: Found, tokens: int, out: Path | None) -> None:
    """All figures and the model's description."""
    evolved, optimum = found.evolved, found.optimum
    figures = {
        "space": task.space.spec.name,
        "models": task.space.size,
        "score": {"name": task.score, "value": found.score, **task.settings.score.model_dump(mode="json")},
        "budgets": [
            {"metric": budget.metric.name, "limit": budget.limit, "value": value}
            for budget, value in zip(task.budgets, found.values, strict=True)
        ],
        "evolution": evolved
        and {"score": evolved.score, "drawn": evolved.drawn, "kept": evolved.kept, "gap": found.gap}
        | task.settings.search.model_dump(mode="json"),
        "optimum": optimum and {"score": optimum.score, "beginnings": optimum.beginnings},
        "cost": cost_figures(found.model, tokens),
        "model": found.plain,
        "out": out and str(out),
    }
    typer.echo(json.dumps(figures, indent=2, ensure_ascii=False, allow_nan=False))


def cost_figures(model: ModelSpec, tokens: int) -> dict[str, Any]:
    """Parameters and FLOPs of one sequence, with and without the head: papers differ in what they count."""
    cost = model_cost(model)
    return {
        "parameters": cost.parameters,
        "decoder_parameters": cost.blocks.parameters,
        "tokens": tokens,
        "flops_per_sequence": {
            "with_head": cost.flops(tokens, with_head=True),
            "without_head": cost.flops(tokens, with_head=False),
        },
    }


def print_found(task: Task, found: Found, tokens: int, out: Path | None) -> None:
    """The shape, what it costs, and how good the search was."""
    lines = [f"{found.plain['name']}: {found.model.layers} layers, of {task.space.size:,} models of the space"]
    lines += ["", *shape_lines(found.model), "", *_cost_lines(found, tokens)]
    lines += [_budget_line(budget, value) for budget, value in zip(task.budgets, found.values, strict=True)]
    lines += ["", f"{task.score} {found.score:,.6g}: {SCORES[task.score].summary}", *_how_found(found)]
    if out is not None:
        lines.append(f"description: {out}")
    typer.echo("\n".join(lines))


def shape_lines(model: ModelSpec) -> list[str]:
    """A line for each block."""
    head = f"{'width':>7}{'layers':>8}{'hidden':>8}{'weights':>10}  mixer"
    return [head, *(_block_line(block, block.width or model.d_model) for block in model.blocks)]


def _block_line(block: BlockSpec, width: int) -> str:
    hidden = block.feed_forward.hidden if block.feed_forward is not None else 0
    weights = "shared" if block.share_weights and block.repeat > 1 else "own"
    fields = block.mixer.model_dump(exclude_defaults=True)
    settings = ", ".join(f"{name} {value}" for name, value in fields.items() if isinstance(value, int | float | str))
    return f"{width:>7}{block.repeat:>8}{hidden:>8}{weights:>10}  {block.mixer.kind}" + f" ({settings})" * bool(
        settings
    )


def _cost_lines(found: Found, tokens: int) -> list[str]:
    cost = cost_figures(found.model, tokens)
    flops = cost["flops_per_sequence"]
    return [
        f"parameters {numbers.metric(cost['parameters'])}, {numbers.metric(cost['decoder_parameters'])} of them in the"
        " decoder's blocks",
        f"forward FLOPs of {tokens:,} tokens {numbers.metric(flops['without_head'])} without output head,"
        f" {numbers.metric(flops['with_head'])} with it",
    ]


def _budget_line(budget: Budget, value: float) -> str:
    metric = budget.metric
    return f"budget: {metric.name} {metric.said(value)} of {metric.said(budget.limit)}"


def _how_found(found: Found) -> list[str]:
    evolved, optimum, lines = found.evolved, found.optimum, []
    if evolved is not None:
        lines.append(f"evolution: {evolved.score:,.6g}, {evolved.drawn:,} models drawn, {evolved.kept:,} within budget")
    if optimum is not None:
        gap = "" if found.gap is None else f"; evolution fell short of it by {found.gap:.3%}"
        lines.append(f"true optimum: {optimum.score:,.6g}{gap}")
    elif found.too_large:
        lines.append("true optimum: not known, there are too many models")
    return lines


def print_scores() -> None:
    """The registry."""
    width = max(map(len, SCORES))
    typer.echo("\n".join(f"{name:<{width}}  {score.summary}" for name, score in SCORES.items()))


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table, its first column to the left, the others to the right."""
    widths = [max(len(row[index]) for row in (columns, *rows)) for index in range(len(columns))]
    return [
        "  ".join(cell.ljust(width) if not index else cell.rjust(width) for index, (cell, width) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in (columns, *rows))
    ]
