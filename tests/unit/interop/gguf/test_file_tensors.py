"""The order of rows, and how numbers are stored."""

from typing import Any

import pytest
import torch

from linnet.core.errors import UserError
from linnet.interop.gguf.file import check_precision, named_tensors, rounded
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec


def model(mixer: dict[str, Any], width: int = 32, hidden: int = 64) -> ModelSpec:
    block = {"mixer": {"kind": "attention", **mixer}, "feed_forward": {"kind": "glu", "hidden": hidden}}
    plain = {"vocab_size": 40, "d_model": width, "context_length": 64, "blocks": [block], "head": {"norm": {}}}
    return ModelSpec.parse(plain, "small")


def rows_of(spec: ModelSpec) -> dict[str, list[float]]:
    """The first number of each row, where a joint map's rows are counted."""
    decoder = Decoder(spec)
    for tensor in decoder.state_dict().values():
        tensor.copy_(torch.arange(float(len(tensor))).view(-1, *[1] * (tensor.ndim - 1)).expand_as(tensor))
    named = named_tensors(decoder.state_dict(), spec)
    return {name: (tensor[:, 0] if tensor.ndim == 2 else tensor).tolist() for name, tensor in named.items()}


def test_halves_become_neighbors_in_queries_and_keys_alone():
    rows = rows_of(model({"heads": 2, "kv_heads": 1, "head_dim": 4, "bias": True}))
    assert rows["blk.0.attn_q.weight"] == rows["blk.0.attn_q.bias"] == [0, 2, 1, 3, 4, 6, 5, 7]
    assert rows["blk.0.attn_k.weight"] == rows["blk.0.attn_k.bias"] == [8, 10, 9, 11]
    assert rows["blk.0.attn_v.weight"] == [12, 13, 14, 15]
    assert rows["token_embd.weight"] == list(range(40))


def test_neighbors_stay_for_llama_and_become_halves_for_qwen3():
    adjacent = {"heads": 1, "head_dim": 6, "rotary": {"pairing": "adjacent"}}
    assert rows_of(model(adjacent))["blk.0.attn_q.weight"] == [0, 1, 2, 3, 4, 5]
    rows = rows_of(model({**adjacent, "query_key_norm": {}}))
    assert rows["blk.0.attn_q.weight"] == rows["blk.0.attn_k_norm.weight"] == [0, 2, 4, 1, 3, 5]
    assert rows_of(model({"heads": 1, "head_dim": 4, "query_key_norm": {}}))["blk.0.attn_q.weight"] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("weights", "most"), [("f32", 0), ("f16", 2**-11), ("bf16", 2**-8), ("q8_0", 8e-3), ("q4_0", 0.13)]
)
def test_rounding_errors_match_the_storage(weights: str, most: float):
    generator = torch.Generator().manual_seed(0)
    matrix, gain = torch.rand(8, 64, generator=generator) - 0.5, torch.rand(64, generator=generator)
    found = rounded({"matrix": matrix, "gain": gain}, weights)
    error = float((found["matrix"] - matrix).abs().max() / matrix.abs().max())
    assert most / 20 <= error <= most
    assert torch.equal(found["gain"], gain)


@pytest.mark.parametrize(
    ("spec", "weights", "said"),
    [
        (model({"heads": 2}), "int8", "precision: int8: expected one of f32, f16, bf16, q8_0, q4_0"),
        (model({"heads": 2}, width=48), "q8_0", "config.json: d_model: 48: q8_0 stores rows in blocks of 32 numbers"),
        (model({"heads": 3, "head_dim": 8}), "q4_0", "config.json: blocks[0].mixer: heads times their width: 24: q4_0"),
        (model({"heads": 2}, hidden=40), "q4_0", "config.json: blocks[0].feed_forward.hidden: 40: q4_0 stores rows"),
    ],
)
def test_an_unknown_precision_is_refused(spec: ModelSpec, weights: str, said: str):
    with pytest.raises(UserError) as refused:
        check_precision(weights, spec, "config.json")
    assert str(refused.value).startswith(said)
    check_precision("f16", spec, "config.json")
