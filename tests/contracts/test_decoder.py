"""Properties of the decoder that hold for all mixers."""

import linecache
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import get_args
from weakref import WeakSet

import pytest
import torch
from examples import EXAMPLES, FEED_FORWARD_EXAMPLES, WIDTH, first_of_its_kind, in_turn, inputs, name_of, randomized
from torch import Tensor
from torch._dynamo.utils import counters

from linnet.data.loader import Batch
from linnet.inference.weights import Precision, convert_weights, weights_nbytes
from linnet.layers.batch_layout import EXPERTS_USED, AuxiliaryOutputs, BatchLayout
from linnet.layers.contract import MixerSpec, Place, Sublayer, SublayerSpec, linear_maps
from linnet.layers.mixers.ted import BankCache, EvictionCache
from linnet.layers.passes import run
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import load_decoder, save_decoder
from linnet.nn.linear import Linear
from linnet.nn.packed_linear import PackedLinear
from linnet.ops.cross_entropy import IGNORE_INDEX
from linnet.ops.linear import can_pack_bfloat16
from linnet.training.objectives import Objective
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.optimizers import split_by_decay
from on_device import DEVICE

VOCABULARY = 11
PROMPT, LENGTH = 5, 12


def spec_of(mixers: list[MixerSpec], **changes: object) -> ModelSpec:
    """Blocks of each mixer in turn: pre- and post-norm, another width, shared weights, parallel branches at the end;
    the token vectors have another width.
    """
    blocks = []
    for index, mixer in enumerate(mixers):
        norm = {"kind": ("rms", "layer")[index % 2], "placement": ("pre", "post")[index % 2]}
        feed_forward = FEED_FORWARD_EXAMPLES[index % len(FEED_FORWARD_EXAMPLES)]
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


def decoder_with_weights(mixers: list[MixerSpec], **changes: object) -> Decoder:
    return randomized(Decoder(spec_of(mixers, **changes))).double()


PLACEMENTS = ("pre", "post", "output", "sandwich")
RECIPE = {"d_model": WIDTH, "embedding": {"skip": True}, "head": {"norm": {"kind": "rms"}, "soft_cap": 2.0}}
"""Fields of the whole model that recent training recipes use."""


def recipe_blocks() -> list[dict[str, object]]:
    """One of each mixer, and pairs of those with cross-layer values, in all kinds of blocks that keep the width."""
    blocks = []
    for index, mixer in enumerate(
        [*(spec for spec in EXAMPLES if first_of_its_kind(spec) or spec.cross_layer_values(WIDTH))]
    ):
        norm = {"kind": ("rms", "layer")[index % 2], "placement": PLACEMENTS[index % 4]}
        feed_forward = FEED_FORWARD_EXAMPLES[index % len(FEED_FORWARD_EXAMPLES)]
        shape = {"repeat": 2, "share_weights": True} if index % 3 == 1 else {}
        blocks.append({"mixer": mixer, "norm": norm, "feed_forward": feed_forward, **shape})
    return blocks


SINGLE_PROCESS = [
    pytest.param(name_of(spec), marks=() if first_of_its_kind(spec) else pytest.mark.slow, id=name_of(spec))
    for spec in EXAMPLES
]


def versions_of(decoder: Decoder) -> dict[str, tuple[int, int]]:
    """The identity of each weight, and the number of writes to it."""
    return {name: (id(tensor), tensor._version) for name, tensor in decoder.state_dict(keep_vars=True).items()}


@cache
def decoder_named(name: str) -> tuple[Decoder, Tensor]:
    """A decoder that the tests of this file share and do not change, and the state of the random generator."""
    torch.manual_seed(0)
    if name == "recipe":
        return decoder_with_weights(EXAMPLES, **RECIPE, blocks=recipe_blocks()), torch.get_rng_state()
    named = dict(zip(map(name_of, EXAMPLES), EXAMPLES, strict=True))
    return decoder_with_weights(EXAMPLES if name == "all" else [named[name]] * 3), torch.get_rng_state()


@pytest.fixture(params=["all", "recipe", *SINGLE_PROCESS])
def decoder(request: pytest.FixtureRequest) -> Iterator[Decoder]:
    """All examples in turn, the fields of recipes, the first example of each kind, and (slow) every example."""
    decoder, chance = decoder_named(request.param)
    before = versions_of(decoder)
    torch.set_rng_state(chance)
    yield decoder
    assert versions_of(decoder) == before, "a test changed the shared decoder"


