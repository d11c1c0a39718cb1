"""How much of the past can a state drop before predictions suffer? Bits per byte and memory for each cache policy.

Windows of text are read with every policy; the state of the layers that have a choice is measured after each token.
Shapes: `N` windows, `B` windows of a batch, `L` layers that have a choice of cache policies.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import json_safe
from linnet.data.loader import document_windows, evenly_spaced_batches
from linnet.data.split import Split
from linnet.evaluation.documents import WindowBatch
from linnet.evaluation.evaluator import WindowEvaluator, parse_cache_policies
from linnet.evaluation.likelihood import text_bytes
from linnet.evaluation.models import TOKENS_AT_ONCE, CalibrationText, text_model_on_data
from linnet.evaluation.statistics import ratio
from linnet.inference.cache_policy import chooses
from linnet.inspection.text_model import TextInspection
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.registry import CACHE_POLICIES, kinds_with_cache_policies
from linnet.layers.state import CachePolicyState
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.present.progress import progress
from linnet.present.result import Picture
from linnet.present.style import INK
from linnet.present.table import Table

MIN_SHOWN_PERCENT = 1e-3
"""Lower edge of the logarithmic scale of losses."""

MAX_SHOWN_PERCENT = 10
"""Loss at which the scale of bits per byte ends, so that small losses remain distinguishable."""

COLUMNS = 3


@dataclass(frozen=True)
class LayerContext:
    """The context of one layer in vectors of its width: the average over all tokens, and the largest."""

    layer: int
    average_context: float
    largest_context: int


@dataclass(frozen=True)
class CachePolicyOutcome:
    """The loss and the memory of one policy.

    difference: bits per byte more than with the full cache. standard_error: of the difference, over the windows; None
    with a single one. state_bytes: of the layers that have a choice, of one stream, averaged over all tokens.
    """

    policy: CachePolicy
    bits_per_byte: float
    difference: float
    standard_error: float | None
    state_bytes: float
    layers: Sequence[LayerContext]

    @property
    def average_context(self) -> float:
        return sum(layer.average_context for layer in self.layers) / len(self.layers)

    @property
    def largest_context(self) -> int:
        return max(layer.largest_context for layer in self.layers)

    @property
    def worse_percent(self) -> float:
        """The difference in percent of the bits per byte with the full cache."""
        return 100 * self.difference / (self.bits_per_byte - self.difference)

    def to_dict(self) -> dict[str, Any]:
        losses = ("bits_per_byte", "difference", "standard_error", "worse_percent")
        return {
            "context": self.policy.label,
            **asdict(self.policy),
            **{name: json_safe(getattr(self, name)) for name in losses},
            "average_context": self.average_context,
            "largest_context": self.largest_context,
            "state_bytes": self.state_bytes,
            "per_layer": [asdict(layer) for layer in self.layers],
        }


@dataclass(frozen=True)
class CachePolicyComparison(TextInspection):
    """The outcomes of all policies on the same windows, the full cache first.

    within_percent: a loss up to this counts as none. about: the model and the text.
    """

    subject: ClassVar[str] = "Contexts"

    windows: int
    tokens: int
    bytes: int
    context_length: int
    within_percent: float
    outcomes: Sequence[CachePolicyOutcome]
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def smallest(self) -> CachePolicyOutcome:
        """The outcome with the smallest average state among those without a loss."""
        good = [one for one in self.outcomes if one.worse_percent <= self.within_percent]
        return min(good, key=lambda one: (one.state_bytes, one.bits_per_byte), default=self.outcomes[0])

    @property
    def series(self) -> dict[str, list[CachePolicyOutcome]]:
        """The outcomes of policies that differ in one number, by the name of their series."""
        found: dict[str, list[CachePolicyOutcome]] = {}
        for one in self.outcomes:
            if one.policy.series is not None:
                found.setdefault(one.policy.series[0], []).append(one)
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.about,
            "windows": self.windows,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "context_length": self.context_length,
            "within_percent": self.within_percent,
            "smallest": self.smallest.policy.label,
            "contexts": [one.to_dict() for one in self.outcomes],
        }

    def tables(self) -> list[Table]:
        """Quality against memory, and the contexts of each layer."""
        rows = [
            (
                one.policy.label,
                f"{one.bits_per_byte:.4f}",
                numbers.signed(one.difference, 5),
                "one window" if one.standard_error is None else f"{one.standard_error:.5f}",
                f"{numbers.signed(one.worse_percent, 2)} %",
                f"{one.average_context:,.1f}",
                numbers.grouped(one.largest_context),
                numbers.binary(one.state_bytes),
            )
            for one in self.outcomes
        ]
        note = (
            f"Over {numbers.grouped(self.tokens)} tokens in {self.windows} windows of at most"
            f" {numbers.grouped(self.context_length)}, causal. Worse by: bits per byte more than with the full cache on"
            " the same text; ± its standard error over the windows. Context: vectors held after each token, averaged"
            " over tokens and layers, and the largest of one layer. State: average bytes of one stream in these layers."
        )
        columns = ("", "bits per byte", "worse by", "±", "", "average context", "largest context", "state")
        layers = [
            (one.policy.label, *(f"{layer.average_context:,.1f}" for layer in one.layers)) for one in self.outcomes
        ]
        return [
            Table("Quality against memory", columns, rows, note),
            Table(
                "Average context of each layer",
                ("", *(f"layer {layer.layer}" for layer in self.outcomes[0].layers)),
                layers,
                "Vectors held after each token, averaged over all tokens. The more slowly a layer's tokens decay, the"
                " more of them are above a threshold.",
            ),
        ]

    def plots(self) -> list[Picture]:
        return [
            Picture(
                "quality_against_memory",
                "Quality against memory",
                quality_plot(self),
                "The state is that of the layers that have a choice, averaged over all tokens. The upper panel ends at"
                f" a loss of {MAX_SHOWN_PERCENT} %. Lower panel: the loss relative to the full cache, and its standard"
                " error over the windows; points on the lower edge have no loss, or one below"
                f" {numbers.exact(MIN_SHOWN_PERCENT)} %. Points below the dotted line count as without loss.",
            ),
            Picture(
                "contexts_of_layers",
                "Average context of each layer",
                layers_plot(self),
                "Vectors held after each token, averaged over all tokens. With a threshold, each layer keeps what it"
                " needs; top_k gives all of them the same.",
            ),
        ]

    def conclusion(self) -> str:
        """The smallest state without a loss."""
        best, full, within = self.smallest, self.outcomes[0], f"{numbers.exact(self.within_percent)} %"
        if best is full:
            return f"No smaller state stays within {within} of the full cache: {numbers.binary(full.state_bytes)}."
        error = "" if best.standard_error is None else f" ± {best.standard_error:.5f}"
        share = numbers.ratio(100 * best.state_bytes, full.state_bytes)
        line = (
            f"The smallest state within {within} of the full cache: {best.policy.label},"
            f" {numbers.binary(best.state_bytes)} on average, {share} % of {numbers.binary(full.state_bytes)};"
            f" {numbers.signed(best.difference, 5)}{error} bits per byte."
        )
        if best.standard_error is None or best.standard_error > full.bits_per_byte * self.within_percent / 100:
            line += " Its standard error exceeds that limit: read more windows."
        if best.policy.series is not None:
            name = best.policy.series[0]
            if best is min(self.series[name], key=lambda one: one.state_bytes):
                line += f" No smaller state was tried with {name}."
        return line


def inspect_contexts(
    model: str | Path,
    data_folder: str | Path,
    split: Split = "validation",
    windows: int = 32,
    cache_policies: Sequence[str] = (),
    within_percent: float = 0.1,
    context_length: int | None = None,
    calibrate_on: CalibrationText = "train",
    device: str = "auto",
) -> CachePolicyComparison:
    """Read evenly spaced windows of a split with each cache policy, and compare.

    cache_policies: policies as text, beside the full cache and those that every comparison shows; without any, those
    that the kinds of layer suggest (`CachePolicy.sweep`). The windows are some of those of `evaluate_folder`, and the
    bits per byte with the full cache are its bits per byte on them. `UserError` if no layer of the model has a choice,
    or model and data do not fit.
    """
    found = text_model_on_data(model, data_folder, split, context_length, calibrate_on, device)
    decoder, context = found.decoder, found.context_length
    layers = [number for number, mixer in enumerate(decoder.mixers) if chooses(mixer)]
    if not layers:
        choosing = kinds_with_cache_policies()
        kinds = ", ".join(dict.fromkeys(block.mixer.kind for block in decoder.spec.blocks))
        raise UserError(f"{model}: has one cache policy: its token mixer is {kinds}; expected a model with {choosing}")
    policies = parse_cache_policies(cache_policies, context)
    if not cache_policies:
        sweep = [policy for kind in CACHE_POLICIES.values() for policy in kind.sweep(context)]
        policies = list(dict.fromkeys([*policies, *sweep]))

    cut = document_windows(found.sequence, context)
    at_once = max(1, TOKENS_AT_ONCE // context)
    batches = [
        WindowBatch(batch.tokens, batch.labels, torch.zeros_like(batch.targets)).to(decoder.device)
        for batch in evenly_spaced_batches(found.sequence, cut, at_once, windows)
    ]
    byte_counts = found.data.tokenizer.byte_counts().to(decoder.device)
    rows = [row for batch in batches for row in zip(batch.inputs_BT, batch.targets_BT, strict=True)]
    bytes_N = torch.stack([text_bytes(*row, byte_counts) for row in rows]).cpu()
    if not bytes_N.any():
        raise UserError(f"the {len(bytes_N)} windows contain no text; read more `windows`")
    evaluator = WindowEvaluator.create(decoder, found.calibration(), context, TOKENS_AT_ONCE)
    about = {"model": str(model), "data": str(data_folder), "split": split, "calibrate_on": calibrate_on}
    return compare(evaluator, batches, bytes_N, policies, layers, context, within_percent, about)


def compare(
    evaluator: WindowEvaluator,
    batches: Sequence[WindowBatch],
    bytes_N: Tensor,
    policies: Sequence[CachePolicy],
    layers: Sequence[int],
    context_length: int,
    within_percent: float,
    about: dict[str, Any] | None = None,
) -> CachePolicyComparison:
    """Read the windows with each policy, `FULL` first; every token has the same weight.

    bytes_N: UTF-8 bytes of each window's targets. layers: the numbers of the layers that have a choice.
    """
    assert policies[0] == FULL, "the policy that the others are compared with"
    lengths_N = torch.cat([batch.lengths_B for batch in batches]).cpu()
    tokens, outcomes = int(lengths_N.sum()), []
    full: WindowReadings | None = None
    with progress("reading", len(policies) * len(lengths_N), "windows") as advance:
        for policy in policies:
            parts = []
            for batch in batches:
                parts.append(read_windows(evaluator, batch, policy))
                advance(len(batch.lengths_B), policy.label)
            names = [one.name for one in fields(WindowReadings)]
            found = WindowReadings(*(torch.cat([getattr(part, name) for part in parts]) for name in names))
            full = full or found
            difference = ratio(((found.nats_B - full.nats_B) / math.log(2)).numpy(), bytes_N.numpy())
            means_L = (lengths_N.double() @ found.mean_sizes_BL / tokens).tolist()
            largest_L = found.largest_sizes_BL.amax(0).long().tolist()
            outcome = CachePolicyOutcome(
                policy,
                float(found.nats_B.sum()) / math.log(2) / int(bytes_N.sum()),
                difference.value,
                difference.standard_error,
                float((lengths_N.double() @ found.nbytes_BL).sum()) / tokens,
                [LayerContext(*layer) for layer in zip(layers, means_L, largest_L, strict=True)],
            )
            outcomes.append(outcome)
    return CachePolicyComparison(
        len(lengths_N), tokens, int(bytes_N.sum()), context_length, within_percent, outcomes, about or {}
    )


@dataclass(frozen=True)
class WindowReadings:
    """For each window: nats `[B]`; average and largest size of each context, and its bytes, `[B, L]`.

    Sizes and bytes are those after every token, averaged over the window. All on the CPU, in float64.
    """

    nats_B: Tensor
    mean_sizes_BL: Tensor
    largest_sizes_BL: Tensor
    nbytes_BL: Tensor


@torch.no_grad()
def read_windows(evaluator: WindowEvaluator, batch: WindowBatch, policy: CachePolicy) -> WindowReadings:
    """Read each window of a batch, which is on the decoder's device, in one pass with an empty state."""
    decoder, lengths_B = evaluator.decoder, batch.lengths_B
    padded, padding_B = batch.left_padded()
    rows, length = batch.inputs_BT.shape
    state = evaluator.policy_state(rows, length, policy)
    hidden_BTD = decoder.hidden(padded.inputs_BT, state, padding=padding_B if bool(padding_B.any()) else None)
    nats = [decoder.token_loss(hidden_BTD[row : row + 1], padded.targets_BT[row : row + 1]).nats for row in range(rows)]

    def columns(of_layers: Iterable[Tensor]) -> Tensor:
        return torch.stack([values_B.double().cpu() for values_B in of_layers], dim=1)

    held = [layer for layer in state.layers if isinstance(layer, CachePolicyState)]
    return WindowReadings(
        torch.stack(nats).double().cpu(),
        columns(layer.mean_sizes(lengths_B) for layer in held),
        columns(layer.largest_sizes(lengths_B) for layer in held),
        columns(layer.mean_nbytes(lengths_B) for layer in held),
    )


