import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.data.pieces import ByteCounts
from linnet.training.ngram.evaluation import LikeliestTokens, evaluate_tokens, likeliest_after
from linnet.training.ngram.model import Discounts, Level, NGram, NGramTable, count_ngrams


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        ([0.1, 0.2], 3),  # faded by 0.5 the shorter context's token has 0.25
        ([0.1, 0.3], 5),
        ([0.3, 0.3], 1),
        ([0.25, 0.1], 1),  # of equals the lowest
        ([0.1, 0.25], 3),
    ],
)
def test_the_likeliest_token_is_found_by_backing_off(probabilities, expected):
    table = NGramTable(np.array([1, 5]), np.ones(2, np.int32), np.zeros(2, np.int32), vocab_size=9)
    level = Level(table, Discounts((0.5, 1.0, 1.5), False), np.array(probabilities), np.array([0.5]))
    found = likeliest_after(level, LikeliestTokens(np.array([3]), np.array([0.5])), np.zeros(1, np.int32))
    assert found.tokens_C.tolist() == [expected]
    assert found.probabilities_C.tolist() == [max(0.25, *probabilities)]


def test_unseen_ngrams_are_counted_in_long_enough_documents():
    model = NGram(count_ngrams(np.array([0, 1, 2, 1, 0]), 0, 4, 3), 0)
    seen = evaluate_tokens(model, np.array([0, 1, 2, 0, 3, 0]), ByteCounts.create([1] * 4)).seen
    assert [(one.ngrams, one.never_seen) for one in seen] == [(5, 1), (5, 3), (3, 2)]
    assert [
        one.share_never_seen for one in evaluate_tokens(model, np.array([0, 1]), ByteCounts.create([1] * 4)).seen
    ] == [
        0.0,
        0.0,
        None,
    ]


def test_documents_have_their_own_sums_and_an_error():
    """Each token but the first belongs to the document that it is in, or ends; the sums are those of the whole."""
    model = NGram(count_ngrams(np.array([0, 1, 2, 1, 0]), 0, 4, 2), 0)
    found = evaluate_tokens(model, np.array([0, 1, 2, 0, 3, 0]), ByteCounts.create(range(4))).losses
    assert (found.tokens_N.tolist(), found.bytes_N.tolist()) == ([3, 2], [3, 3])
    for row, tokens in enumerate(([0, 1, 2, 0], [0, 3, 0])):
        alone = evaluate_tokens(model, np.array(tokens), ByteCounts.create(range(4))).losses
        assert alone.bits_per_byte.standard_error is None
        assert (alone.nats_N[0], alone.correct_N[0]) == (pytest.approx(found.nats_N[row]), found.correct_N[row])
    low, high = sorted(found.bits_N / 3)
    assert found.bits_per_byte.standard_error == pytest.approx((high - low) / 2)


def test_tokens_without_text_are_refused():
    model = NGram(count_ngrams(np.array([0, 1, 0]), 0, 2, 2), 0)
    with pytest.raises(UserError, match="the 1 tokens to evaluate contain no text"):
        evaluate_tokens(model, np.array([0, 0]), ByteCounts.create([0, 1]))
