"""A plan as tables, as figures and as a picture."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Series
from linnet.present.result import Commands, Picture
from linnet.present.style import INK
from linnet.present.table import Table
from linnet.scaling.counts import NGRAM
from linnet.scaling.data_at_hand import MOST_EPOCHS, WARNING_SOURCE
from linnet.scaling.law import FLOPS_FACTOR, Allocation
from linnet.scaling.plan import Plan, Prediction
from linnet.scaling.throughput import Throughput

LOSSES = (
    "Nats per token. A law holds for its own text and tokenizer, and tokenizers differ, so losses are not comparable"
    " between laws, nor with yours. Bits per byte: if a token of the law's stood for as many bytes as one of yours."
    " Best size: how the law divides the same FLOPs, by its own way of counting parameters (kaplan's loss there and its"
    " loss of a plan are two fits, which do not agree). *: beyond the sizes that the law was fitted to."
)

PURPOSES = {
    "describe": "Write the plain shape's description:",
    "train": "Train it (DIR: the text, prepared):",
    "search": "Look for a better shape of the same cost:",
    "train_found": "Train that:",
}


def plan_parts(plan: Plan, follow: Mapping[str, str]) -> list[Table | Commands]:
    """The plan, the laws, and the commands that follow (`commands`)."""
    lines = {PURPOSES[name]: [command] for name, command in follow.items()}
    return [_plan_table(plan), _law_table(plan), Commands("Commands", lines)]


SAME_SIZE = 1.2
"""Ratio of the plain shape's parameters to the law's up to which nothing is said."""


def warnings(plan: Plan) -> list[str]:
    """What to think about before training, a line each; first what is known against the law."""
    found = [f"{plan.law.name}: {line}" for line in plan.law.warnings]
    if (useful := plan.useful_from) is not None:
        found.append(_useless(plan, useful))
    if plan.epochs is not None and plan.epochs > MOST_EPOCHS:
        found.append(
            f"the text is seen {plan.epochs:.1f} times; above {MOST_EPOCHS} epochs repeated text is worth less and less"
            f" ({WARNING_SOURCE}), and no law here knows of it"
        )
    if plan.tokens < plan.tokens_per_step:
        found.append(
            f"training is less than one step: {plan.tokens:,} of {plan.setting.batch_size} x"
            f" {plan.setting.context_length:,} tokens; at least {plan.tokens_per_step:,} make a step, by a larger"
            " budget, or smaller batches or a shorter context"
        )
    size, wanted = plan.counts.by_name()[plan.law.counted], plan.allocation.parameters
    if not 1 / SAME_SIZE < size / wanted < SAME_SIZE:
        found.append(
            f"the nearest plain shape has {size / wanted:.2f} times the parameters that the law asks for; with"
            f" {plan.model.vocab_size:,} tokens in the vocabulary shapes of this size differ much: try a smaller one"
        )
    uniform = math.log(plan.model.vocab_size)
    beyond = [one.law.name for one in plan.predictions if one.loss > uniform]
    if beyond:
        found.append(
            f"{', '.join(beyond)}: a loss above {uniform:.2f}, that of guessing among {plan.model.vocab_size:,} tokens,"
            " says only that the law does not reach down to this size"
        )
    return found


def _useless(plan: Plan, useful: Allocation) -> str:
    model, in_tokens = plan.model, 1 - plan.counts.without_embedding / plan.counts.total
    layers = "1 layer" if model.layers == 1 else f"{model.layers} layers"
    return (
        f"this budget buys nothing useful: {layers} of width {model.d_model}, and {in_tokens:.0%} of the parameters in"
        f" the {model.vocab_size:,} tokens of the vocabulary; two layers that have more than the tokens take about"
        f" {numbers.scientific(useful.flops)} FLOPs by {plan.law.name}, {numbers.metric(useful.parameters)} parameters"
    )


def plan_figures(plan: Plan, follow: Mapping[str, str]) -> dict[str, Any]:
    """All figures and the commands that follow, ready for JSON."""
    losses = [one.loss for one in plan.predictions]
    return {
        "law": plan.law.name,
        "parameters": {"by_law": plan.allocation.parameters, "counted": plan.law.counted, **plan.counts.by_name()},
        "tokens": plan.tokens,
        "tokens_per_parameter": plan.tokens / plan.counts.by_name()[plan.law.counted],
        "training_flops": {"6ND": plan.allocation.flops, "exact": plan.exact_flops},
        "steps": plan.steps,
        "tokens_per_step": plan.tokens_per_step,
        "wall_s": plan.wall_s,
        "throughput": vars(plan.throughput),
        "data": _data_figures(plan),
        "laws": {one.law.name: one.figures() for one in plan.predictions},
        "loss_spread": {"lowest": min(losses), "highest": max(losses)},
        "model": plan.model.model_dump(mode="json"),
        "commands": dict(follow),
        "warnings": warnings(plan),
    }


def _plan_table(plan: Plan) -> Table:
    counted = plan.counts.by_name()[plan.law.counted]
    layers, width = plan.model.layers, plan.model.d_model
    rows = [
        ("parameters", f"{plan.counts.total:,}", f"a plain shape: {layers} layers of width {width}"),
        *(
            (f"  {name.replace('_', ' ')}", f"{value:,.0f}", NGRAM[name])
            for name, value in plan.counts.by_name().items()
            if name != "total"
        ),
        ("  by the law", f"{plan.allocation.parameters:,.0f}", f"{plan.law.name}, {NGRAM[plan.law.counted]}"),
        ("tokens", f"{plan.tokens:,}", f"{plan.tokens / counted:,.1f} for each parameter"),
        ("training FLOPs", numbers.scientific(plan.allocation.flops), "6 N D, as the laws count"),
        ("  exactly", numbers.scientific(plan.exact_flops), "of the plain shape, with attention's scores and the head"),
        ("steps", f"{plan.steps:,}", f"of {plan.setting.batch_size} x {plan.setting.context_length:,} tokens"),
        ("time in steps", numbers.duration(plan.wall_s), _speed(plan.throughput)),
        *_data_rows(plan),
    ]
    return Table("Plan", ("", "", ""), rows, "What the budget buys, and what it takes.", text=True)


def _speed(throughput: Throughput) -> str:
    speed = f"at {numbers.scientific(throughput.flops_per_s)} FLOP/s"
    if throughput.parameters is None:
        return f"{speed}, as given"
    return f"{speed}, measured on {throughput.device} with {numbers.metric(throughput.parameters)} parameters"


def _data_rows(plan: Plan) -> list[tuple[str, str, str]]:
    if plan.data is None or plan.epochs is None:
        return []
    data = plan.data
    rows = [("epochs", f"{plan.epochs:,.2f}", f"of {data.folder}, {data.tokens:,} tokens")]
    if plan.epochs > 1:
        rows.append(("  worth", f"{data.worth(plan.tokens):,.0f}", f"new tokens, by {WARNING_SOURCE}"))
    return rows


def _data_figures(plan: Plan) -> dict[str, Any] | None:
    if plan.data is None:
        return None
    return {
        "path": str(plan.data.folder),
        "tokens": plan.data.tokens,
        "bytes_per_token": plan.data.bytes_per_token,
        "epochs": plan.epochs,
        "worth_tokens": plan.data.worth(plan.tokens),
    }


def _law_table(plan: Plan) -> Table:
    columns = ("", "best size", "its tokens", "its loss", "loss of this plan", "bits per byte", "any text", "any size")
    rows = [_law_row(one) for one in plan.predictions]
    spreads = [_spread([one.loss_at_best for one in plan.predictions]), _spread([one.loss for one in plan.predictions])]
    if len(rows) > 1:
        rows.append(("highest - lowest", "", "", *spreads, "", "", ""))
    limits = " any text: the planned size with unlimited text; any size: the planned tokens with no limit to the size."
    return Table("What the laws expect", columns, rows, LOSSES + limits)


def _law_row(one: Prediction) -> tuple[str, ...]:
    bits = one.bits_per_byte
    return (
        one.law.name + ("*" if one.extrapolated else ""),
        numbers.metric(one.best.parameters),
        numbers.metric(one.best.tokens),
        f"{one.loss_at_best:.3f}",
        f"{one.loss:.3f}",
        "" if bits is None else f"{bits:.3f}",
        f"{one.loss_of_parameters:.3f}",
        f"{one.loss_of_tokens:.3f}",
    )


def _spread(losses: list[float]) -> str:
    return f"{max(losses) - min(losses):.3f}"


FACTOR, SIZES = 30.0, 121
"""How far the sizes reach to both sides of the plan's, and how many are drawn."""


