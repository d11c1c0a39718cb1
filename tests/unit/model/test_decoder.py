"""Encoder-decoders: visibility of tokens, streams, and cost."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from linnet.core.errors import UserError
from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder, Embedding, Inputs
from linnet.model.spec import EmbeddingSpec, ModelSpec
from linnet.model.state import rows_to_take
from linnet.ops.cross_entropy import (
    IGNORE_INDEX,
    SummedLoss,
    linear_cross_entropy,
    linear_cross_entropy_reference,
)


@pytest.mark.parametrize("width", [1, 6, 7])
@pytest.mark.parametrize("start", [0, 30])
def test_sinusoidal_positions_follow_the_formula(width: int, start: int):
    embedding = Embedding(EmbeddingSpec(positions="sinusoidal"), 5, width, 8)
    tokens = torch.tensor([[1, 2, 3]])
    added = embedding(tokens, BatchLayout(start)) - embedding.tokens(tokens)
    expected = [
        [
            math.sin(p * 10000 ** (-d / width)) if d % 2 == 0 else math.cos(p * 10000 ** (-(d - 1) / width))
            for d in range(width)
        ]
        for p in range(start, start + 3)
    ]
    torch.testing.assert_close(added[0], torch.tensor(expected), rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_a_stream_in_chunks_with_padding_and_documents_has_its_positions(positions: str):
    block = {"mixer": {"kind": "attention", "heads": 2, "rotary": None}}
    embedding = {"positions": positions}
    spec = ModelSpec(vocab_size=9, d_model=16, context_length=32, embedding=embedding, blocks=[block])
    decoder = Decoder(spec).double()
    tokens = torch.randint(9, (2, 12))
    whole, state = decoder(tokens), decoder.initial_state(2, 12)
    chunks = torch.cat([decoder(tokens[:, a:b], state) for a, b in ((0, 5), (5, 6), (6, 12))], dim=1)
    torch.testing.assert_close(chunks, whole)
    padded = decoder(tokens, padding=[3, 0])
    torch.testing.assert_close(padded[0, 3:], decoder(tokens[:1, 3:])[0])
    documents = decoder(tokens, documents=[[4], []])
    torch.testing.assert_close(documents[0, 4:], decoder(tokens[:1, 4:])[0])


@torch.no_grad()
@pytest.mark.parametrize(("scales", "vectors", "inputs"), [((True, True), 4.0, 0.25), ((2.5, 8), 2.5, 0.125)])
def test_scales_multiply_token_vectors_and_divide_the_input_of_the_head(
    scales: tuple[bool | float, bool | float], vectors: float, inputs: float
):
    block = {"mixer": {"kind": "attention", "heads": 2}}
    embedding, head = {"scale": scales[0]}, {"scale": scales[1], "norm": {"kind": "rms"}}
    spec = ModelSpec(vocab_size=9, d_model=16, context_length=32, embedding=embedding, blocks=[block], head=head)
    plain = spec.replace(embedding={}, head={"norm": {"kind": "rms"}})
    decoder, other = Decoder(spec).double(), Decoder(plain).double()
    other.load_state_dict(decoder.state_dict())
    other.embedding.register_forward_hook(lambda module, inputs, output: output * vectors)
    tokens = torch.randint(9, (1, 5))
    torch.testing.assert_close(decoder(tokens), other(tokens) * inputs)


@pytest.mark.parametrize("scale", [0, -2.0, math.inf, math.nan, "large"])
def test_a_scale_is_a_switch_or_a_factor(scale: float | str):
    with pytest.raises(UserError, match=r"^x: embedding.scale: .*: must be true, false or a number above 0$"):
        described_scale(scale)


def described_scale(scale: object) -> ModelSpec:
    plain = {"vocab_size": 9, "d_model": 16, "context_length": 32, "embedding": {"scale": scale}}
    return ModelSpec.parse({**plain, "blocks": [{"mixer": {"kind": "attention", "heads": 2}}]}, "x")


VOCABULARY, WIDTH = 11, 16
LAYER = {"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 24}}
READING = {**LAYER, "cross_attention": {"heads": 2}}


def described(**changes: object) -> ModelSpec:
    encoder = {"blocks": [{**LAYER, "repeat": 2}], "norm": {"kind": "rms"}}
    plain = {"vocab_size": VOCABULARY, "d_model": WIDTH, "context_length": 32, "encoder": encoder}
    return ModelSpec.parse({**plain, "blocks": [{**READING, "repeat": 2}], **changes}, "test")


def randomized(spec: ModelSpec) -> Decoder:
    torch.manual_seed(0)
    decoder = Decoder(spec).double()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return decoder


@pytest.fixture
def decoder() -> Decoder:
    return randomized(described())


def tokens(rows: int, length: int) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length))


def seen(decoder: Decoder, inputs_1S: Tensor, tokens_1T: Tensor, place: int) -> tuple[Tensor, Tensor]:
    """Whether the logits at a place depend on each token of the input, and on each token of the decoder."""
    tables = [torch.nn.functional.one_hot(ids, VOCABULARY).double().requires_grad_() for ids in (inputs_1S, tokens_1T)]
    given, weight = iter(tables), decoder.embedding.tokens.weight
    hook = decoder.embedding.tokens.register_forward_hook(lambda *_: next(given) @ weight)
    out = decoder(tokens_1T, memory=decoder.encode(inputs_1S))[0, place].square().sum()
    hook.remove()
    inner, own = torch.autograd.grad(out, tables)
    return inner[0].abs().sum(1) > 0, own[0].abs().sum(1) > 0


def test_every_token_sees_the_whole_input_and_its_own_past(decoder: Decoder):
    inner, own = seen(decoder, tokens(1, 6), tokens(1, 7), 3)
    assert inner.all() and own.tolist() == [True] * 4 + [False] * 3


def test_every_token_of_the_input_sees_all_of_it(decoder: Decoder):
    x_1SD = torch.randn(1, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    hook = decoder.embedding.register_forward_hook(lambda *_: x_1SD)
    memory = decoder.encode(tokens(1, 5))
    hook.remove()
    for place in (0, 4):
        (gradient,) = torch.autograd.grad(memory.hidden_BSE[0, place].sum(), x_1SD, retain_graph=True)
        assert (gradient[0].abs().sum(1) > 0).all()


@torch.no_grad()
def test_rows_of_a_padded_batch_equal_separate_rows(decoder: Decoder):
    inputs_BS, tokens_BT, padding = tokens(3, 7), tokens(3, 9), [0, 2, 4]
    out = decoder(tokens_BT, memory=decoder.encode(inputs_BS, padding))
    for row, pad in enumerate(padding):
        alone = decoder(tokens_BT[row : row + 1], memory=decoder.encode(inputs_BS[row : row + 1, pad:]))
        torch.testing.assert_close(out[row : row + 1], alone)


@torch.no_grad()
@pytest.mark.parametrize("cuts", [[4, 5, 6], [1], [8]])
def test_a_stream_in_chunks_equals_one_pass(decoder: Decoder, cuts: list[int]):
    """The memory is passed with the first chunk only; the state keeps it."""
    tokens_BT, memory = tokens(2, 9), decoder.encode(tokens(2, 7), [0, 3])
    state = decoder.initial_state(2, 9)
    parts = [decoder(tokens_BT[:, : cuts[0]], state, memory=memory)]
    parts += [decoder(tokens_BT[:, a:b], state) for a, b in zip(cuts, [*cuts[1:], 9], strict=True)]
    torch.testing.assert_close(torch.cat(parts, dim=1), decoder(tokens_BT, memory=memory))


@torch.no_grad()
def test_streams_with_inputs_of_different_lengths_join_fork_leave_and_are_saved(decoder: Decoder):
    inputs, tokens_BT = [tokens(1, 7), tokens(1, 3)], tokens(2, 9)
    states, expected = [], []
    for row, (own, begun) in enumerate(zip(inputs, (3, 5), strict=True)):
        states.append(decoder.initial_state(1, 9))
        memory = decoder.encode(own)
        decoder(tokens_BT[row : row + 1, :begun], states[row], memory=memory)
        expected.append(decoder(tokens_BT[row : row + 1], memory=memory)[0, begun : begun + 2])
    joined = states[0].join(states[1]).fork()
    largest = max(part.nbytes for part in joined.sublayers)
    grown = joined.nbytes - sum(state.nbytes for state in states)  # by the padding of the shorter input
    assert largest <= states[0].absorb_nbytes(states[1]) <= 2 * largest + grown
    assert joined.nbytes <= states[0].absorb_nbytes(states[1], frees=False) <= joined.nbytes + largest
    again = decoder.initial_state(2, 9).with_tensors(joined.tensors())
    step_BT = torch.stack([tokens_BT[0, 3:5], tokens_BT[1, 5:7]])
    for state in (joined, again):
        torch.testing.assert_close(decoder(step_BT, state.grown(20)), torch.stack(expected))
    left = joined.select(torch.tensor([1]))
    torch.testing.assert_close(decoder(step_BT[1:], left)[0], expected[1])
    both = joined.fork()
    both.copy_rows([(0, 1)])
    torch.testing.assert_close(decoder(step_BT[[1, 1]], both), torch.stack([expected[1]] * 2))
    moved = joined.take_rows(rows_to_take([1]))
    torch.testing.assert_close(decoder(step_BT[1:], moved)[0], expected[1])


@torch.no_grad()
def test_rows_of_a_state_move_and_the_memory_stays(decoder: Decoder):
    memory = decoder.encode(tokens(4, 6), [3, 0, 1, 0])
    mask_BS, states = memory.real_BS.clone(), [decoder.initial_state(4, 9) for _ in range(2)]
    for state in states:
        decoder(tokens(4, 2), state, memory=memory)
    states[0].take_rows([3, 1, 2])
    assert torch.equal(memory.real_BS, mask_BS)
    for part in states[1].cross_attentions:
        assert torch.equal(part.real, mask_BS)


@settings(max_examples=30)
@given(st.sets(st.integers(0, 8)))
def test_rows_that_are_taken_stand_still_or_move_from_behind_the_others(kept: set[int]):
    rows = rows_to_take(sorted(kept))
    assert set(rows) == kept
    assert all(row in (place, *range(len(kept), 9)) for place, row in enumerate(rows))


@torch.no_grad()
def test_a_stream_that_restarts_keeps_its_input(decoder: Decoder):
    tokens_BT, memory = tokens(2, 5), decoder.encode(tokens(2, 4))
    state = decoder.initial_state(2, 9)
    first = decoder(tokens_BT, state, memory=memory)
    torch.testing.assert_close(decoder(tokens_BT, state.forget()), first)
    state.crop(0)
    torch.testing.assert_close(decoder(tokens_BT, state), first)


def test_unsupported_inputs_are_refused(decoder: Decoder):
    with pytest.raises(ValueError, match="memory: missing: the model reads the output of its encoder for an input"):
        decoder(tokens(1, 3))
    with pytest.raises(ValueError, match="memory: missing"):
        decoder(tokens(1, 3), decoder.initial_state(1, 4))
    with pytest.raises(ValueError, match="inputs: a row without a token"):
        decoder.encode(tokens(2, 3), [0, 3])
    plain = Decoder(described(encoder=None, blocks=[LAYER]))
    with pytest.raises(ValueError, match="memory: the model has no encoder"):
        plain(tokens(1, 3), memory=decoder.encode(tokens(1, 2)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": None}, r"blocks\[0\].cross_attention: reads an encoder; the model has none"),
        ({"blocks": [LAYER]}, "encoder: no block reads it; expected cross_attention in blocks"),
        ({"encoder": {"blocks": [READING]}}, r"encoder.blocks\[0\].cross_attention: is accepted in blocks of the"),
        (
            {"encoder": {"blocks": [{"mixer": {"kind": "attention", "heads": 2, "positions": {"kind": "t5"}}}]}},
            r"positions: t5: .*both_ways: t",
        ),
        (
            {"encoder": {"blocks": [{"mixer": {"kind": "attention", "heads": 2, "window": 4}}]}},
            "sees both ways; here window: 4: expected none",
        ),
        (
            {"encoder": {"blocks": [{"mixer": {"kind": "attention", "heads": 2, "sinks": True}}]}},
            "here sinks: True: expected false",
        ),
        ({"encoder": {"blocks": [{"mixer": {"kind": "ted"}}]}}, r"encoder.blocks\[0\].mixer: ted: only sees"),
        ({"prefix": True}, "prefix: True: excludes an encoder"),
        ({"blocks": [{**READING, "cross_attention": {"heads": 3}}]}, r"blocks\[0\].cross_attention.heads: 3: must"),
        ({"blocks": [{**READING, "residual": "parallel"}]}, "residual: parallel: excludes cross_attention"),
    ],
)
def test_invalid_descriptions_are_refused(changes: dict[str, object], message: str):
    with pytest.raises(UserError, match=message):
        described(**changes)


PLACEMENTS = ["pre", "post", "output", "sandwich"]


@st.composite
def descriptions(draw: st.DrawFn) -> ModelSpec:
    norm = {"kind": draw(st.sampled_from(["rms", "layer"])), "placement": draw(st.sampled_from(PLACEMENTS))}

    def block(**more: object) -> dict[str, object]:
        width, shared = draw(st.sampled_from([None, 24])), draw(st.booleans())
        layer = {**LAYER, "mixer": {"kind": "attention", "heads": 2, "rotary": None}}  # the tables are of all layers
        return {**layer, "norm": norm, "width": width, "share_weights": shared, "repeat": 2, **more}

    cross = {"heads": 4, "kv_heads": draw(st.sampled_from([None, 2])), "head_dim": 6, "bias": draw(st.booleans())}
    behind = draw(st.sampled_from([None, {"kind": "rms"}, {"kind": "layer"}]))
    embedding = {"width": draw(st.sampled_from([None, 8])), "positions": draw(st.sampled_from(["none", "learned"]))}
    return described(
        encoder={"blocks": [block()], "norm": behind},
        blocks=[block(cross_attention=cross), block(cross_attention=cross)],
        embedding=embedding,
        head={"norm": {"kind": "rms"}, "tied": draw(st.booleans())},
    )


@settings(max_examples=25, deadline=None)
@given(descriptions(), st.integers(1, 9), st.integers(1, 9))
def test_any_description_predicts_parameters_flops_and_state(spec: ModelSpec, inputs: int, length: int):
    decoder, cost = Decoder(spec), model_cost(spec)
    assert cost.parameters == sum(p.numel() for p in decoder.parameters())
    assert cost.encoder.parameters == sum(p.numel() for p in decoder.encoder.parameters())
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        decoder(tokens(1, length), memory=decoder.encode(tokens(1, inputs)))
    assert cost.flops(length, True, inputs) == counter.get_total_flops()
    state = decoder.initial_state(1, length)
    with torch.no_grad():
        decoder(tokens(1, 1), state, memory=decoder.encode(tokens(1, inputs)))
    assert state.nbytes == cost.state_bytes(length, inputs=inputs)


def kept_bytes(decoder: Decoder, inputs_BS: Tensor, tokens_BT: Tensor) -> int:
    """The tensors that both passes up to the head keep, except weights and ids."""
    skipped = {parameter.untyped_storage().data_ptr() for parameter in decoder.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage().data_ptr()
        if storage not in skipped and tensor.dtype != torch.long:
            kept[storage] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        decoder.hidden(tokens_BT, memory=decoder.encode(inputs_BS))
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@settings(max_examples=15, deadline=None)
@given(descriptions(), st.integers(5, 9), st.integers(10, 20))
def test_any_description_predicts_what_training_keeps(spec: ModelSpec, inputs: int, length: int):
    rows = 3
    predicted = model_cost(spec).training_memory(rows, length, inputs).activations
    narrow = (spec.embedding.width or spec.d_model) if spec.head.tied else spec.d_model
    of_head = VOCABULARY * narrow if spec.head.tied else 0
    of_head += 0 if narrow == spec.d_model else rows * length * narrow  # what the last norm gave is kept by it
    found = kept_bytes(Decoder(spec), tokens(rows, inputs), tokens(rows, length))
    assert predicted - 4 * of_head == pytest.approx(found, abs=8 * spec.layers)


def test_biases_by_distance_are_part_of_what_training_keeps():
    def block(both_ways: bool, **more: object) -> dict[str, object]:
        positions = {"kind": "t5", "buckets": 8, "furthest": 9, "both_ways": both_ways}
        return {**LAYER, "mixer": {"kind": "attention", "heads": 2, "scale": 1.0, "positions": positions}, **more}

    rows, inputs, length = 3, 7, 12
    spec = described(encoder={"blocks": [block(True)], "norm": {}}, blocks=[block(False, cross_attention={"heads": 2})])
    predicted = model_cost(spec).training_memory(rows, length, inputs).activations - 4 * VOCABULARY * WIDTH
    predicted -= 4 * rows * length * WIDTH  # of the head, which is not part of the pass
    found = kept_bytes(Decoder(spec), tokens(rows, inputs), tokens(rows, length))
    assert predicted == pytest.approx(found, abs=8 * spec.layers)


def test_losses_of_the_encoder_are_added_and_its_values_stay_in_it():
    experts = {"kind": "experts", "experts": 4, "top_k": 2, "hidden": 12}
    values = {**LAYER["mixer"], "value_residual": {}}
    encoder = {"blocks": [{"mixer": values, "feed_forward": experts}]}
    decoder, record = Decoder(described(encoder=encoder)), AuxiliaryOutputs(training=True)
    decoder(tokens(2, 4), inputs=Inputs(tokens(2, 5)), record=record)
    assert record.losses and not record.values


def test_ignored_targets_have_no_logits(monkeypatch: pytest.MonkeyPatch):
    block = {"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 8}}
    plain = {"name": "tiny", "vocab_size": 11, "d_model": 8, "context_length": 16, "blocks": [block]}
    model, seen = Decoder(ModelSpec.parse(plain, "test")).double(), []
    tokens, targets = torch.randint(11, (2, 2, 6))
    targets[0, :4], weights = IGNORE_INDEX, torch.rand(2, 6)
    hidden = model.hidden(tokens).detach().requires_grad_()
    matrix, rows = model.embedding.tokens.weight, (hidden.flatten(0, 1), targets.flatten())
    expected = linear_cross_entropy_reference(rows[0], matrix, None, rows[1], weights_N=weights.flatten()).total

    def counting(x_ND: Tensor, *rest: Tensor) -> SummedLoss:
        seen.append(len(x_ND))
        return linear_cross_entropy(x_ND, *rest)

    monkeypatch.setattr("linnet.model.decoder.linear_cross_entropy", counting)
    found = model.token_loss(hidden, targets, weights_BT=weights).total
    assert seen == [8]
    torch.testing.assert_close(found, expected)
    for mine, wanted in zip(*(torch.autograd.grad(each, (hidden, matrix)) for each in (found, expected)), strict=True):
        torch.testing.assert_close(mine, wanted)
