"""How the past of a stream is kept in the layers that leave it to choose (TED's): all of it, what a policy leaves, or a
bank of sums.

The choice is made per stream, for all layers alike or for each one; other layers keep what they always keep.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from linnet.core.errors import UserError
from linnet.layers.contract import Mixer
from linnet.layers.registry import kinds_with_retentions
from linnet.layers.retention import FULL, RETENTIONS, BankRetention, FullRetention, Retention
from linnet.layers.state import RetainingState
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState
from linnet.ops.decay.eviction import EvictionPolicy
from linnet.present.numbers import plain

Retentions = Retention | Sequence[Retention]
"""One for every layer that leaves it to choose, or one per layer of the model (`FULL` for the others)."""


def retaining_state(
    decoder: Decoder, batch: int, capacity: int, retention: Retentions = FULL, device: torch.device | None = None
) -> DecoderState:
    """An empty state for `batch` streams of at most `capacity` tokens; `UserError` as from `layer_retentions`.

    With a policy or a bank memory does not follow the capacity; a bank's bound holds for that many tokens.
    """
    return decoder.initial_state(batch, capacity, layer_retentions(decoder, retention), device=device)


def chooses(mixer: Mixer) -> bool:
    """Whether the mixer leaves it to choose how the past is kept."""
    return len(mixer.retentions) > 1


def layer_retentions(decoder: Decoder, retention: Retentions) -> list[Retention]:
    """One for each layer of the model; `UserError` where there are too many or too few, or a layer cannot choose."""
    can = [chooses(mixer) for mixer in decoder.mixers]
    given = retention if isinstance(retention, Sequence) and not isinstance(retention, str) else [retention]
    for choice in given:
        if not isinstance(choice, tuple(RETENTIONS.values())):
            raise UserError(f"retention: {choice!r}: expected {FULL}, an EvictionPolicy or a BankRetention")
    kinds = kinds_with_retentions()
    if not isinstance(retention, Sequence):
        if retention != FULL and not any(can):
            raise UserError(f"retention: {retention}: the model has no {kinds} layer; expected {FULL}")
        return [retention if one else FULL for one in can]
    if len(retention) != len(can):
        raise UserError(f"retention: {len(retention)} of them: expected one, or one for each of {len(can)} layers")
    for index, (choice, one) in enumerate(zip(retention, can, strict=True)):
        if choice != FULL and not one:
            raise UserError(f"retention: layer {index}: {choice}: the layer is not {kinds}; expected {FULL}")
    return list(retention)


def retentions_of(state: DecoderState) -> list[Retention]:
    """What `retaining_state` was told, layer by layer."""
    return [layer.retention if isinstance(layer, RetainingState) else FULL for layer in state.layers]


@dataclass(frozen=True)
class LayerSize:
    """How much a layer holds of one stream.

    layer: its number in the model. size: vectors of the layer's width that it holds now. mean_size: the same, taken
    after every token so far and averaged.
    """

    layer: int
    retention: Retention
    size: int
    mean_size: float


def layer_sizes(state: DecoderState, row: int = 0) -> list[LayerSize]:
    """Of every layer that leaves it to choose, for one row of the batch."""
    tokens = torch.tensor(state.positions)
    return [
        LayerSize(index, layer.retention, int(layer.sizes(tokens)[row]), float(layer.mean_sizes(tokens)[row]))
        for index, layer in enumerate(state.layers)
        if isinstance(layer, RetainingState)
    ]


def describe(retention: Retention) -> dict[str, Any]:
    """Its kind, by the name of `RETENTIONS`, and its settings."""
    names = {kind: name for name, kind in RETENTIONS.items()}
    return {"kind": names[type(retention)], **asdict(retention)}


def name_of(retention: Retention) -> str:
    """`full`, `bank`, `top_k 8`, `threshold 1e-4`, `top_k 8, threshold 1e-4`."""
    match retention:
        case FullRetention():
            return "full"
        case BankRetention():
            return "bank"
        case EvictionPolicy():
            limits = [f"top_k {retention.top_k}"] if retention.top_k else []
            if retention.threshold >= 0:
                limits.append(f"threshold {plain(retention.threshold)}")
            return ", ".join(limits) or "no eviction"


def to_json(retentions: Sequence[Retention]) -> str:
    """As text, for a file's metadata."""
    return json.dumps([describe(retention) for retention in retentions])


def from_json(text: str) -> list[Retention]:
    """What `to_json` wrote; `ValueError` where it did not write it."""
    try:
        entries = [dict(entry) for entry in json.loads(text)]
        return [RETENTIONS[entry.pop("kind")](**entry) for entry in entries]
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"not the retentions of a state: {text}") from error
