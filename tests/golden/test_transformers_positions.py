"""The same weights with the same positions in Transformers' models and in ours give the same outputs and gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor

from linnet.interop.tensor_names import LLAMA
from linnet.layers.contract import Place
from linnet.layers.mixers.attention import Attention, AttentionSpec
from linnet.layers.positions import alibi_slopes
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.ops.rotary import dynamic_factor

transformers = pytest.importorskip("transformers")
from transformers.models.bloom.modeling_bloom import build_alibi_tensor  # noqa: E402
from transformers.models.mpt.modeling_mpt import MptAttention, build_mpt_alibi_tensor  # noqa: E402
from transformers.models.t5.modeling_t5 import T5Attention  # noqa: E402

TRAINED, LENGTH = 16, 45
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
SCALINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "linear": ({"rope_type": "linear", "factor": 4.0}, {"kind": "linear", "factor": 4.0}),
    "dynamic": (
        {"rope_type": "dynamic", "factor": 4.0},
        {"kind": "ntk", "factor": dynamic_factor(4.0, LENGTH, TRAINED)},
    ),
    "yarn": (YARN, {"kind": "yarn", "factor": 4.0, "trained": TRAINED}),
    "yarn of other limits": (
        YARN | {"attention_factor": 1.3, "beta_fast": 2.0, "beta_slow": 0.25},
        {"kind": "yarn", "factor": 4.0, "trained": TRAINED, "attention_factor": 1.3, "fast": 2.0, "slow": 0.25},
    ),
    "yarn between pairs": (
        YARN | {"truncate": False},
        {"kind": "yarn", "factor": 4.0, "trained": TRAINED, "truncate": False},
    ),
    "llama3": (
        YARN | {"rope_type": "llama3", "low_freq_factor": 0.25, "high_freq_factor": 2.0},
        {"kind": "llama3", "factor": 4.0, "trained": TRAINED, "fast": 2.0, "slow": 0.25},
    ),
}


def _gradients(logits: Tensor, upstream: Tensor, module: torch.nn.Module) -> dict[str, Tensor]:
    names, parameters = zip(*module.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(logits, parameters, upstream), strict=True))


@pytest.mark.parametrize("name", SCALINGS)
def test_rotary_scalings_of_llama(name: str):
    torch.manual_seed(0)
    said, scaling = SCALINGS[name]
    config = transformers.LlamaConfig(
        vocab_size=37, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=2,
        rms_norm_eps=1e-6, max_position_embeddings=TRAINED, tie_word_embeddings=False,
        rope_parameters={"rope_theta": 10000.0, **said},
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(config).double()
    mixer = {"kind": "attention", "heads": 2, "rotary": {"scaling": scaling}}
    block = {"repeat": 2, "mixer": mixer, "feed_forward": {"kind": "glu", "hidden": 44}}
    head = {"tied": False, "norm": {"kind": "rms", "eps": 1e-6}}
    ours = Decoder(ModelSpec(vocab_size=37, d_model=32, context_length=64, blocks=[block], head=head)).double()
    ours.load_state_dict(LLAMA.from_published(theirs.state_dict(), ours.spec))
    tokens = torch.randint(37, (2, LENGTH))
    logits, expected = ours(tokens), theirs(tokens).logits
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    upstream = torch.randn_like(expected)
    found = _gradients(logits, upstream, ours)
    for key, gradient in LLAMA.from_published(_gradients(expected, upstream, theirs), ours.spec).items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-4, atol=1e-5)


def _attention(mixer: dict[str, Any], weights: tuple[Tensor, Tensor, Tensor], out: Tensor) -> Attention:
    spec = AttentionSpec.parse({"kind": "attention", **mixer}, "mixer")
    ours = spec.build(Place(weights[0].shape[1], 64)).double()
    with torch.no_grad():
        ours.query_key_value.weight.copy_(torch.cat(weights))
        ours.out.weight.copy_(out)
    return ours


def _assert_same(
    found: Tensor, expected: Tensor, pairs: list[tuple[list[Tensor], list[Tensor]]], error: float = 1e-7
) -> None:
    """The same outputs, and the same gradients; ours and theirs are joined, each in its order."""
    torch.testing.assert_close(found, expected, rtol=error, atol=error)
    upstream = torch.randn_like(expected)
    for ours, theirs in pairs:
        one = torch.cat(torch.autograd.grad(found, ours, upstream, retain_graph=True))
        other = torch.cat(torch.autograd.grad(expected, theirs, upstream, retain_graph=True))
        torch.testing.assert_close(one, other, rtol=error, atol=error)


@pytest.mark.parametrize("tokens", [40, 300])
def test_buckets_of_t5(tokens: int):
    torch.manual_seed(0)
    config = transformers.T5Config(d_model=32, d_kv=6, num_heads=4, is_decoder=True, dropout_rate=0.0)
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    torch.nn.init.normal_(theirs.relative_attention_bias.weight)
    maps = theirs.q.weight, theirs.k.weight, theirs.v.weight
    mixer = {"heads": 4, "head_dim": 6, "scale": 1.0, "positions": {"kind": "t5"}}
    ours = _attention(mixer, maps, theirs.o.weight)
    ours.positions.bias_UN.data.copy_(theirs.relative_attention_bias.weight)
    x_BTD = torch.randn(2, tokens, 32, dtype=torch.float64, requires_grad=True)
    mask = torch.full((tokens, tokens), float("-inf"), dtype=torch.float64).triu(1)[None, None]
    pairs = [
        ([x_BTD], [x_BTD]),
        ([ours.query_key_value.weight], list(maps)),
        ([ours.out.weight], [theirs.o.weight]),
        ([ours.positions.bias_UN], [theirs.relative_attention_bias.weight]),
    ]
    _assert_same(ours(x_BTD), theirs(x_BTD, mask=mask)[0], pairs)


def test_alibi_of_mpt():
    torch.manual_seed(0)
    config = transformers.MptConfig(d_model=32, n_heads=4, n_layers=1)
    theirs = MptAttention(config, layer_idx=0).double()
    ours = _attention({"heads": 4, "positions": {"kind": "alibi"}}, theirs.Wqkv.weight.chunk(3), theirs.out_proj.weight)
    x_BTD = torch.randn(2, 70, 32, dtype=torch.float64, requires_grad=True)
    bias, hidden = build_mpt_alibi_tensor(4, 70).double(), torch.ones(70, 70, dtype=torch.bool).triu(1)
    expected = theirs(x_BTD, bias, attention_mask=hidden)[0]
    pairs = [
        ([x_BTD], [x_BTD]),
        ([ours.query_key_value.weight], [theirs.Wqkv.weight]),
        ([ours.out.weight], [theirs.out_proj.weight]),
    ]
    _assert_same(ours(x_BTD), expected, pairs, error=1e-5)  # their softmax is in float32


@pytest.mark.parametrize("heads", [1, 2, 6, 8, 12, 25])
def test_alibi_slopes_of_bloom(heads: int):
    biases = build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), heads, torch.float32)
    torch.testing.assert_close(alibi_slopes(heads, torch.device("cpu")), biases[:, 0, 1])
