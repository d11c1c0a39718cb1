"""What the vocabularies of several tokenizers cost one model, and bits per byte after training with equal FLOPs.

Costs are exact: of the model's description and of a text. How well a model predicts is not foreseen but measured, by
small trainings on the same text, of which the same documents are held out whatever the tokenizer.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from linnet.core.errors import UserError, note
from linnet.data.prepare import prepare
from linnet.data.tokenizer_report import TokenizerReport
from linnet.evaluation.text import evaluate_folder
from linnet.experiments.jobs import ExperimentStopped, Watching
from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec
from linnet.present import numbers
from linnet.present.result import Part, Result
from linnet.present.table import Table
from linnet.training.run import train
from linnet.training.runs import training_flops_per_token

HEAD_WIDTH, WIDTH_OF_A_LAYER = 64, 64
"""Of `plain_decoder`: the width of a head, and the model's width for each of its layers, as in GPT-2."""

MANY_EPOCHS = 4
"""Trainings that read their text more often than this are told."""


def plain_decoder(width: int, context_length: int = 1024) -> ModelSpec:
    """A decoder of attention and gated feed-forwards of a width, with a layer for each `WIDTH_OF_A_LAYER` of it."""
    if width < 8 or width % 8:
        raise UserError(field="width", value=width, accepted="a multiple of 8, such as 512")
    heads = next(count for count in range(max(1, width // HEAD_WIDTH), 0, -1) if width % (2 * count) == 0)
    block = {
        "repeat": max(1, round(width / WIDTH_OF_A_LAYER)),
        "mixer": {"kind": "attention", "heads": heads},
        "feed_forward": {"kind": "glu", "activation": "silu", "hidden": 8 * round(width / 3), "bias": False},
        "norm": {"kind": "rms", "placement": "pre"},
    }
    sizes = {"vocab_size": 1024, "d_model": width, "context_length": context_length}
    described = {
        "name": f"a decoder {width} wide",
        **sizes,
        "blocks": [block],
        "head": {"tied": True, "norm": {"kind": "rms"}},
    }
    return ModelSpec.parse(described, "width")


@dataclass(frozen=True)
class VocabularyCost:
    """What a tokenizer's vocabulary costs a model.

    kept: the share of the text's bytes that its tokens stand for. vocabulary_parameters: of the embedding's table, and
    of the head's matrix if it is another. share: theirs of all parameters. budget_share: theirs of a budget of
    parameters, None without one. flops_per_byte: forward FLOPs of a pass over the whole context for each byte of the
    text. context_bytes: the text that the context holds. bits_per_byte: on held-out text after equal training FLOPs,
    for each seed; empty if it was not measured.
    """

    tokenizer: str
    kind: str
    vocab_size: int
    tokens: int
    bytes_per_token: float
    unknown: int
    kept: float
    changed_hard_texts: int
    parameters: int
    vocabulary_parameters: int
    budget_share: float | None
    flops_per_byte: float
    context_bytes: int
    bits_per_byte: tuple[float, ...] = ()

    @property
    def share(self) -> float:
        return self.vocabulary_parameters / self.parameters


@dataclass(frozen=True)
class VocabularyComparison(Result):
    """Several tokenizers for one model. flops: of each training, None without one. seeds: trainings of each."""

    model: ModelSpec
    costs: tuple[VocabularyCost, ...]
    max_parameters: int | None = None
    flops: float | None = None

    def title(self) -> str:
        return f"What a vocabulary costs {self.model.name or 'the model'}"

    def to_dict(self) -> dict[str, Any]:
        rows = [{**asdict(cost), "vocabulary_share": cost.share} for cost in self.costs]
        limits = {"max_parameters": self.max_parameters, "training_flops": self.flops}
        return {"model": self.model.name, "context_length": self.model.context_length, **limits, "tokenizers": rows}

    def tables(self) -> list[Part]:
        """A row for each tokenizer; columns of what was not asked for are left out."""
        columns = ["tokenizer", "vocabulary", "bytes per token", "unknown", "parameters", "of the vocabulary"]
        columns += ["of the budget"] * (self.max_parameters is not None)
        columns += ["FLOPs per byte", "context, bytes"]
        columns += ["bits per byte"] * (self.flops is not None)
        return [Table("", tuple(columns), [self._row(cost) for cost in self.costs])]

    def _row(self, cost: VocabularyCost) -> tuple[str, ...]:
        cells = [cost.tokenizer, f"{cost.vocab_size:,}", f"{cost.bytes_per_token:.3f}"]
        cells += [f"{cost.unknown / max(1, cost.tokens):.2%}", numbers.metric(cost.parameters)]
        cells += [f"{numbers.metric(cost.vocabulary_parameters)} ({cost.share:.0%})"]
        cells += [] if cost.budget_share is None else [f"{cost.budget_share:.1%}"]
        cells += [numbers.metric(cost.flops_per_byte), f"{cost.context_bytes:,}"]
        if self.flops is not None:
            spread = f" ({min(cost.bits_per_byte):.4f} to {max(cost.bits_per_byte):.4f})"
            cells += [f"{mean(cost.bits_per_byte):.4f}{spread if len(cost.bits_per_byte) > 1 else ''}"]
        return tuple(cells)

    def conclusion(self) -> str:
        """Which is cheapest, and what that does not say."""
        cheapest = min(self.costs, key=lambda cost: cost.flops_per_byte)
        smallest = min(self.costs, key=lambda cost: cost.parameters)
        lines = [f"most bytes for a FLOP: {cheapest.tokenizer}; fewest parameters: {smallest.tokenizer}"]
        if self.max_parameters is not None:
            above = [cost.tokenizer for cost in self.costs if cost.parameters > self.max_parameters]
            lines += [f"more parameters than {numbers.metric(self.max_parameters)}: {', '.join(above)}"] * bool(above)
        if self.flops is None:
            return "\n".join([*lines, "bits per byte are not estimated; --flops N --out DIR measures them"])
        best, other = sorted(self.costs, key=lambda cost: mean(cost.bits_per_byte))[:2]
        behind = mean(other.bits_per_byte) / mean(best.bits_per_byte) - 1
        after = f"after {numbers.metric(self.flops)} training FLOPs"
        lines.append(f"fewest bits per byte {after}: {best.tokenizer}, {behind:.1%} fewer than {other.tokenizer}")
        if len(best.bits_per_byte) == 1:
            lines.append("one training of each: more --seeds show how much of a difference is chance")
        elif max(best.bits_per_byte) >= min(other.bits_per_byte):
            lines.append("their seeds overlap: the difference is not decided")
        lines.append(
            "the order can be another for a larger model or a longer training, which favour larger vocabularies"
        )
        for cost in self.costs:
            if cost.kept < 1:
                lines.append(f"{cost.tokenizer} keeps {cost.kept:.2%} of the bytes, and its bits per byte are of these")
        return "\n".join(lines)


def vocabulary_cost(
    name: str, report: TokenizerReport, spec: ModelSpec, max_parameters: int | None = None
) -> VocabularyCost:
    """The cost of one tokenizer's vocabulary for a model. name: of the tokenizer, as it is shown."""
    cost = model_cost(spec.replace(vocab_size=report.vocab_size))
    vocabulary = math.prod(cost.table) + (0 if cost.tied else math.prod(cost.head_matrix))
    flops_per_token = cost.flops_per_token(spec.context_length, with_head=True)
    return VocabularyCost(
        tokenizer=name,
        kind=report.kind,
        vocab_size=report.vocab_size,
        tokens=report.tokens,
        bytes_per_token=report.bytes_per_token,
        unknown=report.unknown,
        kept=report.token_bytes / max(1, report.bytes),
        changed_hard_texts=len(report.changed),
        parameters=cost.parameters,
        vocabulary_parameters=vocabulary,
        budget_share=None if max_parameters is None else vocabulary / max_parameters,
        flops_per_byte=flops_per_token / report.bytes_per_token,
        context_bytes=round(spec.context_length * report.bytes_per_token),
    )


@dataclass(frozen=True)
class TokenizerTraining:
    """Trainings with equal FLOPs, for the bits per byte of tokenizers.

    inputs, field, separator: the text, as in `prepare`. flops: of forward and backward passes. out: gets a folder for
    each tokenizer; the same call goes on where it was stopped.
    """

    inputs: Sequence[str]
    out: Path
    flops: float
    seeds: int = 1
    field: str | None = None
    separator: str | None = None

    def measure(self, number: int, path: Path, spec: ModelSpec, watching: Watching) -> tuple[float, ...]:
        """Bits per byte on held-out documents, for each seed. number, path: of the tokenizer.

        `ExperimentStopped` if a training was asked to stop; `UserError` for too few FLOPs.
        """
        folder = self.out / f"{number}-{path.stem if path.is_file() else path.name}"
        data = folder / "data"
        manifest = prepare(
            list(self.inputs), data, str(path), field=self.field, separator=self.separator, overwrite=data.exists()
        )
        spec = spec.replace(vocab_size=manifest.tokenizer.vocab_size)
        tokens = int(self.flops / training_flops_per_token(spec, spec.context_length))
        if tokens < spec.context_length:
            least = spec.context_length * training_flops_per_token(spec, spec.context_length)
            raise UserError(field="flops", value=f"{self.flops:g}", accepted=f"at least {least:.2g}, one window")
        epochs = tokens / manifest.splits["train"].tokens
        if epochs > MANY_EPOCHS:
            note(
                f"{path}: {numbers.metric(self.flops)} FLOPs read the text {epochs:.1f} times: a longer one tells more"
            )
        found = []
        for seed in range(self.seeds):
            fields, run = {"tokens": tokens, "seed": seed}, folder / f"seed-{seed}"
            with watching(f"{path.stem} {seed}") as reporter:
                done = train(run, model=spec, data=data, training=fields, recipe="auto", reporter=reporter)
            if not done.finished:
                raise ExperimentStopped(f"{folder} is not finished", done.signal)
            found.append(evaluate_folder(run, data).causal.bits_per_byte)
        return tuple(found)
