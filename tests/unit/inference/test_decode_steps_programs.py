"""A whole step in one call gives what its operations give one by one; what is more than they goes on as it is."""

from typing import Any

import pytest
import torch
from small_models import small_spec

from linnet.inference import decode_steps
from linnet.inference.decode_steps import DecodeSteps, record_program
from linnet.inference.weights import convert_weights
from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.layers.contract import MixerSpec
from linnet.layers.mixers.attention import AttentionSpec, RotarySpec
from linnet.layers.mixers.plga import PlgaSpec
from linnet.layers.mixers.ted import TedSpec
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState
from linnet.ops.native import library

pytestmark = pytest.mark.skipif(library(torch.device("cpu")) is None, reason="no compiler, or another processor")

PROMPT, STEPS = torch.arange(5)[None], 200
RMS, LAYER = {"kind": "rms", "eps": 1e-5}, {"kind": "layer", "eps": 1e-5}
ROTARY = RotarySpec(pairing="adjacent", fraction=0.5)
GELU, GLU = {"kind": "mlp", "hidden": 40, "bias": True}, {"kind": "glu", "hidden": 24}
LLAMA, PLGA = AttentionSpec(heads=4, kv_heads=2, rotary=RotarySpec()), PlgaSpec(heads=2, metric_hidden=8)
NORMED = AttentionSpec(heads=2, rotary=ROTARY, query_key_norm={"kind": "layer"}, scale=0.3)
MODELS: dict[str, tuple[MixerSpec, dict[str, Any], dict[str, Any]]] = {
    "llama": (LLAMA, {"feed_forward": GLU, "norm": RMS}, {}),
    "gpt-2": (
        AttentionSpec(heads=2, rotary=None, bias=True),
        {"feed_forward": GELU, "norm": LAYER},
        {"embedding": {"positions": "learned"}, "head": {"tied": True, "norm": LAYER}},
    ),
    "parallel": (LLAMA, {"feed_forward": GLU, "norm": LAYER, "residual": "parallel"}, {"head": {"soft_cap": 9.0}}),
    "qwen": (AttentionSpec(heads=2, query_key_norm={}), {"feed_forward": GLU, "norm": RMS}, {}),
    "layer norms of heads, behind": (NORMED, {"feed_forward": GELU, "norm": {**RMS, "placement": "post"}}, {}),
    "plga": (PLGA, {"feed_forward": GLU, "norm": RMS}, {}),
    "narrow": (
        LLAMA,
        {"feed_forward": GLU, "norm": RMS, "width": 8, "repeat": 3, "share_weights": True},
        {"embedding": {"scale": True, "width": 12, "norm": RMS}, "head": {"tied": True, "scale": True, "norm": None}},
    ),
}


def decoder_with_weights(name: str, weights: str = "float32") -> Decoder:
    mixer, block, changes = MODELS[name]
    torch.manual_seed(0)
    blocks = [{"repeat": 2, **block, "mixer": mixer.model_dump()}]
    decoder = Decoder(small_spec(mixer).replace(blocks=blocks, context_length=PROMPT.numel() + STEPS, **changes))
    for named, parameter in decoder.named_parameters():
        if "operator" not in named:
            torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.3)
    convert_weights(decoder, weights)
    return decoder


def prefill_inputs(decoder: Decoder) -> tuple[DecoderState, torch.Tensor]:
    """Behind the prompt, and the token that follows."""
    state = decoder.initial_state(1, PROMPT.numel() + STEPS)
    return state, decoder.logits(decoder.hidden(PROMPT, state))[0, -1:].argmax(dim=-1)


def steps_of(decoder: Decoder, state: DecoderState) -> DecodeSteps:
    steps = DecodeSteps.of(decoder, state)
    assert steps is not None
    return steps


def continued(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, programs: bool
) -> tuple[list[torch.Tensor], DecoderState]:
    """Logits of each step."""
    state, token = prefill_inputs(decoder)
    steps, found = steps_of(decoder, state), []
    if not programs:
        monkeypatch.setattr(steps._whole, "_recordable", False)
    for number in range(STEPS):  # small models soon say the same token again and again
        found.append(steps.logits(token[None]))
        token = (found[-1].argmax(dim=-1) + number) % decoder.spec.vocab_size
    assert (steps._whole._program is not None) is programs  # type: ignore[union-attr]
    return found, state


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_the_step_in_one_call_gives_the_same_bit_for_bit(name: str, weights: str, monkeypatch: pytest.MonkeyPatch):
    decoder = decoder_with_weights(name, weights)
    (found, state), (expected, other) = (continued(decoder, monkeypatch, programs) for programs in (True, False))
    assert torch.equal(torch.cat(found), torch.cat(expected))
    assert state.positions == other.positions == (PROMPT.numel() + STEPS,)
    for name, tensor in other.tensors().items():
        assert torch.equal(state.tensors()[name], tensor)


