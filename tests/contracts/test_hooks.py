"""Optional hooks of sublayers: a feed-forward with a state and an auxiliary loss, a mixer with cross-layer values, and
one that sees the future and never calibrates.
"""

import copy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
import torch
from examples import WIDTH, inputs
from torch import Tensor, nn

from linnet.core.errors import UserError
from linnet.data.loader import Batch
from linnet.evaluation.models import frozen_state
from linnet.inference.weights import convert_weights, weights_nbytes
from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.layers.cache_policy import FULL
from linnet.layers.contract import FeedForward, Mixer, Place, Traits
from linnet.layers.feed_forwards.mlp import PlainSpec
from linnet.layers.mixers.attention import AttentionSpec
from linnet.layers.state import NoState, State
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import load_decoder, save_decoder
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.optimizers import split_by_decay
from on_device import DEVICE

VOCABULARY, LENGTH = 11, 9


@dataclass
class LastToken(State):
    """The last token of each row, `[B, D]`."""

    last: Tensor


class ShiftedFeedForward(FeedForward):
    """A feed-forward that reads its token and the previous one, like RWKV's channel mixing, with an auxiliary loss."""

    traits = Traits(constant_state=True, window=2)

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.up = nn.Linear(2 * place.width, place.width)
        nn.init.constant_(self.up.bias, -4.6)
        self.decay = nn.Parameter(torch.ones(place.width, 2))

    def initial_state(self, batch, capacity, device, dtype, cache_policy=FULL) -> LastToken:
        return LastToken(torch.zeros(batch, self.place.width, device=device, dtype=dtype))

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        before_BD = torch.zeros_like(x_BTD[:, 0]) if state is None else state.last
        shifted_BTD = torch.cat([before_BD[:, None], x_BTD[:, :-1]], dim=1)
        if state is not None:
            state.last = x_BTD[:, -1]
        out_BTD = self.up(torch.cat([x_BTD, shifted_BTD], dim=-1)) * self.decay.sum(1)
        layout.add_loss("quiet", out_BTD.square().mean(), 0.5)
        return out_BTD


class FirstValues(Mixer):
    """The first layer saves its values, later layers add them to their own (RWKV-7)."""

    traits = Traits(constant_state=True, window=1)

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place, self.value = place, nn.Linear(place.width, place.width)

    def initial_state(self, batch, capacity, device, dtype, cache_policy=FULL) -> NoState:
        return NoState()

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        v_BTD = self.value(x_BTD)
        first_BTD = layout.cross_layer_value("first values")
        if first_BTD is None:
            layout.save_cross_layer_value("first values", v_BTD)
            return v_BTD
        return v_BTD + first_BTD


class FirstValuesOfTwo(FirstValues):
    """A variant that also reads the previous token, so that documents and padding matter."""

    traits = Traits(constant_state=True, window=2)

    def initial_state(self, batch, capacity, device, dtype, cache_policy=FULL) -> LastToken:
        return LastToken(torch.zeros(batch, self.place.width, device=device, dtype=dtype))

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        before_BD = torch.zeros_like(x_BTD[:, 0]) if state is None else state.last
        shifted_BTD = torch.cat([before_BD[:, None], x_BTD[:, :-1]], dim=1)
        if state is not None:
            state.last = x_BTD[:, -1]
        return super().forward(x_BTD + 2 * shifted_BTD, None, layout)


class HashedTokens(FirstValues):
    """A memory that is looked up by the ids of a token and of the previous one."""

    traits = Traits(constant_state=True, window=2)

    def initial_state(self, batch, capacity, device, dtype, cache_policy=FULL) -> LastToken:
        return LastToken(torch.zeros(batch, 1, device=device, dtype=torch.int64))

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        tokens_BT = layout.token_ids(x_BTD)
        before_B1 = torch.zeros_like(tokens_BT[:, :1]) if state is None else state.last
        pairs_BT = 3 * tokens_BT + 5 * torch.cat([before_B1, tokens_BT[:, :-1]], dim=1)
        if state is not None:
            state.last = tokens_BT[:, -1:]
        return x_BTD + (pairs_BT % 7)[..., None]


