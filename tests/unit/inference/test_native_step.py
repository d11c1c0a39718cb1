"""Whole models with steps of one native call, their states and weights, and models that have no such steps."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from small_models import small_spec

from linnet.inference import native_step
from linnet.inference.cache_policy import cache_policy_state
from linnet.inference.native_step import NativeStep, block_program, outside_program
from linnet.inference.readers import CachedReader
from linnet.inference.weights import convert_weights
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import MixerSpec
from linnet.layers.mixers.attention import AttentionSpec, RotarySpec
from linnet.layers.mixers.plga import PlgaSpec
from linnet.layers.mixers.ted import TedSpec
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState
from linnet.ops.native import library

pytestmark = pytest.mark.skipif(library(torch.device("cpu")) is None, reason="no compiler, or another processor")

PROMPT, STEPS = torch.arange(5)[None], 21
RMS, LAYER = {"kind": "rms", "eps": 1e-5}, {"kind": "layer", "eps": 1e-5}
ROTARY = RotarySpec(pairing="adjacent", fraction=0.5)
GELU, GLU = {"kind": "mlp", "hidden": 40, "bias": True}, {"kind": "glu", "hidden": 24}
LLAMA, PLGA = AttentionSpec(heads=4, kv_heads=2, rotary=RotarySpec()), PlgaSpec(heads=2, metric_hidden=8)
NORMED = AttentionSpec(heads=2, rotary=ROTARY, query_key_norm={"kind": "layer"}, scale=0.3)
SANDWICH = {**RMS, "placement": "sandwich", "unit_offset": True}
MODELS: dict[str, tuple[MixerSpec, dict[str, Any], dict[str, Any]]] = {
    "llama": (LLAMA, {"feed_forward": GLU, "norm": RMS}, {}),
    "gpt-2": (
        AttentionSpec(heads=2, rotary=None, bias=True),
        {"feed_forward": GELU, "norm": LAYER},
        {"embedding": {"positions": "learned"}, "head": {"tied": True, "norm": LAYER}},
    ),
    "sinusoidal": (
        AttentionSpec(heads=2, rotary=None),
        {"feed_forward": GELU, "norm": LAYER},
        {"embedding": {"positions": "sinusoidal", "norm": LAYER}},
    ),
    "parallel": (LLAMA, {"feed_forward": GLU, "norm": LAYER, "residual": "parallel"}, {"head": {"soft_cap": 9.0}}),
    "qwen": (AttentionSpec(heads=2, query_key_norm={}), {"feed_forward": GLU, "norm": RMS}, {}),
    "layer norms of heads, behind": (NORMED, {"feed_forward": GELU, "norm": {**RMS, "placement": "post"}}, {}),
    "output": (LLAMA, {"feed_forward": GLU, "norm": {**LAYER, "placement": "output"}}, {}),
    "sandwich": (LLAMA, {"feed_forward": GLU, "norm": SANDWICH}, {}),
    "no feed-forward": (LLAMA, {"feed_forward": None, "norm": SANDWICH}, {}),
    "plga": (PLGA, {"feed_forward": GLU, "norm": RMS}, {}),
    "narrow": (
        LLAMA,
        {"feed_forward": GLU, "norm": RMS, "width": 8, "repeat": 3, "share_weights": True},
        {"embedding": {"scale": True, "width": 12, "norm": RMS}, "head": {"tied": True, "scale": True, "norm": None}},
    ),
}
LIMITS = {"float32": 1e-4, "bfloat16": 0.25, "int8": 0.02, "int4": 0.02}
"""Largest difference from the model's logits, in their standard deviations, as for compiled steps."""


def decoder_with_weights(name: str, weights: str = "float32") -> Decoder:
    mixer, block, changes = MODELS[name]
    torch.manual_seed(0)
    blocks = [{"repeat": 2, **block, "mixer": mixer.model_dump()}]
    decoder = Decoder(small_spec(mixer).replace(blocks=blocks, context_length=PROMPT.numel() + STEPS, **changes))
    for named, parameter in decoder.named_parameters():
        if "operator" not in named:
            torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    convert_weights(decoder, weights)
    return decoder.eval()


def behind(decoder: Decoder, capacity: int = PROMPT.numel() + STEPS) -> DecoderState:
    """The state of a stream that has read the prompt."""
    state = decoder.initial_state(1, capacity)
    decoder.hidden(PROMPT, state)
    return state


