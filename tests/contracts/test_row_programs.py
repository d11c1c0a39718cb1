"""A decode step that is recorded once equals the step for every token, for all kinds of layers.

Computation outside PyTorch (`tolist`, `numpy`, a branch on a value) is not recorded: its results would stay those of
the recorded token and position. These tests would find a difference.
"""

from typing import Any, get_args

import pytest
import torch
from examples import CONTEXT, WIDTH, randomized
from torch import Tensor

from linnet.inference.decode_steps import DecodeSteps
from linnet.inference.weights import Precision, convert_weights
from linnet.layers.contract import DecodeStep, MixerSpec, SublayerSpec
from linnet.layers.feed_forwards.mlp import PlainFeedForward
from linnet.layers.mixers.attention import AttentionSpec
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.state import DecoderState
from linnet.ops.native import library
from linnet.ops.native.elementwise import scale_add_row

pytestmark = [
    pytest.mark.cpu_only("steps on rows"),
    pytest.mark.skipif(library(torch.device("cpu")) is None, reason="no compiler, or another processor"),
]

VOCABULARY, PROMPT = 11, 4
TOKENS = torch.tensor([3, 7, 0, 10, 7, 2])
"""The tokens of the steps: the first step is recorded, the others are replayed."""


def decoder_with_weights(spec: SublayerSpec, weights: str) -> Decoder:
    """Two such layers after one whose step can be recorded."""
    known: dict[str, Any] = {"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "mlp", "hidden": 24}}
    own = {"mixer": spec} if isinstance(spec, MixerSpec) else {"feed_forward": spec}
    shape = {"vocab_size": VOCABULARY, "d_model": WIDTH, "context_length": CONTEXT}
    blocks = [known, {**known, **own, "repeat": 2}]
    decoder = randomized(Decoder(ModelSpec.parse({**shape, "blocks": blocks, "embedding": {}, "head": {}}, "test")))
    convert_weights(decoder, weights)
    return decoder.eval()


def behind_a_prompt(decoder: Decoder) -> tuple[DecoderState, DecodeSteps | None]:
    state = decoder.initial_state(1, PROMPT + len(TOKENS))
    decoder.hidden(torch.arange(PROMPT)[None], state)
    return state, DecodeSteps.of(decoder, state)


def results_of(decoder: Decoder, programs: bool) -> dict[str, Tensor]:
    """The logits of each step, and the state after the last."""
    state, steps = behind_a_prompt(decoder)
    if steps is None:
        pytest.skip("a layer has no decode step in bfloat16")
    assert steps._whole is not None
    if not programs:
        steps._whole._recordable = False  # type: ignore[attr-defined]
    logits = torch.cat([steps.logits(token) for token in TOKENS[:, None, None]])
    return {"logits": logits, **state.tensors()}


def assert_the_same_written_down(decoder: Decoder) -> None:
    plain, written = (results_of(decoder, programs) for programs in (False, True))
    assert plain.keys() == written.keys()
    for name, tensor in plain.items():
        assert torch.equal(tensor, written[name]), name


@pytest.mark.parametrize("weights", get_args(Precision))
@torch.inference_mode()
def test_recorded_decode_steps_equal_the_steps(spec: SublayerSpec, weights: str):
    assert_the_same_written_down(decoder_with_weights(spec, weights))


@torch.inference_mode()
def test_numbers_read_from_tensors_are_detected(monkeypatch: pytest.MonkeyPatch):
    plain, compiled = PlainFeedForward.decode_step, library(torch.device("cpu"))
    assert compiled is not None

    def careless(layer: PlainFeedForward, *given: Any) -> DecodeStep:
        step = plain(layer, *given)
        assert step is not None
        return lambda sum_1D, x_1D, place: scale_add_row(compiled, x_1D.tolist()[0][0])(
            step(sum_1D, x_1D, place), place
        )

    decoder = decoder_with_weights(AttentionSpec(heads=2), "float32")
    assert_the_same_written_down(decoder)
    monkeypatch.setattr(PlainFeedForward, "decode_step", careless)
    with pytest.raises(AssertionError, match="logits"):
        assert_the_same_written_down(decoder)
