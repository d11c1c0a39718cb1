"""A text without end: with a bank or a policy nothing grows with it, and what is read does not drift.

One stream of two layers: the lower keeps a bank, the upper the eight most relevant tokens.
"""

from dataclasses import dataclass, replace

import psutil
import pytest
import torch
from small_models import VOCABULARY
from torch import Tensor, nn

from linnet.inference.cache_policy import layer_sizes
from linnet.inference.decode import decode
from linnet.inference.prefill import new_state
from linnet.inference.sampling import Sampling
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.mixers.ted import BankCache, EvictionCache, Ted
from linnet.layers.mixers.ted.state import TedState
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.state import DecoderState

KEPT = 8
CONTEXTS = [BankCache(), EvictionCache(top_k=KEPT)]
LAST = 2_000
"""So many tokens decide what the upper layer holds: all before them are evicted."""


@dataclass
class Text:
    """A text that was generated: its tokens, the state after the last, and an earlier state, `LAST` tokens before."""

    tokens: Tensor
    state: DecoderState
    earlier: DecoderState
    bytes_of_process: list[int]
    bytes_of_state: list[int]


def small_ted() -> Decoder:
    """Tokens that fade at once, and tokens that stay for ever."""
    block = {"repeat": 2, "mixer": {"kind": "ted"}, "feed_forward": {"kind": "glu", "hidden": 24}}
    plain = {"vocab_size": VOCABULARY, "d_model": 16, "context_length": 64, "blocks": [block]}
    torch.manual_seed(0)
    decoder = Decoder(ModelSpec.parse({**plain, "head": {"tied": False, "norm": {}}}, "test"))
    nn.init.normal_(decoder.embedding.tokens.weight)
    lower = decoder.mixers[0]
    assert isinstance(lower, Ted)
    with torch.no_grad():
        lower.rate_weight.mul_(2.5)
    return decoder.requires_grad_(False)


def written(decoder: Decoder, count: int, measured_every: int) -> Text:
    """Generate so many tokens, and look at the memory now and then."""
    state = new_state(decoder, [[0]], count, CONTEXTS)
    steps = decode(decoder, [[0]], count, Sampling(1.0, seed=0), state=state)
    text = Text(torch.zeros(count + 1, dtype=torch.int64), state, state, [], [])
    for index, (token,) in enumerate(steps, start=1):
        text.tokens[index] = token
        if state.position == count - LAST:
            text.earlier = state.fork()
        if index % measured_every == 0:
            text.bytes_of_process.append(psutil.Process().memory_info().rss)
            text.bytes_of_state.append(state.nbytes)
    return text


def read_by_definition(mixer: Ted, x_1VD: Tensor, tokens_T: Tensor) -> Tensor:
    """What the last token reads in the lowest layer, whose rates and quantities follow from the token alone, `[D]`."""
    v_1VD, _ = mixer.quantity_gate.split(mixer.quantity_gate(x_1VD))
    ages_T = torch.arange(len(tokens_T) - 1, -1, -1)
    left_T = torch.exp(-mixer.rates(x_1VD).double()[0, tokens_T, 0] * ages_T)
    return torch.bincount(tokens_T, left_T, VOCABULARY) @ v_1VD[0].double()


def check_the_bank_reads_all_tokens(decoder: Decoder, text: Text) -> None:
    mixer, state, last = decoder.mixers[0], text.state.layers[0].fork(), text.tokens[-1:]
    assert isinstance(mixer, Ted) and isinstance(state, TedState)
    x_1VD = decoder.layers[0].mixer_norm(decoder.embedding.tokens.weight)[None]
    v_1VD, _ = mixer.quantity_gate.split(mixer.quantity_gate(x_1VD))
    rates_1VN = mixer.rates(x_1VD)
    found_D = state.read(rates_1VN[:, last], v_1VD[:, last], BatchLayout(text.state.position), mixer.decay)[0, 0]
    exact_D = read_by_definition(mixer, x_1VD, text.tokens)
    assert float((found_D - exact_D).abs().max() / exact_D.abs().max()) < 1e-5
    assert float(rates_1VN.min()) < 1e-5, "no token lives long"


def check_the_policy_has_forgotten_what_it_has_evicted(decoder: Decoder, text: Text) -> None:
    """An upper layer that was emptied `LAST` tokens ago, and has read those as one chunk, goes on in the same way."""
    lower, upper = text.earlier.layers
    fresh = replace(text.earlier, layers=(lower, upper.forget()))
    expected_V = decoder(text.tokens[None, fresh.position :], fresh)[0, -1]
    torch.testing.assert_close(decoder(text.tokens[None, -1:], text.state)[0, -1], expected_V, rtol=1e-4, atol=1e-5)
    assert [layer.size for layer in layer_sizes(text.state)[1:]] == [KEPT]
    assert len(text.tokens.bincount()) == VOCABULARY, "a dull text"


@torch.inference_mode()
def check_a_text_of(count: int) -> None:
    decoder = small_ted()
    text = written(decoder, count, count // 10)
    first, *_, last = text.bytes_of_process
    assert last - first < 2 * 2**20
    assert len(text.bytes_of_process) == 10 and len(set(text.bytes_of_state)) == 1
    check_the_bank_reads_all_tokens(decoder, text)
    check_the_policy_has_forgotten_what_it_has_evicted(decoder, text)


def test_a_long_text_leaves_memory_as_it_is_and_does_not_drift():
    check_a_text_of(2_500)


@pytest.mark.slow
def test_a_text_of_a_million_tokens_leaves_memory_as_it_is_and_does_not_drift():
    check_a_text_of(1_000_000)
