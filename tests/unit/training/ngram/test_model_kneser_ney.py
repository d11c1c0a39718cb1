import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ngram_reference import FALLBACK, Reference

from linnet.data.pieces import ByteCounts
from linnet.training.ngram import model as room
from linnet.training.ngram.evaluation import evaluate_tokens
from linnet.training.ngram.model import NGram, count_ngrams, estimate_discounts

VOCABULARY = 6
DOCUMENTS = st.lists(st.lists(st.integers(1, VOCABULARY - 2), max_size=12), min_size=1, max_size=12)
"""The last token of the vocabulary never occurs."""


def tokens_of(documents):
    return np.array([token for document in documents for token in (0, *document)] + [0])


def model_of(documents, order, vocab_size=VOCABULARY):
    return NGram(count_ngrams(tokens_of(documents), 0, vocab_size, order), 0)


def zipf(documents=200, seed=0):
    """Enough text for discounts from the counts."""
    random = np.random.default_rng(seed)
    return [(1 + np.minimum(random.geometric(0.3, random.integers(1, 20)) - 1, 8)).tolist() for _ in range(documents)]


@settings(max_examples=60)
@given(documents=DOCUMENTS, order=st.integers(1, 5), text=st.lists(st.integers(1, VOCABULARY - 1), max_size=6))
def test_it_is_the_definition_after_any_context(documents, order, text):
    model, reference = model_of(documents, order), Reference(documents, VOCABULARY, order)
    found = model.next_probabilities(np.array([0, *text]))
    expected = [float(reference.probability(token, reference.context(text))) for token in range(VOCABULARY)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found.sum() == pytest.approx(1, abs=1e-12) and found.min() > 0


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_it_is_the_definition_with_discounts_from_the_counts(order):
    documents, new = zipf(), zipf(5, seed=1)
    model, reference = model_of(documents, order, 11), Reference(documents, 11, order)
    assert order == 1 or any(level.discounts.estimated for level in model.levels)
    expected = [
        float(reference.probability(token, reference.context(document[:place])))
        for document in new
        for place, token in enumerate([*document, 0])
    ]
    np.testing.assert_allclose(model.token_probabilities(tokens_of(new))[1:], expected, rtol=1e-12)


@settings(max_examples=40)
@given(documents=DOCUMENTS, new=DOCUMENTS, order=st.integers(1, 4))
def test_a_text_is_read_as_it_is_predicted_token_by_token(documents, new, order):
    model, tokens = model_of(documents, order), tokens_of(new)
    together = model.token_probabilities(tokens)
    guessed = 0
    for place in range(1, len(tokens)):
        begun = np.flatnonzero(tokens[:place] == 0)[-1]
        single = model.next_probabilities(tokens[begun:place])
        assert together[place] == pytest.approx(single[tokens[place]], rel=1e-12)
        guessed += single.argmax() == tokens[place]
    assert evaluate_tokens(model, tokens, ByteCounts.create([1] * VOCABULARY)).losses.likelihood.correct == guessed


@pytest.mark.parametrize("counts", [[], [1, 1, 2], [2, 3, 4], [1, 3, 4], [1, 2, 4], [1, 1, 1, 2, 3, 3, 3]])
def test_discounts_that_the_counts_do_not_determine(counts):
    """n1, n2 or n3 is zero, or a discount is out of its bounds."""
    found = estimate_discounts(np.array(counts, dtype=np.int32))
    assert found.amounts == tuple(map(float, FALLBACK)) == room.FALLBACK and not found.estimated


def test_discounts_without_counts_of_four():
    found = estimate_discounts(np.array([1] * 8 + [2] * 3 + [3] * 2))
    share = 8 / 14
    assert found.estimated
    assert found.amounts == pytest.approx((1 - 2 * share * 3 / 8, 2 - 3 * share * 2 / 3, 3.0))


def test_a_discount_of_zero_uses_the_fallback():
    """The second one is 2 - 3 * (6 / 12) * 4 / 3 = 0."""
    assert not estimate_discounts(np.array([1] * 6 + [2] * 3 + [3] * 4)).estimated


def test_contexts_that_were_never_seen_back_off():
    model = model_of(zipf(), 4, 11)
    seen, shorter = model.next_probabilities(np.array([0, 1, 10, 1])), model.next_probabilities(np.array([1]))
    np.testing.assert_array_equal(seen, shorter)
    np.testing.assert_array_equal(model.next_probabilities(np.array([0, 10])), model.levels[0].probabilities)


def test_order_one_has_no_context():
    model = model_of([[1, 1, 2], [1, 2]], 1)
    counts = np.array([2, 3, 2, 0, 0, 0])
    discount = np.array([1.0, 1.5, 1.0, 0, 0, 0])
    np.testing.assert_allclose(model.levels[0].probabilities, (counts - discount + 3.5 / 6) / 7)
    np.testing.assert_array_equal(model.next_probabilities(np.array([0, 1])), model.levels[0].probabilities)


@pytest.mark.parametrize("documents", [[[]], [[1]], [[], []]])
def test_the_smallest_texts(documents):
    model = model_of(documents, 5)
    assert model.order == 5
    assert model.next_probabilities(np.array([0])).sum() == pytest.approx(1)
    assert model.next_probabilities(np.array([0, 4, 4, 4, 4, 4])).sum() == pytest.approx(1)
