"""The result of `linnet plan`: tables, a picture, warnings, and the commands that follow from a plan."""

import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linnet.model.cost import model_cost
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Series
from linnet.present.result import Commands, Part, Picture, Result
from linnet.present.style import INK
from linnet.present.table import MISSING, Table
from linnet.scaling.candidate import COUNTING_DESCRIPTIONS
from linnet.scaling.law import FLOPS_FACTOR
from linnet.scaling.plan import MAX_EPOCHS, REPETITION_SOURCE, Plan

PURPOSES = {
    "describe": "Write the plain shape's description:",
    "train": "Train it (DIR: the data folder):",
    "search": "Search for a better shape of the same cost:",
    "train_found": "Train that shape:",
}
PLANNED, DESIGNED, ANY_DATA = Path("planned.yaml"), Path("designed.yaml"), "DIR"

SAME_SIZE = 1.2
"""Ratio of the plain decoder's parameters to the law's up to which there is no warning."""

MAX_DRAWN = 1e30
"""Matplotlib cannot place a loss close to the end of the floating-point numbers."""

FACTOR, SIZES = 30.0, 121
"""Range of the plotted sizes to both sides of the plan's, and how many are plotted."""


@dataclass(frozen=True)
class PlanReport(Result):
    """A plan; out: the file to which the plain decoder's description was written, if any."""

    plan: Plan
    out: Path | None = None

    def title(self) -> str:
        return "Plan by the law"

    def facts(self) -> dict[str, str]:
        return {"law": f"{self.plan.law.name}, {self.plan.law.source or 'no source given'}"}

    def to_dict(self) -> dict[str, Any]:
        plan = self.plan
        counts, losses = plan.counts.by_name(), [one.loss for one in plan.predictions]
        text = plan.text and {
            "path": str(plan.text.folder),
            "tokens": plan.text.tokens,
            "bytes_per_token": plan.text.bytes_per_token,
            "epochs": plan.epochs,
            "budget_tokens": plan.budget_tokens,
            "worth_tokens": plan.text.equivalent_tokens(plan.tokens),
        }
        laws = {
            one.law.name: {
                "source": one.law.source,
                "parameters_counted": one.law.counted,
                "best": {"parameters": one.best.parameters, "tokens": one.best.tokens, "loss": one.loss_at_best},
                "loss": one.loss,
                "above_guessing": one.loss > math.log(plan.model.vocab_size),
                "bits_per_byte": one.bits_per_byte,
                "loss_with_unlimited_tokens": one.loss_of_parameters,
                "loss_with_unlimited_parameters": one.loss_of_tokens,
                "extrapolated": one.extrapolated,
            }
            for one in plan.predictions
        }
        return {
            "law": plan.law.name,
            "parameters": {"by_law": plan.allocation.parameters, "counted": plan.law.counted, **counts},
            "tokens": plan.tokens,
            "tokens_per_parameter": plan.tokens / counts[plan.law.counted],
            "training_flops": {"6ND": plan.allocation.flops, "exact": plan.exact_flops},
            "steps": plan.steps,
            "tokens_per_step": plan.tokens_per_step,
            "wall_s": plan.wall_s,
            "throughput": vars(plan.throughput),
            "data": text,
            "laws": laws,
            "loss_spread": {"lowest": min(losses), "highest": max(losses)},
            "model": plan.model.model_dump(mode="json"),
            "commands": next_commands(plan, self.out),
            "warnings": plan_warnings(plan),
        }

    def tables(self) -> list[Part]:
        lines = {PURPOSES[name]: [command] for name, command in next_commands(self.plan, self.out).items()}
        return [_plan_table(self.plan), _law_table(self.plan), Commands("Commands", lines)]

    def plots(self) -> list[Picture]:
        """Plot the loss over the size, at the plan's FLOPs."""
        plan, flops = self.plan, self.plan.allocation.flops
        lines: list[Series] = []
        for number, one in enumerate(plan.predictions):
            planned = plan.counts.by_name()[one.law.counted]
            sizes = np.geomspace(planned / FACTOR, planned * FACTOR, SIZES)
            of_sizes = one.law.loss(sizes, flops / (FLOPS_FACTOR * sizes))
            of_best = one.law.loss(one.best.parameters, one.best.tokens)
            losses, best, loss = (np.minimum(values, MAX_DRAWN) for values in (of_sizes, of_best, one.loss))
            lines += [
                Series(sizes, losses, f"{one.law.name}, {one.law.counted.replace('_', ' ')}", color=number),
                Series([planned], [loss], style="o", color=number),
                Series([one.best.parameters], [best], style="x", color=number, large=True),
            ]
        lines += [Series([], [], "the plan", "o", INK), Series([], [], "the law's own best size", "x", INK, large=True)]
        x = Axis("parameters, as the law counts them", "log", numbers.metric)
        caption = (
            f"The loss by each law for {numbers.scientific(flops)} training FLOPs spent on models of other sizes. The"
            " flatter the valley, the less the size matters. Heights are not comparable between laws, as their"
            " tokenizers differ. kaplan's best size is not the lowest point of its curve: the two are separate fits."
        )
        plot = Plot([Panel(x, Axis("loss, nats per token of the law's text"), lines)])
        return [Picture("plan", "Other sizes for the same FLOPs", plot, caption)]