@torch.inference_mode()
def test_the_state_of_a_program_forks_grows_joins_and_is_cropped():
    decoder = decoder_with_weights("llama")
    state, token = prefill_inputs(decoder)
    steps = steps_of(decoder, state)
    for _ in range(3):
        token = steps.logits(token[None]).argmax(dim=-1)
    fork, grown = state.fork(), state.grown(300)
    joined = state.join(state)
    expected = decoder.logits(decoder.hidden(token[None], joined))[0]
    found = []
    for one in (fork, grown):
        again = steps_of(decoder, one)
        found += [again.logits(token[None]), again.logits(token[None])]
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[:2], found[2:], rtol=0, atol=0)
    assert torch.equal(steps.logits(token[None]), found[0])  # the others did not touch it
    fork.crop(fork.position - 2)
    cropped = steps_of(decoder, fork)
    assert torch.equal(cropped.logits(token[None]), found[0])


@torch.inference_mode()
def test_weights_may_move_in_memory():
    decoder = decoder_with_weights("llama")
    steps, expected = (steps_of(decoder, prefill_inputs(decoder)[0]) for _ in range(2))
    for token in torch.arange(4)[:, None, None]:
        assert torch.equal(steps.logits(token), expected.logits(token))
        decoder.share_memory()


@torch.inference_mode()
def test_logits_are_the_callers():
    decoder = decoder_with_weights("llama")
    state, token = prefill_inputs(decoder)
    steps = steps_of(decoder, state)
    first, second, third = (steps.logits(token[None]) for _ in range(3))
    assert len({one.data_ptr() for one in (first, second, third)}) == 3
    assert not torch.equal(second, third)


@pytest.mark.parametrize(
    "block",
    [
        {"mixer": TedSpec().model_dump()},
        {"mixer": AttentionSpec(heads=2, value_residual={}).model_dump()},
        {"mixer": AttentionSpec(heads=2, window=4).model_dump()},
        {"mixer": AttentionSpec(heads=2, sinks=True).model_dump()},
    ],
    ids=lambda block: str(block["mixer"]["kind"]),
)
@torch.inference_mode()
def test_what_is_more_than_compiled_operations_is_no_program(block: dict[str, Any]):
    known = {"mixer": LLAMA.model_dump()}
    decoder = Decoder(small_spec(LLAMA).replace(blocks=[known, block, known])).eval()
    expected, state = (decoder.initial_state(1, 64) for _ in range(2))
    for each in (state, expected):
        decoder.hidden(PROMPT, each)
    steps = steps_of(decoder, state)
    for token in torch.arange(6)[:, None, None]:
        logits = decoder.logits(decoder.hidden(token, expected))[0]
        torch.testing.assert_close(steps.logits(token), logits, rtol=1e-4, atol=1e-5)
    assert steps._whole._program is None  # type: ignore[union-attr]


@torch.inference_mode()
def test_a_step_that_leaves_values_is_done_as_it_is():
    record, row, calls = AuxiliaryOutputs(), torch.ones(1, 3), []
    scaled = decode_steps.scale_add_row(library(torch.device("cpu")), 2.0)

    def step(token: int, position: int) -> torch.Tensor:
        calls.append(position)
        record.values["left"] = row
        return scaled(row, position)

    run = record_program(step, record)
    for position in range(3):
        assert torch.equal(run(0, position), 2 * row)
    assert calls == [0, 1, 2]


@torch.inference_mode()
def test_without_a_compiler_the_step_is_done_as_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(decode_steps, "library", lambda _: None)
    decoder = decoder_with_weights("llama")
    state, token = prefill_inputs(decoder)
    steps = steps_of(decoder, state)
    assert steps._whole is None
    assert steps.logits(token[None]).shape == (1, decoder.spec.vocab_size)
    assert record_program(len, AuxiliaryOutputs()) is len  # type: ignore[arg-type, comparison-overlap]