def native(decoder: Decoder, state: DecoderState) -> NativeStep:
    found = NativeStep.of(decoder, state)
    assert found is not None
    return found


@pytest.mark.parametrize("weights", LIMITS)
@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_models_of_every_shape_have_native_steps(name: str, weights: str):
    decoder = decoder_with_weights(name, weights)
    state, other = behind(decoder), behind(decoder)
    step, found, expected = native(decoder, state), [], []
    for token in torch.arange(STEPS)[:, None, None] % decoder.spec.vocab_size:
        found.append(step.logits(token))
        expected.append(decoder.logits(decoder.hidden(token, other))[0])
    difference = (torch.cat(found) - torch.cat(expected)).abs().max()
    assert difference <= LIMITS[weights] * torch.cat(expected).float().std()
    assert state.positions == other.positions == (PROMPT.numel() + STEPS,)


@torch.inference_mode()
def test_bfloat16_is_as_near_to_float32_as_the_ordinary_pass():
    precise, rounded = decoder_with_weights("llama"), decoder_with_weights("llama", "bfloat16")
    exact, state, other = behind(precise), behind(rounded), behind(rounded)
    step, errors = native(rounded, state), torch.zeros(2)
    for token in torch.arange(STEPS)[:, None, None]:
        of_float32 = precise.logits(precise.hidden(token, exact))[:, 0]
        found = torch.cat([step.logits(token), rounded.logits(rounded.hidden(token, other))[:, 0]])
        errors += (found - of_float32).square().sum(1)
    assert errors[0] <= 1.2 * errors[1]


@torch.inference_mode()
def test_the_state_forks_grows_joins_and_is_cropped():
    decoder = decoder_with_weights("llama")
    state = behind(decoder)
    step, token = native(decoder, state), torch.tensor([[7]])
    for _ in range(3):
        token = step.logits(token).argmax(dim=-1, keepdim=True)
    fork, grown, joined = state.fork(), state.grown(300), state.join(state)
    expected = decoder.logits(decoder.hidden(token.expand(2, 1), joined))[0]
    found = [[native(decoder, one).logits(token) for _ in range(2)] for one in (fork, grown)]
    torch.testing.assert_close(found[0][0], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert torch.equal(step.logits(token), found[0][0])  # the others did not touch it
    fork.crop(fork.position - 2)
    assert torch.equal(native(decoder, fork).logits(token), found[0][0])


@torch.inference_mode()
def test_a_state_of_one_place_and_a_full_one_end_the_stream():
    decoder = decoder_with_weights("llama")
    state = behind(decoder, PROMPT.numel() + 1)
    step = native(decoder, state)
    step.logits(torch.tensor([[3]]))
    with pytest.raises(ValueError, match="has room for 0"):
        step.logits(torch.tensor([[3]]))
    assert NativeStep.of(decoder, state) is None
    short = decoder.initial_state(1, 1)
    decoder.hidden(PROMPT[:, :1], short)
    assert NativeStep.of(decoder, short) is None


@torch.inference_mode()
def test_streams_of_many_rooms_share_tables_of_positions():
    decoder = decoder_with_weights("llama")
    steps = [native(decoder, behind(decoder, room)) for room in (9, 17, 18, 25, 31, 10)]
    for step in steps:
        step.logits(torch.tensor([[3]]))
    ((_, plan),) = native_step._PLANS[decoder].values()
    assert plan is not None and sorted({len(table) for table in plan.tables.values()}) == [32]
    assert len(plan.tables) == 2  # cosines and sines, for both layers


@torch.inference_mode()
def test_weights_may_move_and_change():
    decoder = decoder_with_weights("llama")
    step, other = native(decoder, behind(decoder)), behind(decoder)
    for token in torch.arange(4)[:, None, None]:
        expected = decoder.logits(decoder.hidden(token, other))[0]
        torch.testing.assert_close(step.logits(token), expected, rtol=1e-4, atol=1e-5)
        decoder.share_memory()
    for parameter in decoder.parameters():
        parameter.data = parameter + 0.1
    token, state, other = torch.tensor([[3]]), behind(decoder), behind(decoder)
    expected = decoder.logits(decoder.hidden(token, other))[0]
    torch.testing.assert_close(native(decoder, state).logits(token), expected, rtol=1e-4, atol=1e-5)
    convert_weights(decoder, "bfloat16")
    assert len(native_step._PLANS[decoder]) == 1
    assert native(decoder, behind(decoder)).logits(token).isfinite().all()
    assert len(native_step._PLANS[decoder]) == 1  # the plan of the old weights would keep them alive


@torch.inference_mode()
def test_logits_are_the_callers():
    decoder = decoder_with_weights("llama")
    step = native(decoder, behind(decoder))
    first, second, third = (step.logits(torch.tensor([[3]])) for _ in range(3))
    assert len({one.data_ptr() for one in (first, second, third)}) == 3
    assert not torch.equal(second, third)


@torch.inference_mode()
def test_a_reader_takes_it_after_the_prompt(monkeypatch: pytest.MonkeyPatch):
    decoder = decoder_with_weights("plga")
    reader, taken, logits = CachedReader(decoder, decoder.initial_state(1, 4)), list[int](), NativeStep.logits
    monkeypatch.setattr(NativeStep, "logits", lambda step, token: taken.append(int(token)) or logits(step, token))
    for tokens in ([0], [1, 2], [3]):
        reader.logits(torch.tensor([tokens]))
    assert taken == [3]
    with pytest.raises(ValueError, match="has room for 0"):
        reader.logits(torch.tensor([[4]]))


@torch.inference_mode()
def test_other_models_and_states_have_none():
    decoder = decoder_with_weights("llama")
    assert NativeStep.of(decoder, decoder.initial_state(1, 8)) is None
    several = decoder.initial_state(2, 8)
    decoder.hidden(PROMPT.expand(2, -1), several)
    assert NativeStep.of(decoder, several) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert NativeStep.of(decoder, behind(decoder)) is None
    wide = deepcopy(decoder).double()
    assert NativeStep.of(wide, behind(wide)) is None
    plga = decoder_with_weights("plga")
    recalibrated = cache_policy_state(plga, 1, 8, "recalibrate")
    plga.hidden(PROMPT, recalibrated)
    assert NativeStep.of(plga, recalibrated) is None
    ted = Decoder(small_spec(TedSpec())).eval()
    assert NativeStep.of(ted, behind(ted, 12)) is None


@torch.inference_mode()
def test_without_a_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native_step, "library", lambda _: None)
    decoder = decoder_with_weights("llama")
    assert NativeStep.of(decoder, behind(decoder)) is None
    assert outside_program(decoder, 8) is None


