"""What the decoder promises, whatever mixers it is made of."""

from itertools import pairwise

import pytest
import torch
from examples import EXAMPLES, WIDTH, randomised
from torch import Tensor

from linnet.layers.contract import MixerSpec
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

VOCABULARY = 11
PROMPT, LENGTH = 5, 12


def spec_of(mixers: list[MixerSpec], **changes: object) -> ModelSpec:
    """Blocks of each mixer in turn: pre- and post-norm, a block of another width, one of shared weights, parallel
    branches at the end; token vectors of a width of their own.
    """
    blocks = []
    for index, mixer in enumerate(mixers):
        norm = {"kind": ("rms", "layer")[index % 2], "placement": ("pre", "post")[index % 2]}
        feed_forward = {"kind": ("glu", "mlp")[index % 2], "hidden": 12, "bias": index % 2 == 1}
        shape = [{}, {"width": 2 * WIDTH}, {"repeat": 2, "share_weights": True}][index % 3]
        blocks.append({"mixer": mixer, "norm": norm, "feed_forward": feed_forward, **shape})
    feed_forward = {"kind": "mlp", "hidden": 12}
    blocks.append({"mixer": mixers[0], "feed_forward": feed_forward, "residual": "parallel"})
    settings = {
        "vocab_size": VOCABULARY,
        "d_model": WIDTH,
        "context_length": 32,
        "embedding": {"width": 6, "positions": "learned", "norm": {"kind": "layer"}, "scale": True},
        "head": {"tied": True, "norm": {"kind": "rms"}},
    }
    return ModelSpec.parse({**settings, "blocks": blocks, **changes}, "test")


def decoder_of(mixers: list[MixerSpec], **changes: object) -> Decoder:
    return randomised(Decoder(spec_of(mixers, **changes))).double()


@pytest.fixture(params=["all", *range(len(EXAMPLES))], ids=str)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return decoder_of(EXAMPLES if request.param == "all" else [EXAMPLES[request.param]] * 3)


def tokens(batch: int, length: int = LENGTH) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length))


def feed(decoder: Decoder, tokens_BT: Tensor, bounds: list[int], padding_B: Tensor | None = None) -> Tensor:
    state = decoder.initial_state(len(tokens_BT), tokens_BT.shape[1], padding_B)
    return torch.cat([decoder(tokens_BT[:, a:b], state) for a, b in pairwise(bounds)], dim=1)


def test_predicted_parameters_are_the_built_ones(decoder: Decoder):
    assert model_cost(decoder.spec).parameters == sum(p.numel() for p in decoder.parameters())


@torch.no_grad()
@pytest.mark.parametrize("bounds", [[0, 5, 6, 7, 12], [0, 5, 9, 12], [0, 5, 7, 9, 11, 12]])
def test_after_the_prompt_every_cut_gives_the_same(decoder: Decoder, bounds: list[int]):
    tokens_BT = tokens(2)
    torch.testing.assert_close(feed(decoder, tokens_BT, bounds), feed(decoder, tokens_BT, [0, PROMPT, LENGTH]))


@torch.no_grad()
def test_one_pass_equals_one_chunk_with_a_state(decoder: Decoder):
    tokens_BT = tokens(2)
    torch.testing.assert_close(feed(decoder, tokens_BT, [0, LENGTH]), decoder(tokens_BT))


@torch.no_grad()
def test_a_left_padded_row_gives_what_it_gives_alone(decoder: Decoder):
    tokens_BT, padding_B = tokens(2), torch.tensor([4, 0])
    padded = feed(decoder, tokens_BT, [0, 6, 7, LENGTH], padding_B)
    alone = feed(decoder, tokens_BT[:1, 4:], [0, 2, 3, LENGTH - 4])
    torch.testing.assert_close(padded[:1, 4:], alone)


@torch.no_grad()
def test_a_state_survives_its_tensors(decoder: Decoder):
    tokens_BT = tokens(2)
    expected = feed(decoder, tokens_BT, [0, PROMPT, LENGTH])[:, PROMPT:]
    state = decoder.initial_state(2, LENGTH)
    decoder(tokens_BT[:, :PROMPT], state)
    loaded = decoder.initial_state(2, LENGTH).with_tensors(state.fork().tensors())
    torch.testing.assert_close(decoder(tokens_BT[:, PROMPT:], loaded), expected)


@torch.no_grad()
def test_a_cropped_state_goes_on_from_there(decoder: Decoder):
    tokens_BT = tokens(2)
    expected = feed(decoder, tokens_BT, [0, PROMPT, LENGTH])[:, PROMPT:]
    state = decoder.initial_state(2, LENGTH)
    decoder(tokens_BT[:, :PROMPT], state)
    decoder(tokens(2, 3), state)
    try:
        state.crop(PROMPT)
    except NotImplementedError:
        pytest.skip("one of its mixers cannot go back")
    torch.testing.assert_close(decoder(tokens_BT[:, PROMPT:], state), expected)


def test_a_full_state_is_refused_before_anything_happens(decoder: Decoder):
    state = decoder.initial_state(1, LENGTH)
    decoder(tokens(1, 10), state)
    with pytest.raises(ValueError, match="3 more tokens: the state has room for 2"):
        decoder(tokens(1, 3), state)
    assert state.position == 10


def test_learned_positions_end_where_the_context_ends():
    decoder = decoder_of([EXAMPLES[0]])
    with pytest.raises(ValueError, match="33 tokens: the model's learned positions end at 32"):
        decoder(tokens(1, 33))


def test_shared_weights_are_one_module_with_two_states():
    decoder = decoder_of(EXAMPLES[:1], blocks=[{"mixer": EXAMPLES[0], "repeat": 3, "share_weights": True}])
    assert len({id(layer) for layer in decoder.layers}) == 1
    state = decoder.initial_state(1, LENGTH)
    decoder(tokens(1), state)
    first, second, _ = (layer.tensors()["keys"] for layer in state.layers)
    assert not torch.equal(first, second)


def test_causality_of_a_model_is_that_of_its_mixers(decoder: Decoder):
    table = torch.nn.functional.one_hot(tokens(1), VOCABULARY).double().requires_grad_()
    weight = decoder.embedding.tokens.weight
    hook = decoder.embedding.tokens.register_forward_hook(lambda *_: table @ weight)
    out = decoder(tokens(1))[0, 6].square().sum()
    hook.remove()
    (gradient,) = torch.autograd.grad(out, table)
    settled = all(
        mixer.traits.causal or (mixer.traits.settled_after is not None and mixer.traits.settled_after <= 7)
        for mixer in decoder.mixers
    )
    assert bool((gradient[0, 7:] == 0).all()) == settled
    assert decoder.causal == all(mixer.traits.causal for mixer in decoder.mixers)
