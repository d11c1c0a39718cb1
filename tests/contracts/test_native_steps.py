"""The step as one native call is the forward pass, for every kind of layer that has native functions.

Its calls are those of one token and position; numbers that Python reads from tensors would stay theirs.
"""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch
from examples import ALL, CONTEXT, WIDTH, name_of, randomized
from torch import Tensor

from linnet.inference.captured_step import StateTensors
from linnet.inference.compiled_step import MAX_ERRORS
from linnet.inference.native_step import NativeStep
from linnet.inference.readers import CachedReader
from linnet.inference.weights import Precision, convert_weights
from linnet.layers.contract import MixerSpec, SublayerSpec
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.state import DecoderState
from linnet.ops.native import library

pytestmark = [
    pytest.mark.cpu_only("native functions"),
    pytest.mark.skipif(library(torch.device("cpu")) is None, reason="no compiler, or another processor"),
]

VOCABULARY, STEPS, FORK = 11, 9, 4
PROMPTS = ([3], [1, 2, 3, 4, 5])
"""Of streams that have different ages and rooms."""

FIELDS_WITHOUT_FUNCTIONS = ("window", "positions", "value_residual", "gate", "sinks", "soft_cap")


def has_native_form(spec: SublayerSpec) -> bool:
    """True for layers of products, norms, activations, rotary positions, and attention or an operator alone."""
    extras = [getattr(spec, name, None) for name in FIELDS_WITHOUT_FUNCTIONS]
    return spec.kind in ("attention", "plga", "mlp", "glu") and not any(extras)


NATIVE = [spec for spec in ALL if has_native_form(spec)]


def decoder_of(spec: SublayerSpec, precision: str = "float32") -> Decoder:
    """Two such layers after one of attention."""
    known: dict[str, Any] = {"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "mlp", "hidden": 24}}
    own = {"mixer": spec} if isinstance(spec, MixerSpec) else {"feed_forward": spec}
    shape = {"vocab_size": VOCABULARY, "d_model": WIDTH, "context_length": CONTEXT}
    blocks = [known, {**known, **own, "repeat": 2}]
    decoder = randomized(Decoder(ModelSpec.parse({**shape, "blocks": blocks, "embedding": {}, "head": {}}, "test")))
    convert_weights(decoder, precision)
    return decoder.eval().requires_grad_(False)


def behind(decoder: Decoder, prompt: list[int]) -> DecoderState:
    """A stream that has read the prompt, with room for the steps."""
    state = decoder.initial_state(1, len(prompt) + STEPS)
    decoder.hidden(torch.tensor([prompt]), state)
    return state


def logits_of(decoder: Decoder, state: DecoderState, first: int, native: bool) -> Iterator[Tensor]:
    """The logits `[1, V]` of the tokens from the `first` on."""
    step = NativeStep.of(decoder, state) if native else None
    assert (step is not None) is native
    kept = {name: tensor.data_ptr() for name, tensor in StateTensors(state).tensors.items()}
    for index in range(first, STEPS):
        token_11 = torch.tensor([[3 * index % VOCABULARY]])
        yield decoder.logits(decoder.hidden(token_11, state))[:, 0] if step is None else step.logits(token_11)
        if native:
            assert kept == {name: tensor.data_ptr() for name, tensor in StateTensors(state).tensors.items()}


def outputs(decoder: Decoder, prompt: list[int], native: bool) -> dict[str, Tensor]:
    """Logits and states of a stream, and of a fork that is taken in the middle and goes on first."""
    state, logits = behind(decoder, prompt), list[Tensor]()
    steps = logits_of(decoder, state, 0, native)
    logits += [next(steps) for _ in range(FORK)]
    fork = state.fork()
    found = {"fork": torch.cat(list(logits_of(decoder, fork, FORK + 1, native)))}
    found["logits"] = torch.cat([*logits, *steps])
    for name, each in (("fork: ", fork), ("", state)):
        found |= {name + key: tensor for key, tensor in each.tensors().items()}
    return found


@torch.inference_mode()
@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("spec", NATIVE, ids=name_of)
def test_a_native_step_is_the_forward_pass(spec: SublayerSpec, precision: str):
    decoder, limit = decoder_of(spec, precision), MAX_ERRORS[precision]
    prompt = PROMPTS[(NATIVE.index(spec) + get_args(Precision).index(precision)) % 2]
    expected, found = (outputs(decoder, prompt, native) for native in (False, True))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        size = float(tensor.float().square().mean().sqrt())
        assert float((found[name] - tensor).abs().max()) <= limit * size, name


@torch.inference_mode()
def test_every_layer_of_native_functions_has_a_native_step_and_no_other(spec: SublayerSpec):
    decoder = decoder_of(spec)
    assert (NativeStep.of(decoder, behind(decoder, PROMPTS[1])) is not None) == has_native_form(spec)


@torch.inference_mode()
@pytest.mark.parametrize("spec", NATIVE, ids=name_of)
def test_rows_that_join_and_leave_go_on_with_the_same_logits(spec: SublayerSpec):
    """Several rows have ordinary steps, one has native ones: a reader changes between them."""
    decoder = decoder_of(spec)
    states = [behind(decoder, prompt) for prompt in PROMPTS]
    both = states[0].grown(states[1].capacity).join(states[1])
    assert NativeStep.of(decoder, both) is None
    token_B1 = torch.tensor([[3], [7]])
    joined = CachedReader(decoder, both).logits(token_B1)
    alone = [CachedReader(decoder, state) for state in states]
    for row, reader in enumerate(alone):
        torch.testing.assert_close(reader.logits(token_B1[row : row + 1])[0], joined[row], rtol=1e-4, atol=1e-5)
    left = CachedReader(decoder, both.select(torch.tensor([1])))
    torch.testing.assert_close(left.logits(token_B1[:1]), alone[1].logits(token_B1[:1]), rtol=1e-4, atol=1e-5)