def _plan_table(plan: Plan) -> Table:
    counts, setting, throughput = plan.counts.by_name(), plan.setting, plan.throughput
    counted = plan.law.counted
    speed = f"at {numbers.scientific(throughput.flops_per_s)} FLOP/s"
    if throughput.parameters is None:
        speed += ", as given"
    else:
        speed += f", measured on {throughput.device} with {numbers.metric(throughput.parameters)} parameters"
    rows = [
        (
            "parameters",
            f"{plan.counts.total:,}",
            f"a plain shape: {numbers.counted(plan.model.layers, 'layer')} of width {plan.model.d_model}",
        ),
        *(
            (f"  {name.replace('_', ' ')}", f"{value:,.0f}", COUNTING_DESCRIPTIONS[name])
            for name, value in counts.items()
            if name != "total"
        ),
        (
            "  by the law",
            f"{plan.allocation.parameters:,.0f}",
            f"{plan.law.name}, {COUNTING_DESCRIPTIONS[counted]}",
        ),
        ("tokens", f"{plan.tokens:,}", f"{plan.tokens / counts[counted]:,.1f} for each parameter"),
        ("training FLOPs", numbers.scientific(plan.allocation.flops), "6 N D, as the laws count"),
        ("  exactly", numbers.scientific(plan.exact_flops), "of the plain shape, with attention's scores and the head"),
        ("steps", f"{plan.steps:,}", f"of {setting.batch_size} x {setting.context_length:,} tokens"),
        ("time in steps", numbers.duration(plan.wall_s), speed),
    ]
    if plan.text is not None and plan.epochs is not None:
        rows.append(("epochs", f"{plan.epochs:,.2f}", f"of {plan.text.folder}, {plan.text.tokens:,} tokens"))
        if plan.epochs > 1:
            worth = f"{plan.text.equivalent_tokens(plan.tokens):,.0f}"
            rows.append(("  worth", worth, f"new tokens, by {REPETITION_SOURCE}"))
    return Table("Plan", ("", "", ""), rows, "What the budget buys, and what training takes.", text=True)


def _law_table(plan: Plan) -> Table:
    uniform = math.log(plan.model.vocab_size)  # a loss above it is no prediction (`plan_warnings`)
    rows: list[tuple[str, ...]] = [
        (
            one.law.name + ("*" if one.extrapolated else ""),
            numbers.metric(one.best.parameters),
            numbers.metric(one.best.tokens),
            f"{one.loss_at_best:.3f}",
            MISSING if one.loss > uniform else f"{one.loss:.3f}",
            "" if one.bits_per_byte is None or one.loss > uniform else f"{one.bits_per_byte:.3f}",
            f"{one.loss_of_parameters:.3f}",
            f"{one.loss_of_tokens:.3f}",
        )
        for one in plan.predictions
    ]
    if len(rows) > 1:
        columns = ([one.loss_at_best for one in plan.predictions], [one.loss for one in plan.predictions])
        known = [[loss for loss in column if loss <= uniform] if column is columns[1] else column for column in columns]
        ranges = (f"{max(column) - min(column):.3f}" if len(column) > 1 else MISSING for column in known)
        rows.append(("highest - lowest", "", "", *ranges, "", "", ""))
    meaning = (
        "Nats per token. A law holds for its own text and tokenizer, and tokenizers differ, so losses are not"
        " comparable between laws, nor with yours. Best size: how the law divides the same FLOPs, by its own way of"
        " counting parameters (kaplan's loss there and its loss of a plan come from two fits, which do not agree). Bits"
        " per byte: if a token of the law's text stood for as many bytes as one of yours. any text: the planned size"
        " with unlimited text; any size: the planned tokens with unlimited size. *: outside the sizes that the law was"
        " fitted to."
    )
    names = ("", "best size", "its tokens", "its loss", "loss of this plan", "bits per byte", "any text", "any size")
    return Table("Predictions of the laws", names, rows, meaning)


