"""How the past of a stream is kept in a model's TED layers: all of it, what a policy leaves, or a bank of sums.

The choice is made per stream, for all layers alike or for each one; other mixers keep what they always keep.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.layers.contract import Mixer, State
from linnet.layers.mixers.ted.module import Ted
from linnet.layers.mixers.ted.policy import PolicyState
from linnet.layers.mixers.ted.state import FULL, BankContext, BankState, Context, FullContext, TedState
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState
from linnet.ops.decay.context import ContextPolicy

Contexts = Context | Sequence[Context]
"""One for every TED layer, or one per layer of the model (`FULL` for a layer that is not TED)."""

KINDS: dict[str, type[FullContext] | type[ContextPolicy] | type[BankContext]] = {
    "full": FullContext,
    "policy": ContextPolicy,
    "bank": BankContext,
}


def context_state(
    decoder: Decoder,
    batch: int,
    capacity: int,
    context: Contexts = FULL,
    padding_B: Tensor | None = None,
    device: torch.device | None = None,
) -> DecoderState:
    """An empty state for `batch` streams of at most `capacity` tokens; `UserError` as from `layer_contexts`.

    With a policy or a bank memory does not follow the capacity; a bank's bound holds for that many tokens.
    """
    place = device or decoder.device
    pairs = zip(decoder.mixers, layer_contexts(decoder, context), strict=True)
    layers = tuple(_layer_state(mixer, choice, batch, capacity, place, decoder.dtype) for mixer, choice in pairs)
    return DecoderState(layers, capacity, padding_B=padding_B)


def layer_contexts(decoder: Decoder, context: Contexts) -> list[Context]:
    """One for each layer of the model; `UserError` where there are too many or too few, or a layer is not TED."""
    are_ted = [isinstance(mixer, Ted) for mixer in decoder.mixers]
    for choice in [context] if isinstance(context, str) or not isinstance(context, Sequence) else context:
        if not isinstance(choice, tuple(KINDS.values())):
            raise UserError(f"context: {choice!r}: expected {FULL}, a ContextPolicy or a BankContext")
    if not isinstance(context, Sequence):
        if context != FULL and not any(are_ted):
            raise UserError(f"context: {context}: the model has no ted layer; expected {FULL}")
        return [context if is_ted else FULL for is_ted in are_ted]
    if len(context) != len(are_ted):
        raise UserError(f"context: {len(context)} of them: expected one, or one for each of {len(are_ted)} layers")
    for index, (choice, is_ted) in enumerate(zip(context, are_ted, strict=True)):
        if choice != FULL and not is_ted:
            raise UserError(f"context: layer {index}: {choice}: the layer is not ted; expected {FULL}")
    return list(context)


def _layer_state(
    mixer: Mixer, context: Context, batch: int, capacity: int, device: torch.device, dtype: torch.dtype
) -> State:
    if isinstance(mixer, Ted):
        return mixer.initial_state(batch, capacity, device, dtype, context)
    return mixer.initial_state(batch, capacity, device, dtype)


def contexts_of(state: DecoderState) -> list[Context]:
    """What `context_state` was told, layer by layer."""
    return [_context_of(layer) for layer in state.layers]


def _context_of(layer: State) -> Context:
    match layer:
        case PolicyState():
            return layer.policy
        case BankState():
            return BankContext(layer.bank.length)
    return FULL


@dataclass(frozen=True)
class LayerSize:
    """How much a TED layer holds of one stream.

    layer: its number in the model. size: vectors of the layer's width that it holds now. mean_size: the same, taken
    after every token so far and averaged.
    """

    layer: int
    context: Context
    size: int
    mean_size: float


def layer_sizes(state: DecoderState, row: int = 0) -> list[LayerSize]:
    """Of every TED layer, for one row of the batch."""
    seen = state.position
    tokens = seen if state.padding_B is None else seen - state.padding_B
    return [
        LayerSize(index, _context_of(layer), int(layer.sizes(seen)[row]), float(layer.mean_sizes(tokens)[row]))
        for index, layer in enumerate(state.layers)
        if isinstance(layer, TedState)
    ]


def describe(context: Context) -> dict[str, Any]:
    """Its kind, by the name of `KINDS`, and its settings."""
    names = {kind: name for name, kind in KINDS.items()}
    return {"kind": names[type(context)], **asdict(context)}


def to_json(contexts: Sequence[Context]) -> str:
    """As text, for a file's metadata."""
    return json.dumps([describe(context) for context in contexts])


def from_json(text: str) -> list[Context]:
    """What `to_json` wrote; `ValueError` where it did not write it."""
    try:
        entries = [dict(entry) for entry in json.loads(text)]
        return [KINDS[entry.pop("kind")](**entry) for entry in entries]
    except (TypeError, KeyError) as error:
        raise ValueError(f"not the contexts of a state: {text}") from error
