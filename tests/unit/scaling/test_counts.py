"""Three ways of counting parameters, against the built model."""

import pytest

from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.scaling.counts import COUNTINGS, NGRAM, parameter_counts

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
def test_each_way_counts_what_it_says(tied: bool, positions: str, bias: bool):
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


def test_every_way_has_a_name_and_words():
    assert tuple(NGRAM) == COUNTINGS
    assert tuple(parameter_counts(model(True)).by_name()) == COUNTINGS


def test_of_experts_those_count_that_one_token_uses():
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
