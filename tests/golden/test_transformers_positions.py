"""The same weights with the same positions in Transformers' models and in ours give the same outputs and gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor

from linnet.interop.names import LLAMA, renamed
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.ops.rotary_scaling import dynamic_factor

transformers = pytest.importorskip("transformers")

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
    ours.load_state_dict(renamed(theirs.state_dict(), ours.spec, LLAMA))
    tokens = torch.randint(37, (2, LENGTH))
    logits, expected = ours(tokens), theirs(tokens).logits
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    upstream = torch.randn_like(expected)
    found = _gradients(logits, upstream, ours)
    for key, gradient in renamed(_gradients(expected, upstream, theirs), ours.spec, LLAMA).items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-4, atol=1e-5)
