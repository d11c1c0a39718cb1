"""Small models of every kind of the registry, and of what stands around its kinds, by name: what graphs are made of."""

from typing import Any

from small_decoders import NARROW, block, decoder_with_weights

from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import SublayerSpec
from linnet.layers.mixers.ted import BankCache, EvictionCache
from linnet.layers.registry import FEED_FORWARDS, MIXERS
from linnet.model.decoder import Decoder

WIDTH = NARROW // 2
ATTENTION = {"kind": "attention", "heads": 2}


def with_graphs(kind: type[SublayerSpec]) -> list[SublayerSpec]:
    """The examples, or those that store a calibration instead of calibrating on a prompt."""
    return [spec for spec in kind.examples() if spec.calibration == "stored"] or kind.examples()


def of_examples(specs: list[SublayerSpec]) -> dict[str, Any]:
    """One layer for each."""
    plain = [spec.model_dump() for spec in specs]
    mixers = specs[0].kind in MIXERS
    return {"blocks": [block(each) if mixers else block(ATTENTION, each) for each in plain]}


AROUND: dict[str, dict[str, Any]] = {
    "learned positions": {
        "embedding": {"positions": "learned", "scale": True, "norm": {"kind": "layer"}},
        "blocks": [block({**ATTENTION, "rotary": None}) | {"norm": {"kind": "layer", "placement": "post"}}],
        "context_length": 80,
        "head": {"tied": False, "bias": True, "soft_cap": 5.0},
    },
    "sinusoidal positions": {
        "embedding": {"positions": "sinusoidal", "width": 8, "skip": True},
        "blocks": [block({**ATTENTION, "rotary": None}) | {"residual": "parallel"}],
        "head": {"tied": True, "scale": True, "norm": {"kind": "layer"}},
    },
    "a hybrid of widths": {
        "blocks": [
            block({**ATTENTION, "window": 5}) | {"repeat": 2, "share_weights": True},
            block({"kind": "ted"}) | {"width": 8, "norm": {"placement": "output"}},
            block({"kind": "mamba2", "head_dim": 8}) | {"feed_forward": None},
            block({"kind": "rwkv7", "heads": 2}) | {"norm": {"placement": "sandwich", "unit_offset": True}},
        ],
    },
}

MOST_LAYERS = 7
"""Of a case: the exporter takes seconds for each."""


def of_kind(kind: type[SublayerSpec]) -> dict[str, dict[str, Any]]:
    """All of its examples."""
    specs = with_graphs(kind)
    parts = [specs[begin : begin + MOST_LAYERS] for begin in range(0, len(specs), MOST_LAYERS)]
    name = specs[0].kind
    return {name + f" {number}" * (len(parts) > 1): of_examples(part) for number, part in enumerate(parts, 1)}


KINDS = (*MIXERS.values(), *FEED_FORWARDS.values())
CASES: dict[str, tuple[dict[str, Any], CachePolicy]] = {
    **{name: (fields, FULL) for kind in KINDS for name, fields in of_kind(kind).items()},
    **{name: (fields, FULL) for name, fields in AROUND.items()},
    **{
        f"{kind.examples()[0].kind}, {name}": (of_examples(with_graphs(kind)), cache_policy)
        for kind in KINDS
        if BankCache in kind.cache_policies
        for name, cache_policy in {
            "a bank": BankCache(),
            "the most relevant": EvictionCache(top_k=5),
            "a threshold": EvictionCache(threshold=0.01),
        }.items()
    },
}


def decoder_of_case(name: str) -> tuple[Decoder, CachePolicy]:
    fields, cache_policy = CASES[name]
    return decoder_with_weights(**{"d_model": WIDTH, **fields}), cache_policy