def quality_plot(found: CachePolicyComparison) -> Plot:
    """Two panels over the size of the state: bits per byte, and the loss in percent on a logarithmic scale."""
    full_bits, sizes = found.outcomes[0].bits_per_byte, [one.state_bytes for one in found.outcomes]
    x = Axis("state, average", "log2", numbers.binary, min(sizes) / 1.4, max(sizes) * 1.4)

    # Bits per byte with a margin, cut off where the loss is too large to be of interest.
    bits = [one.bits_per_byte for one in found.outcomes if math.isfinite(one.bits_per_byte)] or [0.0]
    margin = 0.15 * (max(bits) - min(bits)) or 0.05
    high = min(max(bits) + margin, full_bits * (1 + MAX_SHOWN_PERCENT / 100))
    bits_axis = Axis("bits per byte", low=min(bits) - margin, high=high)

    worst = max((one.worse_percent for one in found.outcomes if math.isfinite(one.worse_percent)), default=0)
    high = 3 * max(worst, found.within_percent, MIN_SHOWN_PERCENT)
    loss_axis = Axis("worse than the full cache", "log", lambda value: f"{numbers.exact(value)} %",
                     MIN_SHOWN_PERCENT / 3, high)  # fmt: skip
    within = [Rule(found.within_percent, style=":")] if found.within_percent > MIN_SHOWN_PERCENT else []

    def shown(percent: float) -> float:
        return max(percent, MIN_SHOWN_PERCENT) if math.isfinite(percent) else math.nan

    losses = _size_series(found, lambda one: shown(one.worse_percent))
    for one in found.outcomes[1:]:
        if one.standard_error is not None and math.isfinite(one.worse_percent):
            error = 100 * one.standard_error / (one.bits_per_byte - one.difference)
            ends = [shown(one.worse_percent - error)], [shown(one.worse_percent + error)]
            losses.append(Series([one.state_bytes], [shown(one.worse_percent)], "", ",", INK, *ends))
    panels = [
        Panel(x, bits_axis, _size_series(found, lambda one: one.bits_per_byte), rules=[Rule(full_bits, style="-")]),
        Panel(x, loss_axis, losses, rules=within),
    ]
    return Plot(panels, (9.0, 4.0), shared="x")