def tokens(batch: int, length: int = LENGTH) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length), device=DEVICE)


def feed(decoder: Decoder, tokens_BT: Tensor, bounds: list[int], padding: tuple[int, ...] | None = None) -> Tensor:
    """`padding`: that of the first chunk."""
    state = decoder.initial_state(*tokens_BT.shape)
    chunks = [tokens_BT[:, a:b] for a, b in pairwise(bounds)]
    out = [decoder(chunks[0], state, padding=padding), *(decoder(chunk, state) for chunk in chunks[1:])]
    return torch.cat(out, dim=1)


@cache
def fed_at_once(decoder: Decoder) -> tuple[Tensor, Tensor]:
    """Two rows of tokens, and the logits of a shared decoder for them, of the prompt and of the rest."""
    tokens_BT = tokens(2)
    with torch.no_grad():
        return tokens_BT, feed(decoder, tokens_BT, [0, PROMPT, LENGTH])


def test_predicted_parameters_equal_those_of_the_module(decoder: Decoder):
    assert model_cost(decoder.spec).parameters == sum(p.numel() for p in decoder.parameters())


@torch.no_grad()
@pytest.mark.parametrize("bounds", [[0, 5, 6, 7, 12], [0, 5, 9, 12], [0, 5, 7, 9, 11, 12]])
def test_after_the_prompt_outputs_do_not_depend_on_the_chunks(decoder: Decoder, bounds: list[int]):
    tokens_BT, expected = fed_at_once(decoder)
    torch.testing.assert_close(feed(decoder, tokens_BT, bounds), expected)


@torch.no_grad()
def test_one_pass_equals_one_chunk_with_a_state(decoder: Decoder):
    tokens_BT = tokens(2)
    torch.testing.assert_close(feed(decoder, tokens_BT, [0, LENGTH]), decoder(tokens_BT))


@torch.no_grad()
def test_a_left_padded_row_gives_the_same_outputs_as_without_padding(decoder: Decoder):
    tokens_BT = tokens(2)
    padded = feed(decoder, tokens_BT, [0, 6, 7, LENGTH], (4, 0))
    alone = feed(decoder, tokens_BT[:1, 4:], [0, 2, 3, LENGTH - 4])
    torch.testing.assert_close(padded[:1, 4:], alone)


@torch.no_grad()
def test_a_state_is_restored_from_its_tensors(decoder: Decoder):
    tokens_BT, expected = fed_at_once(decoder)
    state = decoder.initial_state(2, LENGTH)
    decoder(tokens_BT[:, :PROMPT], state)
    loaded = decoder.initial_state(2, LENGTH).with_tensors(state.fork().tensors())
    torch.testing.assert_close(decoder(tokens_BT[:, PROMPT:], loaded), expected[:, PROMPT:])


@torch.no_grad()
def test_a_cropped_state_continues_from_its_new_length(decoder: Decoder):
    tokens_BT, expected = fed_at_once(decoder)
    state = decoder.initial_state(2, LENGTH)
    decoder(tokens_BT[:, :PROMPT], state)
    decoder(tokens(2, 3), state)
    if not state.can_crop(PROMPT):
        with pytest.raises(NotImplementedError):
            state.crop(PROMPT)
        return
    state.crop(PROMPT)
    torch.testing.assert_close(decoder(tokens_BT[:, PROMPT:], state), expected[:, PROMPT:])


def test_a_full_state_is_refused_before_it_is_changed(decoder: Decoder):
    state = decoder.initial_state(1, LENGTH)
    decoder(tokens(1, 10), state)
    with pytest.raises(ValueError, match="3 more tokens: the state has room for 2"):
        decoder(tokens(1, 3), state)
    assert state.position == 10


def test_learned_positions_end_at_the_context_length():
    decoder = decoder_with_weights([EXAMPLES[0]])
    with pytest.raises(ValueError, match="33 tokens: the model's learned positions end at 32"):
        decoder(tokens(1, 33))


