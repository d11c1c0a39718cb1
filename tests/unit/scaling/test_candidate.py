"""Parameter counts, plain decoders of a requested size, their vocabulary and search spaces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.design.space import SpaceSpec, build_space
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.scaling.candidate import (
    COUNTING_DESCRIPTIONS,
    COUNTINGS,
    candidate,
    fitted_vocabulary,
    min_parameters,
    parameter_counts,
    search_space,
)


@settings(max_examples=12)
@given(st.floats(2e6, 2e10), st.sampled_from(COUNTINGS), st.sampled_from([257, 4096, 32000]))
def test_the_size_is_near_the_requested_one(size: float, counted, vocabulary: int):
    if counted != "without_embedding" and size < 4 * min_parameters(vocabulary):
        size *= 10
    spec = candidate(size, counted, vocabulary, 128)
    assert parameter_counts(spec).by_name()[counted] == pytest.approx(size, rel=0.12)
    assert (spec.vocab_size, spec.context_length) == (vocabulary, 128)
    assert spec.d_model / 4 <= 64 * spec.layers <= max(128, 2 * spec.d_model)


def test_the_smallest_shape_is_its_own_nearest():
    smallest = min_parameters(4096)
    assert parameter_counts(candidate(smallest, "total", 4096, 8)).total == smallest


@pytest.mark.parametrize(("size", "side"), [(1e4, "larger"), (1e15, "smaller")])
def test_a_size_far_from_every_shape_is_refused(size: float, side: str):
    with pytest.raises(UserError, match=rf"the nearest shape .* 32,000 has .*; expected a {side} budget"):
        candidate(size, "total", 32000, 128)


VOCABULARY, WIDTH, CONTEXT, HIDDEN, LAYERS = 50, 16, 12, 24, 3


def model(tied: bool, positions: str = "none", bias: bool = False) -> ModelSpec:
    block = {
        "repeat": LAYERS,
        "mixer": {"kind": "attention", "heads": 2, "bias": bias},
        "feed_forward": {"kind": "glu", "hidden": HIDDEN, "bias": bias},
        "norm": {"kind": "layer"},
    }
    plain = {
        "vocab_size": VOCABULARY,
        "d_model": WIDTH,
        "context_length": CONTEXT,
        "embedding": {"positions": positions},
        "blocks": [block],
        "head": {"tied": tied, "bias": not tied, "norm": {"kind": "layer"}},
    }
    return ModelSpec.parse(plain, "test")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("positions", ["none", "learned"])
@pytest.mark.parametrize("bias", [True, False])
def test_each_way_counts_as_described(tied: bool, positions: str, bias: bool):
    spec = model(tied, positions, bias)
    counts = parameter_counts(spec)
    built = Decoder(spec)
    matrices = LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH * HIDDEN)
    assert counts.total == sum(parameter.numel() for parameter in built.parameters())
    assert counts.matrices_and_head == matrices + VOCABULARY * WIDTH
    outside = VOCABULARY * WIDTH + (CONTEXT * WIDTH if positions == "learned" else 0)
    outside += 0 if tied else VOCABULARY * WIDTH
    assert counts.without_embedding == counts.total - outside


def test_token_vectors_of_another_width_have_their_own_tables():
    """OPT-350m's way: the vectors are narrow, projected up, and projected down again before the tied head."""
    narrow = 6
    spec = model(tied=True).replace(embedding={"width": narrow, "norm": {"kind": "layer"}})
    counts = parameter_counts(spec)
    projections, matrices = 2 * narrow * WIDTH, LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH * HIDDEN)
    assert counts.without_embedding == counts.total - VOCABULARY * narrow
    assert counts.matrices_and_head == matrices + projections + VOCABULARY * narrow


def test_gpt2_without_embeddings_is_what_kaplan_counts():
    """12 layers of 12 d^2 matrix elements; biases and norms are the rest."""
    counts = parameter_counts(ModelSpec.load("gpt2-124m"))
    assert counts.total == 124_439_808
    assert counts.without_embedding == pytest.approx(12 * 12 * 768**2, rel=0.002)
    assert counts.matrices_and_head == 12 * 12 * 768**2 + 50257 * 768


def test_every_way_has_a_name_and_a_description():
    assert tuple(COUNTING_DESCRIPTIONS) == COUNTINGS
    assert tuple(parameter_counts(model(True)).by_name()) == COUNTINGS


def test_only_experts_that_one_token_uses_count():
    """`C = 6 N D` holds for these: as for as many experts as one token passes, but for the router."""
    block = {"repeat": 2, "mixer": {"kind": "attention", "heads": 2}}
    plain = {**model(True).model_dump(mode="json"), "blocks": [block]}
    wide, narrow = (
        parameter_counts(
            ModelSpec.parse(
                {**plain, "blocks": [{**block, "feed_forward": {"kind": "experts", "hidden": 24, **counts}}]}, "test"
            )
        )
        for counts in ({"experts": 8, "top_k": 2}, {"experts": 2, "top_k": 2})
    )
    router = 2 * 6 * WIDTH
    assert narrow.stored == narrow.total
    assert wide.stored == wide.total + 2 * 6 * 3 * WIDTH * 24
    for name, value in narrow.by_name().items():
        assert wide.by_name()[name] == value + router


@pytest.mark.parametrize(
    ("parameters", "published"), [(33e6, 6_144), (2.87e9, 43_000), (7e9, 67_000), (30e9, 154_000), (70e9, 231_000)]
)
def test_the_vocabulary_is_that_of_the_paper(parameters: float, published: int):
    """Rounded to a power of two; the paper's second approach, its models without their tokens."""
    assert 0.6 < fitted_vocabulary(parameters, "without_embedding", 1024) / published < 1.6


def test_the_vocabulary_grows_with_the_size_within_its_bounds():
    found = [fitted_vocabulary(size, "total", 128) for size in (1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e12)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (256, 262_144)


@pytest.mark.parametrize("parameters", [2e4, 1e5, 1e6, 3e6, 1e7, 3e7, 3e8, 2e9])
def test_the_space_contains_the_plain_shape_and_smaller_and_larger_ones(parameters: float):
    plain = candidate(parameters, "total", 300, 64)
    space = build_space(SpaceSpec.parse(search_space(plain), "around"), "around")
    assert space.left_out[0] == 0
    blocks = [(block.width, block.repeat, block.feed_forward.hidden) for block in space.described]
    widths, repeats = {width for width, _, _ in blocks}, {repeat for _, repeat, _ in blocks}
    hidden = plain.blocks[0].feed_forward.hidden
    assert any(width == plain.d_model and abs(own / hidden - 1) < 0.1 for width, _, own in blocks)
    assert min(widths) <= max(16, 0.6 * plain.d_model) and max(widths) >= 1.9 * plain.d_model
    most = space.spec.blocks * max(repeats)
    assert 0.7 * plain.layers <= space.spec.blocks * min(repeats) <= plain.layers <= most
    model = space.model([0] * space.spec.blocks)
    assert (model.vocab_size, model.context_length, model.d_model) == (300, 64, plain.d_model)