@torch.inference_mode()
def test_wrong_calls_are_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """They are compared with the pass that was traced."""
    lowered = native_step.lowered

    def with_other_operands(*given: Any) -> Any:
        plan = lowered(*given)
        plan.calls[-1].operands = plan.calls[-2].operands
        return plan

    monkeypatch.setattr(native_step, "lowered", with_other_operands)
    decoder = decoder_with_weights("llama")
    assert NativeStep.of(decoder, behind(decoder)) is None
    assert "the native decoding step is not used: it differs from the model" in caplog.text


@torch.inference_mode()
def test_parts_of_a_model_are_programs():
    """A block without its projection, and the embedding with the head, as `design.latency` times them."""
    decoder = decoder_with_weights("gpt-2")
    state, block = behind(decoder), decoder.blocks[0]
    x_11D = torch.randn(1, 1, decoder.spec.d_model)
    expected, layers = x_11D, state.fork().by_layer()
    program = block_program(block, state, x_11D)
    assert program is not None
    for index, of_layer in enumerate(layers):
        expected = block.layer(index)(expected, of_layer, BatchLayout(state.position), x_11D)
    for _ in range(2):
        torch.testing.assert_close(program(0, state.position), expected[0], rtol=1e-4, atol=1e-5)
    outside, token_11 = outside_program(decoder, 8), torch.tensor([[3]])
    assert outside is not None
    embedded = decoder.embedding(token_11, BatchLayout(5))
    logits = decoder.logits(decoder.after_blocks(embedded))[0]
    torch.testing.assert_close(outside(3, 5), logits, rtol=1e-4, atol=1e-5)
    with pytest.raises(IndexError):
        outside(decoder.spec.vocab_size, 5)