def test_shared_weights_are_one_module_with_two_states():
    decoder = decoder_with_weights(EXAMPLES[:1], blocks=[{"mixer": EXAMPLES[0], "repeat": 3, "share_weights": True}])
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
        mixer.traits.causal or (mixer.traits.calibrated_after is not None and mixer.traits.calibrated_after <= 7)
        for mixer in decoder.mixers
    )
    assert bool((gradient[0, 7:].abs() <= 1e-14 * gradient.abs().max()).all()) == settled  # rounding of a form by FFT
    assert decoder.causal == all(mixer.traits.causal for mixer in decoder.mixers)


@torch.no_grad()
def test_streams_join_and_leave_a_running_batch(decoder: Decoder):
    tokens_BT = tokens(2)
    states = [decoder.initial_state(1, LENGTH), decoder.initial_state(1, 2 * LENGTH)]
    decoder(tokens_BT[:1, :7], states[0])
    decoder(tokens_BT[1:, :PROMPT], states[1])
    batch = states[0].join(states[1])
    assert (batch.positions, batch.capacity) == ((7, PROMPT), 2 * LENGTH)
    step_BT = torch.stack([tokens_BT[0, 7:9], tokens_BT[1, PROMPT : PROMPT + 2]])
    out = decoder(step_BT, batch)
    rest = decoder(tokens_BT[1:, PROMPT + 2 :], batch.select(torch.tensor([1])))
    expected = feed(decoder, tokens_BT[:1], [0, 7, 9])[:, 7:]
    torch.testing.assert_close(out[:1], expected)
    expected = feed(decoder, tokens_BT[1:], [0, PROMPT, LENGTH])[:, PROMPT:]
    torch.testing.assert_close(torch.cat([out[1:], rest], dim=1), expected)


@torch.no_grad()
def test_documents_in_one_row_give_the_same_outputs_as_separate_ones(decoder: Decoder):
    tokens_BT, documents = tokens(2), [[4, 9], [0]]
    alone = torch.cat([decoder(tokens_BT[:1, a:b]) for a, b in ((0, 4), (4, 9), (9, LENGTH))], dim=1)
    expected = torch.cat([alone, decoder(tokens_BT[1:])])
    for state in (None, decoder.initial_state(2, LENGTH)):
        torch.testing.assert_close(decoder(tokens_BT, state, documents=documents), expected)
        assert state is None or state.positions == (LENGTH - 9, LENGTH)


