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
from linnet.layers.cache_policy import CACHE_POLICIES, FULL, BankCache, CachePolicy, FullCache
from linnet.layers.contract import Mixer
from linnet.layers.registry import kinds_with_cache_policies
from linnet.layers.state import CachePolicyState
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState
from linnet.ops.decay.eviction import EvictionPolicy
from linnet.present.numbers import exact

CachePolicies = CachePolicy | Sequence[CachePolicy]
"""One for every layer that leaves it to choose, or one per layer of the model (`FULL` for the others)."""


def cache_policy_state(
    decoder: Decoder, batch: int, capacity: int, cache_policy: CachePolicies = FULL, device: torch.device | None = None
) -> DecoderState:
    """An empty state for `batch` streams of at most `capacity` tokens; `UserError` as from `layer_cache_policies`.

    With a policy or a bank memory does not follow the capacity; a bank's bound holds for that many tokens.
    """
    return decoder.initial_state(batch, capacity, layer_cache_policies(decoder, cache_policy), device=device)


def chooses(mixer: Mixer) -> bool:
    """Whether the mixer leaves it to choose how the past is kept."""
    return len(mixer.cache_policies) > 1


def layer_cache_policies(decoder: Decoder, cache_policy: CachePolicies) -> list[CachePolicy]:
    """One for each layer of the model; `UserError` where there are too many or too few, or a layer cannot choose."""
    can = [chooses(mixer) for mixer in decoder.mixers]
    given = cache_policy if isinstance(cache_policy, Sequence) and not isinstance(cache_policy, str) else [cache_policy]
    for choice in given:
        if not isinstance(choice, tuple(CACHE_POLICIES.values())):
            raise UserError(f"cache_policy: {choice!r}: expected {FULL}, an EvictionPolicy or a BankCache")
    kinds = kinds_with_cache_policies()
    if not isinstance(cache_policy, Sequence):
        if cache_policy != FULL and not any(can):
            raise UserError(f"cache_policy: {cache_policy}: the model has no {kinds} layer; expected {FULL}")
        return [cache_policy if one else FULL for one in can]
    if len(cache_policy) != len(can):
        raise UserError(
            f"cache_policy: {len(cache_policy)} of them: expected one, or one for each of {len(can)} layers"
        )
    for index, (choice, one) in enumerate(zip(cache_policy, can, strict=True)):
        if choice != FULL and not one:
            raise UserError(f"cache_policy: layer {index}: {choice}: the layer is not {kinds}; expected {FULL}")
    return list(cache_policy)


def cache_policies_of(state: DecoderState) -> list[CachePolicy]:
    """What `cache_policy_state` was told, layer by layer."""
    return [layer.cache_policy if isinstance(layer, CachePolicyState) else FULL for layer in state.layers]


@dataclass(frozen=True)
class LayerSize:
    """How much a layer holds of one stream.

    layer: its number in the model. size: vectors of the layer's width that it holds now. mean_size: the same, taken
    after every token so far and averaged.
    """

    layer: int
    cache_policy: CachePolicy
    size: int
    mean_size: float


def layer_sizes(state: DecoderState, row: int = 0) -> list[LayerSize]:
    """Of every layer that leaves it to choose, for one row of the batch."""
    tokens = torch.tensor(state.positions)
    return [
        LayerSize(index, layer.cache_policy, int(layer.sizes(tokens)[row]), float(layer.mean_sizes(tokens)[row]))
        for index, layer in enumerate(state.layers)
        if isinstance(layer, CachePolicyState)
    ]


def describe(cache_policy: CachePolicy) -> dict[str, Any]:
    """Its kind, by the name of `CACHE_POLICIES`, and its settings."""
    names = {kind: name for name, kind in CACHE_POLICIES.items()}
    return {"kind": names[type(cache_policy)], **asdict(cache_policy)}


def name_of(cache_policy: CachePolicy) -> str:
    """`full`, `bank`, `top_k 8`, `threshold 1e-4`, `top_k 8, threshold 1e-4`."""
    match cache_policy:
        case FullCache():
            return "full"
        case BankCache():
            return "bank"
        case EvictionPolicy():
            limits = [f"top_k {cache_policy.top_k}"] if cache_policy.top_k else []
            if cache_policy.threshold >= 0:
                limits.append(f"threshold {exact(cache_policy.threshold)}")
            return ", ".join(limits) or "no eviction"


def to_json(cache_policies: Sequence[CachePolicy]) -> str:
    """As text, for a file's metadata."""
    return json.dumps([describe(cache_policy) for cache_policy in cache_policies])


def from_json(text: str) -> list[CachePolicy]:
    """What `to_json` wrote; `ValueError` where it did not write it."""
    try:
        entries = [dict(entry) for entry in json.loads(text)]
        return [CACHE_POLICIES[entry.pop("kind")](**entry) for entry in entries]
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"not the cache_policies of a state: {text}") from error
