"""One token at a time in few operations gives what the decoder's own pass gives, and advances the state alike."""

from typing import Any

import pytest
import torch
from small_models import small_spec

from linnet.inference import ted_steps
from linnet.inference.caches import CachedReader
from linnet.inference.context import Contexts, context_state
from linnet.inference.ted_steps import TedSteps
from linnet.inference.weights import convert_weights
from linnet.mixers.attention import AttentionSpec
from linnet.mixers.base import MixerSpec
from linnet.mixers.ted import TedSpec
from linnet.mixers.ted_state import FULL, BankContext
from linnet.model.decoder import Decoder
from linnet.ops.decay.context import ContextPolicy

CONTEXTS: dict[str, Contexts] = {
    "full": FULL,
    "threshold": ContextPolicy(0, 0.05),
    "top_k": ContextPolicy(4, 0.01, 2),
    "fewest": ContextPolicy(0, 1e9, 3),
    "bank": BankContext(),
}
TOKENS = torch.arange(23).repeat(4)[:80]


def decoder_of(mixer: MixerSpec, **changes: Any) -> Decoder:
    torch.manual_seed(0)
    decoder = Decoder(small_spec(mixer).replace(**changes))
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.4)
    return decoder


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@torch.inference_mode()
def test_it_is_the_decoders_own_pass(context: Contexts, heads: int, sliced: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ted_steps, "SLICED", sliced)
    decoder = decoder_of(TedSpec(heads=heads, rate_bias=heads > 1, chunk=8))
    expected, state = (context_state(decoder, 1, len(TOKENS), context) for _ in range(2))
    for prepared in (expected, state):
        decoder.hidden(TOKENS[None, :3], prepared)
    steps = TedSteps.of(decoder, state)
    assert steps is not None
    for token in TOKENS[3:, None, None]:
        torch.testing.assert_close(steps.read(token), decoder.hidden(token, expected), rtol=1e-4, atol=1e-5)
    assert state.position == expected.position
    for ours, its in zip(state.layers, expected.layers, strict=True):
        for name, tensor in its.tensors().items():
            torch.testing.assert_close(ours.tensors()[name], tensor, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_generation_takes_it_and_a_full_state_ends_it():
    decoder = decoder_of(TedSpec())
    state = context_state(decoder, 1, 4, BankContext())
    reader = CachedReader(decoder, state)
    taken: list[torch.Tensor] = []
    assert reader._steps is not None
    reader._steps.read, read = taken.append, reader._steps.read  # type: ignore[assignment, method-assign]
    reader.read(TOKENS[None, :3])
    reader.read(TOKENS[None, 3:4])
    assert len(taken) == 1
    read(TOKENS[None, 3:4])
    with pytest.raises(ValueError, match="has room for 0"):
        read(TOKENS[None, 4:5])


def test_everything_else_takes_the_decoders_pass():
    ted = decoder_of(TedSpec())
    assert TedSteps.of(ted, context_state(ted, 1, 8)) is not None
    assert TedSteps.of(ted, context_state(ted, 2, 8)) is None
    assert TedSteps.of(ted, context_state(ted, 1, 8, padding_B=torch.tensor([1]))) is None
    attention = decoder_of(AttentionSpec(heads=2))
    assert TedSteps.of(attention, attention.initial_state(1, 8)) is None
    for changes in ({"embedding": {"positions": "learned"}}, {"embedding": {"scale": True}}):
        other = decoder_of(TedSpec(), **changes)
        assert TedSteps.of(other, context_state(other, 1, 8)) is None
    wide = decoder_of(TedSpec()).double()
    assert TedSteps.of(wide, context_state(wide, 1, 8)) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert TedSteps.of(ted, context_state(ted, 1, 8)) is None
    convert_weights(ted, "int8")
    assert TedSteps.of(ted, context_state(ted, 1, 8)) is None