class SeesBackwards(FeedForward):
    """A feed-forward that reads the last token of the chunk."""

    traits = Traits(causal=False, exact_when_split=False, constant_state=True)

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.map = nn.Linear(place.width, place.width)

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        return self.map(x_BTD[:, -1:].expand_as(x_BTD))


class EverythingSeen(FirstValues):
    """The mean over the whole sequence, including later tokens, in every pass."""

    traits = Traits(causal=False, exact_when_split=False)

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        return self.value(x_BTD.mean(dim=1, keepdim=True).expand_as(x_BTD))


def decoder_with(monkeypatch: pytest.MonkeyPatch, mixer: type[Mixer] | None, feed_forward: type[FeedForward] | None):
    """A decoder of three layers."""
    if mixer is not None:
        monkeypatch.setattr(AttentionSpec, "build", lambda self, place: mixer(place))
    if feed_forward is not None:
        monkeypatch.setattr(PlainSpec, "build", lambda self, place: feed_forward(place))
    block = {"repeat": 3, "mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "mlp", "hidden": 8}}
    description = {"vocab_size": VOCABULARY, "d_model": WIDTH, "context_length": 32, "blocks": [block]}
    return Decoder(ModelSpec.parse(description, "test")).to(DEVICE)


def tokens() -> Tensor:
    return torch.randint(VOCABULARY, (2, LENGTH), device=DEVICE)


def test_a_feed_forward_can_have_a_state(monkeypatch: pytest.MonkeyPatch):
    decoder, tokens_BT = decoder_with(monkeypatch, None, ShiftedFeedForward).double(), tokens()
    state = decoder.initial_state(2, LENGTH)
    bounds = [0, 2, 3, LENGTH]
    out = torch.cat([decoder(tokens_BT[:, a:b], state) for a, b in pairwise(bounds)], dim=1)
    torch.testing.assert_close(out, decoder(tokens_BT))
    named = state.tensors()
    assert named["layer.1.feed_forward.last"].shape == (2, WIDTH)
    loaded = decoder.initial_state(2, LENGTH).with_tensors(named)
    assert torch.equal(loaded.feed_forwards[1].last, state.feed_forwards[1].last)


def test_documents_reset_the_state_of_a_feed_forward(monkeypatch: pytest.MonkeyPatch):
    decoder, tokens_BT = decoder_with(monkeypatch, None, ShiftedFeedForward).double(), tokens()
    apart = decoder(tokens_BT, documents=[[4], []])
    torch.testing.assert_close(apart[:1, 4:], decoder(tokens_BT[:1, 4:]))
    assert not torch.allclose(apart[:1, 4:], decoder(tokens_BT)[:1, 4:])


def test_an_auxiliary_loss_is_added_and_logged(monkeypatch: pytest.MonkeyPatch):
    decoder, tokens_BT = decoder_with(monkeypatch, None, ShiftedFeedForward), tokens()
    loss = next_token_loss(decoder, Batch(tokens_BT, tokens_BT))
    assert loss.terms.keys() == {"quiet"}
    torch.testing.assert_close(loss.total, loss.nats + 0.5 * loss.terms["quiet"])
    assert loss.total.requires_grad and not loss.nats.requires_grad


def test_a_sublayer_decides_its_initialization_weight_decay_and_maps(monkeypatch: pytest.MonkeyPatch):
    decoder = decoder_with(monkeypatch, None, ShiftedFeedForward)
    feed_forward = decoder.layers[0].feed_forward
    assert (feed_forward.up.bias == -4.6).all()
    decayed, free = split_by_decay(decoder)
    name = "blocks.0.layers.0.feed_forward"
    assert f"{name}.up.weight" in decayed
    assert {f"{name}.up.bias", f"{name}.decay"} <= free.keys()
    convert_weights(decoder, "int8")
    assert not isinstance(feed_forward.up, nn.Linear)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_maps_that_skip_quantization_stay(monkeypatch: pytest.MonkeyPatch, precision: str):
    """A map itself, and one below another module."""

    class Precise(ShiftedFeedForward):
        def __init__(self, place: Place) -> None:
            super().__init__(place)
            self.parts = nn.ModuleDict({"gate": nn.Linear(place.width, 1), "plain": nn.Linear(place.width, 1)})

        def skip_quantization(self):
            yield self.up
            yield self.parts["gate"]

    decoder = decoder_with(monkeypatch, None, Precise)
    maps = {name: isinstance(one, nn.Linear) for name, one in decoder.layers[1].feed_forward.named_modules()}
    assert maps["up"] and maps["parts.gate"] and maps["parts.plain"]
    convert_weights(decoder, precision)
    maps = {name: isinstance(one, nn.Linear) for name, one in decoder.layers[1].feed_forward.named_modules()}
    assert maps["up"] and maps["parts.gate"] and not maps["parts.plain"]


def test_a_buffer_can_be_computed_when_it_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A buffer with `persistent=False` is neither stored nor counted, and is the same in a loaded model."""

    class WithTable(ShiftedFeedForward):
        def __init__(self, place: Place) -> None:
            super().__init__(place)
            self.register_buffer("table", torch.linspace(0.5, 1.0, place.width), persistent=False)

        def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
            return super().forward(x_BTD, state, layout) * self.table

    plain, decoder = decoder_with(monkeypatch, None, ShiftedFeedForward), decoder_with(monkeypatch, None, WithTable)
    save_decoder(decoder, tmp_path)
    loaded, tokens_BT = load_decoder(tmp_path, DEVICE), tokens()
    assert loaded.state_dict().keys() == plain.state_dict().keys()
    assert torch.equal(loaded(tokens_BT), decoder(tokens_BT))
    for precision in ("float32", "int8"):
        twins = copy.deepcopy(plain), copy.deepcopy(decoder)
        for twin in twins:
            convert_weights(twin, precision)
        assert weights_nbytes(twins[1]) == weights_nbytes(twins[0])


def test_values_are_saved_for_later_layers_of_the_same_pass(monkeypatch: pytest.MonkeyPatch):
    decoder = decoder_with(monkeypatch, FirstValues, None).double()
    read: list[Tensor] = []
    for layer in decoder.layers:
        layer.mixer.register_forward_hook(lambda module, given, out: read.append(out - module.value(given[0])))
    decoder(tokens())
    assert not read[0].any()
    torch.testing.assert_close(read[1], read[2])
    assert read[1].any()


def test_a_layer_sees_the_token_ids(monkeypatch: pytest.MonkeyPatch):
    """Those of its rows and documents, also padded and at different positions."""
    decoder = decoder_with(monkeypatch, HashedTokens, None).double()
    tokens_BT = tokens()
    whole, rest = decoder(tokens_BT), decoder(tokens_BT[:1, 4:])
    with monkeypatch.context() as patched:
        patched.setattr(
            BatchLayout, "token_ids", lambda self, x_BTD: torch.zeros_like(x_BTD[..., 0], dtype=torch.int64)
        )
        assert not torch.allclose(decoder(tokens_BT), whole)
    torch.testing.assert_close(decoder(tokens_BT, padding=(4, 0))[:1, 4:], rest)
    torch.testing.assert_close(decoder(tokens_BT, documents=[[4], []])[:1, 4:], rest)
    states = [decoder.initial_state(1, LENGTH) for _ in range(2)]
    for row, length in enumerate((3, 7)):
        decoder(tokens_BT[row : row + 1, :length], states[row])
    out = decoder(torch.stack([tokens_BT[0, 3:4], tokens_BT[1, 7:8]]), states[0].join(states[1]))
    torch.testing.assert_close(out[:, 0], torch.stack([whole[0, 3], whole[1, 7]]))


def test_a_mixer_that_always_sees_the_future_is_refused_by_evaluation(monkeypatch: pytest.MonkeyPatch):
    decoder = decoder_with(monkeypatch, EverythingSeen, None)
    assert not decoder.causal
    with pytest.raises(UserError, match="layer 0: attention: sees later tokens always"):
        frozen_state(decoder, tokens()[:1], 1, LENGTH)


def test_a_sublayer_without_a_record_saves_nothing():
    toy = FirstValues(Place(WIDTH, 32)).double().to(DEVICE)
    x_BTD = inputs(1, 3)
    assert torch.equal(toy(x_BTD), toy.value(x_BTD))


def test_cross_layer_values_stay_with_their_rows_and_documents(monkeypatch: pytest.MonkeyPatch):
    decoder = decoder_with(monkeypatch, FirstValuesOfTwo, None).double()
    tokens_BT = tokens()
    alone = [decoder(tokens_BT[:1, 4:]), decoder(tokens_BT[1:])]
    padded = decoder(tokens_BT, padding=(4, 0))
    torch.testing.assert_close(padded[:1, 4:], alone[0])
    torch.testing.assert_close(padded[1:], alone[1])
    for state in (None, decoder.initial_state(2, LENGTH)):
        apart = decoder(tokens_BT, state, documents=[[4], [6]])
        torch.testing.assert_close(apart[:1, 4:], alone[0])
        torch.testing.assert_close(apart[1:, 6:], decoder(tokens_BT[1:, 6:]))


def test_cross_layer_values_stay_with_rows_at_different_positions(monkeypatch: pytest.MonkeyPatch):
    decoder = decoder_with(monkeypatch, FirstValuesOfTwo, None).double()
    tokens_BT, states = tokens(), [decoder.initial_state(1, LENGTH) for _ in range(2)]
    for row, length in enumerate((3, 7)):
        decoder(tokens_BT[row : row + 1, :length], states[row])
    batch = states[0].join(states[1])
    out = decoder(torch.stack([tokens_BT[0, 3:4], tokens_BT[1, 7:8]]), batch)
    torch.testing.assert_close(out[:1], decoder(tokens_BT[:1, :4])[:, 3:])
    torch.testing.assert_close(out[1:], decoder(tokens_BT[1:, :8])[:, 7:])


def test_an_auxiliary_loss_is_a_mean_over_all_documents(monkeypatch: pytest.MonkeyPatch):
    decoder = decoder_with(monkeypatch, None, ShiftedFeedForward).double()
    tokens_BT, record = tokens(), AuxiliaryOutputs()
    decoder.hidden(tokens_BT, documents=[[3], []], record=record)
    parts = [tokens_BT[:1, :3], tokens_BT[:1, 3:], tokens_BT[1:]]
    each = []
    for part in parts:
        each.append(AuxiliaryOutputs())
        decoder.hidden(part, record=each[-1])
    for layer in range(3):
        expected = sum(alone.losses[layer].value for alone in each) / 3
        torch.testing.assert_close(record.losses[layer].value, expected)


def test_a_feed_forward_that_sees_the_future_is_refused_by_evaluation(monkeypatch: pytest.MonkeyPatch):
    decoder = decoder_with(monkeypatch, None, SeesBackwards)
    with pytest.raises(UserError, match="sees later tokens always"):
        frozen_state(decoder, tokens()[:1], 1, LENGTH)


class GrowingSpec(PlainSpec):
    """A layer whose number of parameters grows with its index."""

    kind: Literal["growing"] = "growing"

    def build(self, place: Place):
        return PlainSpec(hidden=self.hidden + place.index).build(place)

    def cost(self, place: Place):
        return PlainSpec(hidden=self.hidden + place.index).cost(place)


def test_the_cost_of_a_layer_can_depend_on_its_index(monkeypatch: pytest.MonkeyPatch):
    block = {"repeat": 3, "mixer": {"kind": "ted"}, "feed_forward": {"kind": "mlp", "hidden": 8}}
    spec = ModelSpec.parse({"vocab_size": 11, "d_model": WIDTH, "context_length": 8, "blocks": [block] * 2}, "test")
    blocks = [each.model_copy(update={"feed_forward": GrowingSpec(hidden=8)}) for each in spec.blocks]
    spec = spec.model_copy(update={"blocks": blocks})
    assert model_cost(spec).parameters == sum(p.numel() for p in Decoder(spec).parameters())