def _size_series(found: CachePolicyComparison, value: Callable[[CachePolicyOutcome], float]) -> list[Series]:
    """A line over the size of the state for each series, with labeled points; a mark for each single policy."""
    drawn = []
    for number, (name, line) in enumerate(found.series.items()):
        labels = [one.policy.series[1] for one in line if one.policy.series is not None]
        drawn.append(
            Series([one.state_bytes for one in line], list(map(value, line)), name, "o-", number, labels=labels)
        )
    for one in found.outcomes:
        if one.policy.series is not None:
            continue
        mark = "*" if one.policy == FULL else "D"
        drawn.append(Series([one.state_bytes], [value(one)], one.policy.label, mark, INK, large=True))
    return drawn


def layers_plot(found: CachePolicyComparison) -> Plot:
    """The average context over the layers: a panel for each series, with the single policies in all of them."""
    layers = range(len(found.outcomes[0].layers))

    def line(one: CachePolicyOutcome, name: str, style: str, color: Any) -> Series:
        return Series(layers, [layer.average_context for layer in one.layers], name, style, color)

    singles = [
        line(one, one.policy.label, "o:" if one.policy == FULL else "o--", INK)
        for one in found.outcomes
        if one.policy.series is None
    ]
    places = {number: str(layer.layer) for number, layer in enumerate(found.outcomes[0].layers)}
    x = Axis("layer", low=-0.3, high=len(layers) - 0.7, places=places)
    y = Axis("average context, vectors", "log")
    panels = []
    for name, outcomes in (found.series or {"": []}).items():
        shades = [number / max(1, len(outcomes) - 1) for number in range(len(outcomes))]
        own = [
            line(one, one.policy.series[1] if one.policy.series else "", "o-", shade)
            for one, shade in zip(outcomes, shades, strict=True)
        ]
        panels.append(Panel(x, y, [*singles, *own], name))
    return Plot(panels, (5.0, 4.2), min(COLUMNS, len(panels)), names="ends", shared="y")
