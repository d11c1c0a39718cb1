"""The published implementations' outputs and gradients, reproduced."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from linnet.inference.cache_policy import cache_policy_state
from linnet.inference.readers import CachedReader, RecomputingReader
from linnet.interop.tensor_names import PLDR, TED
from linnet.layers.mixers.plga.operator import DeductiveOutputs
from linnet.layers.mixers.ted import EvictionCache
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from on_device import DEVICE

FOLDER = Path(__file__).parent
NORM = {"kind": "layer", "eps": 1e-6}


def deductive_outputs(decoder: Decoder, tokens_BT: torch.Tensor) -> list[DeductiveOutputs]:
    return [DeductiveOutputs(*layer.values()) for layer in decoder.auxiliary_outputs(tokens_BT) if len(layer) > 1]


def _read(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(FOLDER / name, "pt") as file:
        return {key: file.get_tensor(key).to(DEVICE) for key in file.keys()}, json.loads(file.metadata()["config"])  # noqa: SIM118


def _below(named: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in named.items() if key.startswith(prefix)}


@pytest.fixture(scope="module")
def pldr() -> tuple[Decoder, dict[str, Tensor], dict[str, Any]]:
    golden, config = _read("pldr_small.safetensors")
    units = {"residual_units": config["residual_units"], "gated_units": config["glu_per_unit"]}
    mixer = {"kind": "plga", "heads": config["num_heads"], "metric_hidden": config["metric_hidden"], **units}
    block = {
        "repeat": config["num_layers"],
        "mixer": mixer,
        "feed_forward": {"kind": "glu", "hidden": config["ffn_hidden"], "bias": True},
        "norm": {**NORM, "placement": "post"},
    }
    spec = ModelSpec(
        vocab_size=config["vocab_size"],
        d_model=config["d_model"],
        context_length=config["max_seq_len"],
        embedding={"scale": True, "norm": NORM},
        blocks=[block],
        head={"tied": False, "bias": True},
    )
    decoder = Decoder(spec).double().to(DEVICE)
    decoder.load_state_dict(PLDR.from_published(_below(golden, "state_dict."), spec))
    return decoder, golden, config


@pytest.fixture(scope="module")
def ted() -> tuple[Decoder, dict[str, Tensor], dict[str, Any]]:
    golden, config = _read("ted_small.safetensors")
    block = {
        "repeat": config["num_layers"],
        "mixer": {"kind": "ted"},
        "feed_forward": {"kind": "glu", "hidden": config["hidden_dim"]},
    }
    spec = ModelSpec(
        vocab_size=config["vocab_size"],
        d_model=config["dim"],
        context_length=64,
        blocks=[block],
        head={"tied": True, "norm": {"kind": "rms", "eps": config["norm_eps"]}},
    )
    decoder = Decoder(spec).to(DEVICE)
    decoder.load_state_dict(TED.from_published(_below(golden, "state_dict."), spec))
    return decoder, golden, config


def _loss(decoder: Decoder, tokens: Tensor) -> tuple[Tensor, Tensor]:
    logits = decoder(tokens[:, :-1])
    return logits, F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _check_gradients(decoder: Decoder, expected: dict[str, Tensor], tolerance: float) -> None:
    parameters = dict(decoder.named_parameters())
    assert parameters.keys() == expected.keys()
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=tolerance, atol=tolerance, msg=name)


def test_pldr_has_the_published_number_of_parameters(pldr):
    decoder, _, config = pldr
    assert sum(p.numel() for p in decoder.parameters()) == config["parameters"]


def test_pldr_outputs_loss_and_every_gradient(pldr):
    decoder, golden, _ = pldr
    decoder.zero_grad()
    torch.testing.assert_close(decoder.hidden(golden["tokens"][:, :-1]), golden["final_hidden"], rtol=1e-5, atol=1e-5)
    logits, loss = _loss(decoder, golden["tokens"])
    torch.testing.assert_close(logits, golden["logits"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loss[None], golden["loss"], rtol=1e-5, atol=1e-5)
    loss.backward()
    _check_gradients(decoder, PLDR.from_published(_below(golden, "grad."), decoder.spec), 1e-5)


def test_pldr_deductive_outputs(pldr):
    decoder, golden, _ = pldr
    for index, outputs in enumerate(deductive_outputs(decoder, golden["tokens"][:, :-1])):
        for name, published_name in zip(outputs._fields, ("A", "A_LM", "A_P", "G_LM"), strict=True):
            expected = golden[f"layer{index}.{published_name}"]
            torch.testing.assert_close(getattr(outputs, name), expected, rtol=1e-5, atol=1e-5, msg=published_name)


@torch.no_grad()
@pytest.mark.parametrize("kv", [False, True])
@pytest.mark.parametrize("g", [False, True])
def test_pldr_greedy_decode_with_and_without_each_cache(pldr, kv: bool, g: bool):
    decoder, golden, _ = pldr
    tokens, logits = (golden[f"decode.kv{kv:d}.g{g:d}.{name}"] for name in ("tokens", "logits"))
    steps = logits.shape[1]
    prompt = tokens.shape[1] - steps
    state = cache_policy_state(decoder, 1, tokens.shape[1], "full" if g else "recalibrate")
    reader = CachedReader(decoder, state) if kv else RecomputingReader(decoder, None, keep_calibration=g)
    chunk = tokens[:, :prompt]
    for step in range(steps):
        last = reader.logits(chunk)
        torch.testing.assert_close(last, logits[:, step], rtol=1e-5, atol=1e-5)
        chunk = last.argmax(-1, keepdim=True)
        assert chunk.item() == tokens[0, prompt + step]


def test_ted_outputs_loss_and_every_gradient(ted):
    decoder, golden, _ = ted
    decoder.zero_grad()
    logits, loss = _loss(decoder, golden["tokens"])
    torch.testing.assert_close(logits, golden["logits"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(loss[None], golden["loss"], rtol=1e-4, atol=1e-4)
    loss.backward()
    _check_gradients(decoder, TED.from_published(_below(golden, "grad."), decoder.spec), 1e-4)


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 3, 41])
def test_ted_decode_with_the_full_context(ted, chunk):
    decoder, golden, _ = ted
    row = golden["tokens"][:1]
    state = decoder.initial_state(1, capacity=row.shape[1])
    logits = torch.cat([decoder(part, state) for part in row.split(chunk, dim=1)], dim=1)
    torch.testing.assert_close(logits[0], golden["decode.0.logits"], rtol=1e-4, atol=1e-4)
    assert golden["decode.0.context_size"][:, 0].tolist() == list(range(1, row.shape[1] + 1))


@torch.no_grad()
@pytest.mark.parametrize("setting", range(4))
@pytest.mark.parametrize("cut", [1, 2, 7, 1000])
def test_ted_decode_with_each_context(ted, setting: int, cut: int):
    """Logits and the context size of every layer at every step; in larger pieces all logits, sizes at their ends."""
    decoder, golden, config = ted
    chosen = config["contexts"][setting]
    policy = EvictionCache(chosen["top_k"], chosen["relevance_score"], chosen["min_tokens_to_keep"])
    logits, sizes = golden[f"decode.{setting}.logits"], golden[f"decode.{setting}.context_size"]
    tokens = golden["tokens"][:1]
    state = cache_policy_state(decoder, 1, tokens.shape[1], policy)
    for piece in tokens.split(cut, dim=1):
        start = state.position
        actual = decoder(piece, state)[0]
        torch.testing.assert_close(actual, logits[start : state.position], rtol=1e-4, atol=1e-4)
        assert [int(layer.sizes(state.position)) for layer in state.layers] == sizes[state.position - 1].tolist()