def test_the_loss_is_that_of_the_logits_with_all_gradients(decoder: Decoder):
    tokens_BT, targets_BT = tokens(2), tokens(2)
    targets_BT[1, 7:] = IGNORE_INDEX
    loss = decoder(tokens_BT, targets=targets_BT)
    logits = decoder(tokens_BT).flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(
        logits, targets_BT.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
    )
    torch.testing.assert_close(loss.nats, expected)
    parameters = list(decoder.parameters())
    for actual, gradient in zip(
        torch.autograd.grad(loss.nats, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(actual, gradient)


def model_of(spec: SublayerSpec, **changes: object) -> ModelSpec:
    """Two layers with the sublayer, after a layer of another kind."""
    plain = {"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 12}}
    own = {**plain, "mixer" if isinstance(spec, MixerSpec) else "feed_forward": spec, "repeat": 2}
    settings = {"vocab_size": VOCABULARY, "d_model": WIDTH, "context_length": 32}
    return ModelSpec.parse({**settings, "blocks": [plain, own], **changes}, "test")


def sublayers_like(decoder: Decoder, spec: SublayerSpec) -> list[Sublayer]:
    layers = decoder.layers[1:]
    return [layer.mixer if isinstance(spec, MixerSpec) else layer.feed_forward for layer in layers]


def test_initial_values_are_those_of_the_sublayers(spec: SublayerSpec, monkeypatch: pytest.MonkeyPatch):
    """Except the weights of `nn.linear.Linear`, which only the description initializes."""
    built: list[dict[str, Tensor]] = []
    build, reset = type(spec).build, Linear.reset_parameters
    fresh: dict[int, Tensor] = {}

    def first_weights(self: Linear) -> None:
        reset(self)
        fresh[id(self)] = self.weight.detach().clone()

    def remembered(self: SublayerSpec, place: Place) -> Sublayer:
        sublayer = build(self, place)
        for name, part in sublayer.named_modules():
            own = isinstance(part, Linear) and not torch.equal(part.weight, fresh[id(part)])
            assert not own, f"{name} was set when it was built, and is drawn anew: make it a torch.nn.Linear"
        drawn = {id(part.weight) for part in sublayer.modules() if isinstance(part, Linear)}
        tensors = [*sublayer.named_parameters(), *sublayer.named_buffers()]
        given = {id(one) for one in sublayer.calibration().values()}
        built.append({name: t.detach().clone() for name, t in tensors if id(t) not in drawn and id(t) not in given})
        return sublayer

    monkeypatch.setattr(type(spec), "build", remembered)
    monkeypatch.setattr(Linear, "reset_parameters", first_weights)
    decoder = Decoder(model_of(spec))
    first = sublayers_like(decoder, spec)[0]
    names = {name for name, _ in [*first.named_parameters(), *first.named_buffers()]}
    own = [values for values in built if values.keys() <= names]
    for sublayer, values in zip(sublayers_like(decoder, spec), own[-2:], strict=True):
        found = {**dict(sublayer.named_parameters()), **dict(sublayer.named_buffers())}
        for name, value in values.items():
            assert torch.equal(found[name], value), name


def test_scaled_residuals_scale_the_outputs_of_branches(spec: SublayerSpec):
    """For any name of the last map, and any initialization of it."""
    outs = []
    for scaled in (False, True):
        torch.manual_seed(3)
        decoder = Decoder(model_of(spec, initialization={"scale_residual": scaled})).double().to(DEVICE)
        sublayer = sublayers_like(decoder, spec)[0]
        torch.manual_seed(4)
        outs.append(sublayer(inputs(1, 6)))
    torch.testing.assert_close(outs[1], outs[0] * (2 * decoder.spec.layers) ** -0.5)


def test_zero_outputs_make_branches_that_add_nothing(spec: SublayerSpec):
    """Only initially: gradients reach the last map."""
    decoder = Decoder(model_of(spec, initialization={"zero_outputs": True})).double().to(DEVICE)
    for sublayer in sublayers_like(decoder, spec):
        assert not sublayer(inputs(1, 6)).any()
    last = [linear.weight for sublayer in sublayers_like(decoder, spec) for linear in sublayer.output_projections()]
    loss = decoder(tokens(2), targets=tokens(2)).nats
    assert all(gradient.any() for gradient in torch.autograd.grad(loss, last))


@torch.no_grad()
@pytest.mark.parametrize("weights", get_args(Precision))
@pytest.mark.parametrize("tied", [True, False])
def test_no_logit_exceeds_the_cap(weights: str, tied: bool):
    """In any precision, also one token at a time; the order of tokens does not change."""
    tokens_BT = tokens(2)
    plain, capped = (
        Decoder(model_of(EXAMPLES[0], head={"tied": tied, "soft_cap": cap, "norm": {"kind": "rms"}})).to(DEVICE)
        for cap in (None, 0.5)
    )
    capped.load_state_dict(randomized(plain).state_dict())
    found = []
    for decoder in (plain, capped):
        convert_weights(decoder, weights)
        state = decoder.initial_state(2, LENGTH)
        decoder(tokens_BT[:, :-1], state)
        found.append(torch.cat([decoder(tokens_BT), decoder(tokens_BT[:, -1:], state)], dim=1).double())
    assert found[0].abs().max() > 0.5
    torch.testing.assert_close(found[1], 0.5 * torch.tanh(found[0] / 0.5), rtol=0.01, atol=1e-5)


def test_a_sublayer_gets_the_index_of_its_layer(spec: SublayerSpec, monkeypatch: pytest.MonkeyPatch):
    places: list[Place] = []
    build = type(spec).build
    monkeypatch.setattr(type(spec), "build", lambda self, place: places.append(place) or build(self, place))
    Decoder(model_of(spec))
    assert places[-2:] == [Place(WIDTH, 32, index, 3) for index in (1, 2)]


@torch.no_grad()
def test_a_saved_model_is_the_same_model(spec: SublayerSpec, tmp_path: Path):
    """Including buffers that are not stored."""
    decoder = randomized(Decoder(model_of(spec)))
    save_decoder(decoder, tmp_path)
    loaded = load_decoder(tmp_path, DEVICE)
    assert not any(tensor.is_meta for tensor in [*loaded.parameters(), *loaded.buffers()])
    tokens_BT = tokens(2)
    assert torch.equal(loaded(tokens_BT), decoder(tokens_BT))
    state = loaded.initial_state(2, LENGTH)
    torch.testing.assert_close(loaded(tokens_BT, state), decoder(tokens_BT))


def outputs_of(sublayer: Sublayer, x_BTD: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """The outputs without a state, of the first chunk of a stream, and of its next tokens."""
    x_BTD, places = x_BTD.to(dtype), range(20, x_BTD.shape[1])
    state = sublayer.initial_state(1, x_BTD.shape[1], DEVICE, dtype)
    found = {"pass": sublayer(x_BTD), "chunk": run(sublayer, x_BTD[:, :20], state, BatchLayout(0))}
    tokens = [run(sublayer, x_BTD[:, place : place + 1], state, BatchLayout(place)) for place in places]
    found["tokens"] = torch.cat(tokens, dim=1)
    return found


def error_of_tokens(actual: Tensor, expected: Tensor) -> float:
    """The median over tokens of the relative error: rounding may send a few tokens to other experts."""
    return float(((actual.double() - expected).norm(dim=-1) / expected.norm(dim=-1)).median())


ROUNDING = {"int8": 0.01, "int4": 0.2, "bfloat16": 0.005}
"""Largest relative error of a converted matrix."""


@torch.no_grad()
@pytest.mark.parametrize(("spec", "weights"), in_turn("int8", "int4", "bfloat16"))
def test_a_converted_layer_computes_with_the_rounded_weights(spec: SublayerSpec, weights: str):
    """All linear maps are converted, and outputs are those of the same layer with the matrices that these stand for.

    The rest of the error is that of activations and states in bfloat16.
    """
    decoder, exact = randomized(Decoder(model_of(spec))), Decoder(model_of(spec)).to(DEVICE)
    exact.load_state_dict(decoder.state_dict())
    convert_weights(decoder, weights)
    exact.to(decoder.dtype).float()  # other parameters are in bfloat16, too
    converted, rounded = (sublayers_like(each, spec)[0] for each in (decoder, exact))
    packed = dict(converted.named_modules())
    skipped = {id(linear) for part in rounded.skip_quantization() for linear in linear_maps(part)}
    for name, linear in rounded.named_modules():
        if isinstance(linear, torch.nn.Linear):
            kept = id(linear) in skipped or (weights == "bfloat16" and not can_pack_bfloat16(DEVICE))
            assert isinstance(packed[name], torch.nn.Linear if kept else PackedLinear), name
            stored = packed[name].weight.float()
            assert (stored - linear.weight).norm() < ROUNDING[weights] * linear.weight.norm(), name
            linear.weight.copy_(stored)
    x_BTD = inputs(1, 24, torch.float32)
    expected, actual = outputs_of(rounded.double(), x_BTD, torch.float64), outputs_of(converted, x_BTD, decoder.dtype)
    for form, out_BTD in actual.items():
        error = error_of_tokens(out_BTD, expected["tokens" if form == "steps" else form])
        assert error < (0.05 if weights == "bfloat16" else 0.02), form


@pytest.mark.cpu_only("weights are predicted as they are packed there")
@pytest.mark.parametrize(("spec", "weights"), in_turn("float32", "bfloat16", "int8", "int4"))
def test_predicted_bytes_of_weights_are_the_allocated_ones(spec: SublayerSpec, weights: str):
    model = model_of(spec, head={"tied": weights in ("float32", "int8")})
    decoder = Decoder(model)
    convert_weights(decoder, weights)
    assert model_cost(model).weights_bytes(weights) == weights_nbytes(decoder)


@torch.no_grad()
@pytest.mark.parametrize(("spec", "weights"), in_turn(*get_args(Precision)))
def test_the_state_has_the_predicted_size_in_every_precision(spec: SublayerSpec, weights: str):
    decoder = Decoder(model_of(spec)).to(DEVICE)
    convert_weights(decoder, weights)
    state, cost = decoder.initial_state(1, LENGTH), model_cost(decoder.spec)
    decoder(tokens(1, PROMPT), state)
    for counted in (PROMPT, LENGTH):
        assert state.held_nbytes(counted) == cost.state_bytes_for_precision(weights, counted)
    assert state.nbytes == cost.state_bytes_for_precision(weights, LENGTH)


@dataclass(eq=False)
class Kept:
    """A tensor that the graph keeps, and the line that computed with it; freed with what nothing needs of the graph."""

    tensor: Tensor
    line: str


def calling_line() -> str:
    """The innermost line of linnet that is running."""
    frame = sys._getframe(1)
    while "/linnet/" not in frame.f_code.co_filename and frame.f_back is not None:
        frame = frame.f_back
    path = frame.f_code.co_filename
    return f"{Path(path).name}:{frame.f_lineno}: {linecache.getline(path, frame.f_lineno).strip()}"


def kept_bytes(decoder: Decoder, tokens_BT: Tensor) -> Counter[str]:
    """Bytes of the tensors that the graph holds after a forward pass, except weights and token ids, by line."""
    own = {tensor.untyped_storage().data_ptr() for tensor in [*decoder.parameters(), *decoder.buffers()]}
    every: WeakSet[Kept] = WeakSet()

    def keep(tensor: Tensor) -> Kept:
        kept = Kept(tensor, calling_line())
        every.add(kept)
        return kept

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept.tensor):
        hidden_BTD = decoder.hidden(tokens_BT)
    assert hidden_BTD.requires_grad
    found, seen = Counter[str](), set(own)
    for kept in sorted(every, key=lambda kept: kept.line):
        is_token_ids = kept.tensor.dtype == torch.long and kept.tensor.shape == tokens_BT.shape
        storage = kept.tensor.untyped_storage()
        if not is_token_ids and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            found[kept.line] += storage.nbytes()
    return found


@pytest.mark.cpu_only("what a pass keeps is predicted of their forms")
def test_predicted_training_memory_is_what_a_pass_keeps(spec: SublayerSpec):
    """For one more layer, so that tensors shared by all layers (tables, masks) are not counted.

    A failure lists the bytes of each line whose operation keeps tensors.
    """
    tokens_BT, found, predicted = tokens(3, 24), [], []
    for repeat in (1, 2):
        model = model_of(spec)
        model = model.replace(blocks=[model.blocks[0], model.blocks[1].model_copy(update={"repeat": repeat})])
        found.append(kept_bytes(Decoder(model), tokens_BT))
        predicted.append(model_cost(model).training_memory(3, 24).activations)
    lines = (found[1] - found[0]).most_common()
    listed = "\n".join(f"{nbytes:9,} B  {line}" for line, nbytes in lines)
    expected = predicted[1] - predicted[0]
    assert sum(nbytes for _, nbytes in lines) == pytest.approx(expected, rel=0.02), (
        f"{expected:,} B predicted:\n{listed}"
    )


def test_only_linear_maps_and_declared_parameters_have_weight_decay(spec: SublayerSpec):
    decoder = Decoder(model_of(spec))
    decayed, free = split_by_decay(decoder)
    assert decayed.keys() | free.keys() == dict(decoder.named_parameters()).keys()
    for sublayer in decoder.sublayers:
        own = {id(parameter) for parameter in sublayer.no_weight_decay()}
        assert not own & {id(parameter) for parameter in decayed.values()}
    assert "embedding.tokens.weight" in free


def gradients_of(objective: Objective, decoder: Decoder, batch: Batch) -> list[Tensor]:
    loss = objective(decoder, batch).total
    return [loss.detach(), *torch.autograd.grad(loss, list(decoder.parameters()))]


def check_compiled(model: ModelSpec, backend: str) -> None:
    """Every sublayer is captured: behind its limit of recompilations PyTorch compiles nothing, and only warns."""
    torch.compiler.reset()
    counters.clear()
    decoder, batch = randomized(Decoder(model)).double(), Batch(tokens(2), tokens(2))
    with torch._dynamo.config.patch(recompile_limit=99, fail_on_recompile_limit_hit=True):
        compiled = gradients_of(torch.compile(next_token_loss, backend=backend), decoder, batch)
    assert counters["stats"]["unique_graphs"] >= 1
    for eager, found in zip(gradients_of(next_token_loss, decoder, batch), compiled, strict=True):
        # The rotary table is float32 by definition, and PLGA's powers multiply the last bit of its angles.
        assert (found - eager).norm() <= 1e-3 * eager.norm() + 1e-9


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_compiled_training_gives_the_same_loss_and_gradients(every: int):
    """The captured graph of a layer of every third (slow: of each) kind, in one model, and of what is around layers.

    Those with cross-layer values are there twice, and the model has the fields that recipes use with them.
    """
    members = [spec for spec in FEED_FORWARD_EXAMPLES if first_of_its_kind(spec)]
    values = [spec for spec in EXAMPLES if spec.cross_layer_values(WIDTH)]
    others = [spec for spec in EXAMPLES if first_of_its_kind(spec) and spec not in values]
    blocks = [
        {"mixer": spec, "feed_forward": members[index % len(members)], "repeat": 2 if spec in values else 1}
        for index, spec in enumerate([*values, *others[::every]])
    ]
    assert len(blocks) >= len(members)
    fields = {"embedding": {"skip": True}, "head": {"soft_cap": 2.0}}
    check_compiled(model_of(EXAMPLES[0], blocks=blocks, **fields), "eager")  # what is behind the capture: slow tests


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_training_of_one_layer_gives_the_same_loss_and_gradients(spec: SublayerSpec, backend: str):
    """The captured graph of every example alone, and the compiled code."""
    model = model_of(spec)
    if not spec.cross_layer_values(WIDTH):  # each further layer is compiled again, and takes as long
        model = model.replace(blocks=[{**model.blocks[1].model_dump(), "repeat": 1}])
    check_compiled(model, backend)


def test_impossible_padding_documents_and_prefixes_are_refused(decoder: Decoder):
    for wrong in ((3,), (3, -1), (0, LENGTH + 1)):
        with pytest.raises(ValueError, match=f"expected 2 numbers from 0 to {LENGTH}"):
            decoder(tokens(2), padding=wrong)
    for wrong in ([[1]], [[1], [LENGTH]], [[-1], []]):
        with pytest.raises(ValueError, match=f"expected 2 lists of places below {LENGTH}"):
            decoder(tokens(2), documents=wrong)


@torch.no_grad()
def test_a_new_document_needs_capacity_for_itself_only(decoder: Decoder):
    tokens_BT, state = tokens(1, 8), decoder.initial_state(1, LENGTH)
    decoder(tokens(1, 10), state)
    out = decoder(tokens_BT, state, documents=[[0]])
    torch.testing.assert_close(out, decoder(tokens_BT))
    assert state.positions == (8,)


def test_gradients_of_documents_flow_within_a_chunk_with_a_state(decoder: Decoder):
    tokens_BT, weight = tokens(1), decoder.embedding.tokens.weight
    found = []
    for state in (None, decoder.initial_state(1, LENGTH)):
        out = decoder(tokens_BT, state, documents=[[4]])
        found.append(torch.autograd.grad(out.square().sum(), weight)[0])
    torch.testing.assert_close(found[1], found[0])


def test_states_with_different_cache_policies_do_not_join():
    ted = decoder_with_weights([next(mixer for mixer in EXAMPLES if mixer.kind == "ted")])
    states = [ted.initial_state(1, LENGTH, EvictionCache(top_k=k)) for k in (2, 9)]
    with pytest.raises(ValueError, match="different cache policies cannot join"):
        states[0].join(states[1])
    banks = [ted.initial_state(1, capacity, BankCache()) for capacity in (20, 4000)]
    with pytest.raises(ValueError, match="different cache policies cannot join"):
        banks[0].join(banks[1])


def test_a_row_is_calibrated_on_its_first_token(decoder: Decoder):
    """Or it is refused: a calibration needs tokens."""
    tokens_BT, state = tokens(2), decoder.initial_state(2, LENGTH)
    try:
        decoder(tokens_BT[:, :3], state, padding=(3, 0))
    except ValueError as error:
        assert any(mixer.traits.calibrates for mixer in decoder.mixers), error
        return
    assert state.positions == (0, 3)
    out = decoder(tokens_BT[:, 3:], state)
    torch.testing.assert_close(out[:1], decoder(tokens_BT[:1, 3:]))


@torch.no_grad()
def test_auxiliary_outputs_are_those_of_the_documents_that_add_them(decoder: Decoder):
    """A row that continues is calibrated; one that restarts shows its new calibration."""
    tokens_BT, state, record = tokens(2), decoder.initial_state(2, LENGTH), AuxiliaryOutputs(outputs=[])
    decoder(tokens_BT[:, :4], state)
    decoder(tokens_BT[:, 4:], state, documents=[[], [2]], record=record)
    assert record.outputs is not None
    for mixer, shown in zip(decoder.mixers, record.outputs, strict=True):
        assert bool(shown.keys() - {EXPERTS_USED}) == (mixer.traits.calibrates or bool(mixer.calibration()))