def plan_pictures(plan: Plan) -> list[Picture]:
    """The loss over the size, at the plan's FLOPs."""
    drawn, flops = [], plan.allocation.flops
    for number, one in enumerate(plan.predictions):
        here = plan.counts.by_name()[one.law.counted]
        sizes = np.geomspace(here / FACTOR, here * FACTOR, SIZES)
        losses = one.law.loss(sizes, flops / (FLOPS_FACTOR * sizes))
        best = one.law.loss(one.best.parameters, one.best.tokens)
        name = f"{one.law.name}, {one.law.counted.replace('_', ' ')}"
        drawn += [
            Series(sizes, losses, name, color=number),
            Series([here], [one.loss], style="o", color=number),
            Series([one.best.parameters], [best], style="x", color=number, large=True),
        ]
    drawn += [Series([], [], "the plan", "o", INK), Series([], [], "the law's own best size", "x", INK, large=True)]
    x = Axis("parameters, as the law counts them", "log", numbers.metric)
    caption = (
        f"The loss that each law gives for {numbers.scientific(flops)} training FLOPs, spent on models of other sizes."
        " The flatter the valley, the less the size matters. Heights are not comparable between laws: their tokenizers"
        " differ. kaplan's best size is not the lowest point of its curve: the two are separate fits."
    )
    plot = Plot([Panel(x, Axis("loss, nats per token of the law's text"), drawn)])
    return [Picture("plan", "Other sizes for the same FLOPs", plot, caption)]