def plan_warnings(plan: Plan) -> list[str]:
    """Return what a user should consider before training, one line each, beginning with warnings about the law."""
    model, setting = plan.model, plan.setting
    found = [f"{plan.law.name}: {line}" for line in plan.law.warnings]
    if (useful := plan.useful_from) is not None:
        in_tokens = 1 - plan.counts.without_embedding / plan.counts.total
        layers = numbers.counted(model.layers, "layer")
        found.append(
            f"this budget buys nothing useful: {layers} of width {model.d_model}, and {in_tokens:.0%} of the parameters"
            f" in the {model.vocab_size:,} tokens of the vocabulary; two layers with more parameters than the tokens"
            f" take about {numbers.scientific(useful.flops)} FLOPs by {plan.law.name},"
            f" {numbers.metric(useful.parameters)} parameters"
        )
    if plan.budget_tokens is not None and plan.text is not None:
        passes = plan.budget_tokens / plan.text.tokens
        found.append(
            f"the budget would see the text {passes:.1f} times; planned are {plan.tokens / plan.text.tokens:.0f}"
            f" epochs, beyond which repeated text is worth less and less ({REPETITION_SOURCE}), and the size for them:"
            f" {plan.exact_flops / plan.throughput.flops_per_s / 3600:.3g} hours; a longer text would use the rest"
        )
    if plan.epochs is not None and plan.epochs > MAX_EPOCHS:
        found.append(
            f"the text is seen {plan.epochs:.1f} times; beyond {MAX_EPOCHS} epochs repeated text is worth less and less"
            f" ({REPETITION_SOURCE}), which no law here takes into account"
        )
    if plan.tokens < plan.tokens_per_step:
        found.append(
            f"training is less than one step: {plan.tokens:,} of {setting.batch_size} x {setting.context_length:,}"
            f" tokens; a step needs at least {plan.tokens_per_step:,}: use a larger budget, smaller batches or a"
            " shorter context"
        )
    size, requested = plan.counts.by_name()[plan.law.counted], plan.allocation.parameters
    if not 1 / SAME_SIZE < size / requested < SAME_SIZE:
        found.append(
            f"the nearest plain shape has {size / requested:.2f} times the parameters that the law asks for; with"
            f" {model.vocab_size:,} tokens in the vocabulary, shapes of this size differ much: try a smaller vocabulary"
        )
    uniform = math.log(model.vocab_size)
    too_high = [one.law.name for one in plan.predictions if one.loss > uniform]
    if too_high:
        found.append(
            f"{', '.join(too_high)}: a loss above {uniform:.2f}, that of guessing among {model.vocab_size:,} tokens,"
            " only means that the law does not extend down to this size; it predicts none"
        )
    return found


def space_file(out: Path) -> Path:
    """Return the path of the search space around a plan's shape, beside its description."""
    return out.with_name(f"{out.stem}-space.yaml")


def next_commands(plan: Plan, out: Path | None) -> dict[str, str]:
    """Return the commands that follow from a plan by their purpose (`PURPOSES`), ready for a shell.

    out: the file of the plain decoder's description, if it is written already.
    """
    cost, description = model_cost(plan.model), out or PLANNED

    def train(model: Path) -> str:
        fields = {
            "tokens": plan.tokens,
            "batch_size": plan.setting.batch_size,
            "context_length": plan.setting.context_length,
        }
        changes = [part for name, value in fields.items() for part in ("--set", f"training.{name}={value}")]
        folder = ANY_DATA if plan.text is None else str(plan.text.folder)
        places = ["--model", str(model), "--data", folder, "--out", f"runs/{model.stem}", "--recipe", "auto"]
        return shlex.join(["linnet", "train", *places, *changes])

    # The same plan again with its size and tokens: nothing is measured again, so the result is the same.
    again = {
        "parameters": round(plan.allocation.parameters),
        "tokens": plan.tokens,
        "law": plan.law.name,
        "vocab-size": plan.model.vocab_size,
        "context-length": plan.setting.context_length,
        "batch-size": plan.setting.batch_size,
        "throughput": numbers.scientific(plan.throughput.flops_per_s),
        "out": PLANNED,
    }
    # The search for a better shape with no more parameters and FLOPs than the plain one.
    limits = {
        "space": space_file(description),
        "max-flops": cost.flops(plan.model.context_length, with_head=False),
        "tokens": plan.model.context_length,
        "max-parameters": cost.parameters,
        "out": DESIGNED,
    }
    describe, search = (
        shlex.join(["linnet", verb, *(part for name, value in options.items() for part in (f"--{name}", str(value)))])
        for verb, options in (("plan", again), ("design", limits))
    )
    commands = {} if out is not None else {"describe": describe}
    return commands | {"train": train(description), "search": search, "train_found": train(DESIGNED)}
