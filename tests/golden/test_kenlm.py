"""The n-gram model against KenLM's `lmplz` (commit 4cb443e): the same counts, discounts and probabilities.

The numbers below are those of `lmplz -o ORDER --vocab_pad 50 --discount_fallback` on `documents(700, 1)`, a line each,
its words the numbers with a letter before them: what lmplz printed as discounts, and `Model.score` of the
Python module on `documents(12, 2)`, log10 with the sign changed. KenLM computes in float32.
"""

import numpy as np
import pytest

from linnet.training.ngram.model import NGram, count_ngrams

VOCABULARY = 50

DISCOUNTS = {
    2: [None, (0.391667, 0.833048, 1.99517)],
    3: [None, (0.375439, 1.00656, 1.98608), (0.727295, 1.34266, 1.77324)],
    4: [None, (0.375439, 1.00656, 1.98608), (0.74398, 1.37883, 1.5223), (0.925301, 1.49258, 1.69369)],
    6: [
        None, (0.375439, 1.00656, 1.98608), (0.74398, 1.37883, 1.5223), (0.930092, 1.48685, 2.06991),
        (0.989974, 1.35436, 2.20802), None,
    ],
}  # fmt: skip
"""By order, of each length; None where lmplz substituted its fallback."""

NEGATIVE_LOG10 = {
    2: [4.970968, 13.105657, 7.962237, 11.127958, 21.125866, 9.770281, 1.193165, 1.441544, 10.296042, 15.764009,
        10.270624, 1.799433],
    3: [5.185826, 13.638351, 8.726845, 11.195522, 22.129887, 9.288381, 1.193064, 1.514043, 11.325529, 16.126528,
        10.606573, 1.895645],
    4: [5.232193, 13.523194, 8.978583, 11.281868, 22.228125, 9.370904, 1.193064, 1.517389, 11.537794, 16.157305,
        10.8193, 1.891377],
    6: [5.23118, 13.518537, 8.943381, 11.270653, 22.200718, 9.368661, 1.193064, 1.517389, 11.5133, 16.15523,
        10.797049, 1.891377],
}  # fmt: skip


def documents(count, seed):
    """Texts of 40 words, each likelier behind some than behind others, from a random generator that never changes."""
    state = seed

    def below(limit):
        nonlocal state
        state = (1103515245 * state + 12345) % 2**31
        return (state >> 8) % limit

    found = []
    for _ in range(count):
        word, text = 0, []
        for _ in range(below(18)):
            word = 1 + min((word * 7 + below(5) * below(4)) % 40, below(40))
            text.append(word)
        found.append(text)
    return found


def tokens_of(texts):
    return np.array([token for text in texts for token in (0, *text)] + [0])


@pytest.fixture(scope="module", params=NEGATIVE_LOG10)
def model(request):
    return NGram(count_ngrams(tokens_of(documents(700, 1)), 0, VOCABULARY, request.param), 0)


def test_the_discounts_are_kenlms(model):
    for level, expected in zip(model.levels, DISCOUNTS[model.order], strict=True):
        assert level.discounts.estimated is (expected is not None)
        assert level.discounts.amounts == pytest.approx(expected or (0.5, 1.0, 1.5), rel=1e-5)


def test_the_probabilities_are_kenlms(model):
    found = [-np.log10(model.token_probabilities(tokens_of([text]))[1:]).sum() for text in documents(12, 2)]
    assert found == pytest.approx(NEGATIVE_LOG10[model.order], rel=1e-6, abs=2e-6)
