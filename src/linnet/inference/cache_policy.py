"""States with a cache policy: what the layers of a model keep of the past of a stream.

The policy is chosen per stream, for all layers or for each layer. A layer that does not support a policy keeps the full
cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from linnet.core.errors import UserError
from linnet.layers.cache_policy import FULL, CachePolicy, FullCache, RecalibratingCache
from linnet.layers.contract import Mixer
from linnet.layers.registry import cache_policy_of
from linnet.layers.state import CachePolicyState, Contents
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

CachePolicies = CachePolicy | str | Sequence[CachePolicy]
"""One policy for all layers that know it, or one per layer of the model (`FULL` for the others).

As text: `full`, `top_k=16,threshold=1e-4`; with slashes between them one for each layer that has a choice.
"""

OPEN_ENDED_TOKENS = 1 << 16
"""Tokens for which a policy is made whose stream has no known end."""


def cache_policy_state(
    decoder: Decoder, batch: int, capacity: int, cache_policy: CachePolicies = FULL, device: torch.device | None = None
) -> DecoderState:
    """An empty state for `batch` streams of at most `capacity` tokens; `UserError` as from `layer_cache_policies`."""
    return decoder.initial_state(batch, capacity, layer_cache_policies(decoder, cache_policy), device=device)


def calibrated_state(
    decoder: Decoder, calibrated: DecoderState, capacity: int, cache_policy: CachePolicies = FULL
) -> DecoderState:
    """An empty state with a cache policy; layers that calibrate have the states of `calibrated`."""
    state = cache_policy_state(decoder, len(calibrated.positions), capacity, cache_policy)
    source = calibrated.grown(capacity)
    pairs = zip(decoder.mixers, state.layers, source.layers, strict=True)
    layers = tuple(theirs if mixer.traits.calibrates else own for mixer, own, theirs in pairs)
    return DecoderState(layers, state.feed_forwards, state.cross_attentions, source.capacity, state.positions)


def chooses(mixer: Mixer) -> bool:
    """True if a stream can choose how much of the past the mixer keeps."""
    return bool(mixer.cache_policies - {FullCache, RecalibratingCache})


def layer_cache_policies(decoder: Decoder, cache_policy: CachePolicies) -> list[CachePolicy]:
    """One policy for each layer of the model; `UserError` if there are too many or too few, or a layer lacks one."""
    mixers = decoder.mixers
    if isinstance(cache_policy, str):
        texts, choosing = cache_policy.split("/"), [chooses(mixer) for mixer in mixers]
        if len(texts) not in (1, sum(choosing)):
            accepted = f"one, or {sum(choosing)}, one for each layer that has a choice, between slashes"
            problem = f"{len(texts)} policies"
            raise UserError(problem, field="cache_policy", value=cache_policy, accepted=accepted)
        parsed = [cache_policy_of(text) for text in texts]
        each = iter(parsed)
        several = [next(each) if one else FULL for one in choosing] if len(parsed) > 1 else []
        return layer_cache_policies(decoder, several or parsed[0])
    if isinstance(cache_policy, CachePolicy):
        if not any(type(cache_policy) in mixer.cache_policies for mixer in mixers):
            kinds = ", ".join(dict.fromkeys(decoder.spec.layer_kinds))
            problem = f"no layer of the model ({kinds}) has it"
            raise UserError(problem, field="cache_policy", value=cache_policy.label, accepted=FULL.label)
        return [cache_policy if type(cache_policy) in mixer.cache_policies else FULL for mixer in mixers]
    value: object = cache_policy
    if not isinstance(value, Sequence) or not all(isinstance(one, CachePolicy) for one in value):
        raise UserError(field="cache_policy", value=repr(cache_policy), accepted="a CachePolicy, or text")
    if len(cache_policy) != len(mixers):
        problem = f"{len(cache_policy)} of them"
        raise UserError(problem, field="cache_policy", accepted=f"one, or one for each of {len(mixers)} layers")
    for index, (choice, mixer) in enumerate(zip(cache_policy, mixers, strict=True)):
        if type(choice) not in mixer.cache_policies:
            kind = decoder.spec.layer_kinds[index]
            problem = f"layer {index}: {choice.label}: the layer is {kind}, which does not have it"
            raise UserError(problem, field="cache_policy", accepted=FULL.label)
    return list(cache_policy)


def open_ended_policies(decoder: Decoder, cache_policy: CachePolicies, tokens: int) -> list[CachePolicy]:
    """`layer_cache_policies` of a stream that others continue, so that its length is not known when it begins.

    What depends on the length and is not given is made for 65,536 tokens, or for `tokens` if they are more. Streams of
    different lengths then have the same policy, with which they share a batch and what a prefix store holds.
    """
    length = max(OPEN_ENDED_TOKENS, tokens)
    return [policy.for_length(length) for policy in layer_cache_policies(decoder, cache_policy)]


@dataclass(frozen=True)
class LayerSize:
    """How much of one stream a layer holds.

    layer: its index in the model. size: vectors of the layer's width that it holds now. mean_size: the mean of the
    sizes after every token so far.
    """

    layer: int
    cache_policy: CachePolicy
    size: int
    mean_size: float


def layer_sizes(state: DecoderState, row: int = 0) -> list[LayerSize]:
    """The size of each layer that has a choice of cache policies, for one row of the batch."""
    tokens = torch.tensor(state.positions)
    return [
        LayerSize(index, layer.cache_policy, int(layer.sizes(tokens)[row]), float(layer.mean_sizes(tokens)[row]))
        for index, layer in enumerate(state.layers)
        if isinstance(layer, CachePolicyState)
    ]


@dataclass(frozen=True)
class SublayerContents:
    """What one sublayer holds of a stream.

    layer: its index in the model. sublayer: its part of the layer, `mixer`, `feed_forward` or `cross_attention`.
    """

    layer: int
    sublayer: str
    cache_policy: CachePolicy
    contents: Contents


def observe(state: DecoderState, row: int = 0) -> list[SublayerContents]:
    """What each sublayer that holds anything has of one row of the batch, in the order of the layers."""
    parts = {"mixer": state.layers, "feed_forward": state.feed_forwards, "cross_attention": state.cross_attentions}
    return [
        SublayerContents(layer, name, states[layer].cache_policy, states[layer].observe(state.positions[row], row))
        for layer in range(len(state.layers))
        for name, states in parts.items()
        if states[layer].tensors()
    ]
