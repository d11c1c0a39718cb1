"""Files of `golden/writers/`: tensors and settings of published layers, and how ours are held to them.

Our weights are made of theirs where gradients can follow, so that gradients of theirs are what is compared.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from linnet.interop.tensor_names import LLAMA
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

FOLDER = Path(__file__).parent / "golden"
Named = dict[str, Tensor]


def read(name: str) -> tuple[Named, dict[str, Any]]:
    """Tensors by name, and what they were made with."""
    with safe_open(FOLDER / name, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, json.loads(file.metadata()["config"])  # noqa: SIM118


def below(tensors: Named, prefix: str) -> Named:
    """Those of a part, by their names in it."""
    return {key.removeprefix(f"{prefix}."): tensor for key, tensor in tensors.items() if key.startswith(f"{prefix}.")}


def leaves(tensors: Named) -> Named:
    """Copies that gradients are asked of."""
    return {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}


def gradients(y: Tensor, of: Named, upstream: Tensor) -> Named:
    """By name; zeros where a tensor had no part."""
    found = torch.autograd.grad(y, list(of.values()), upstream, allow_unused=True, materialize_grads=True)
    return dict(zip(of, found, strict=True))


def assert_same(found: Named, expected: Named) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, msg=lambda text, name=name: f"{name}: {text}")


def llama_spec(config: dict[str, Any], value: bool = False) -> ModelSpec:
    """Of Transformers' description of a Llama. value: of a reward model."""
    norm = {"kind": "rms", "eps": config["rms_norm_eps"]}
    heads = {"heads": config["num_attention_heads"], "kv_heads": config["num_key_value_heads"]}
    block = {
        "repeat": config["num_hidden_layers"],
        "mixer": {"kind": "attention", **heads, "rotary": {"base": 10000.0, "pairing": "halves"}},
        "feed_forward": {"kind": "glu", "hidden": config["intermediate_size"]},
        "norm": norm,
    }
    plain = {
        "vocab_size": config["vocab_size"], "d_model": config["hidden_size"],
        "context_length": config["max_position_embeddings"], "blocks": [block],
        "head": {"tied": False, "norm": norm, "value": value},
    }  # fmt: skip
    return ModelSpec.parse(plain, "golden")


def llama_of(weights: Named, config: dict[str, Any], value: Tensor | None = None) -> Decoder:
    """The Llama with these published weights. value: the learned vector that makes it a reward model."""
    decoder = Decoder(llama_spec(config, value is not None))
    own = {} if value is None else {"value": value}
    decoder.load_state_dict({**LLAMA.from_published(weights, llama_spec(config)), **own})
    return decoder
