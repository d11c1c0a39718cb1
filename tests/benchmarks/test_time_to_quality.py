"""What `time_to_quality.py` makes of losses."""

import math

import numpy as np
import pytest

from linnet.model.cost import model_cost
from quality_runs import FAMILIES, documents, llama, model
from time_to_quality import shares_of_tokens, tokens_to

TOKENS = (100, 200, 400)


def test_tokens_are_interpolated_over_their_logarithm():
    assert tokens_to(2.5, TOKENS, (3.0, 2.0, 1.0)) == pytest.approx(100 * math.sqrt(2))
    assert tokens_to(2.0, TOKENS, (3.0, 2.0, 1.0)) == pytest.approx(200)
    assert tokens_to(1.5, TOKENS, (3.0, 3.5, 1.0)) == pytest.approx(200 * 2 ** (2 / 2.5))


def test_what_is_better_at_once_needs_all_of_the_fewest_and_what_never_is_needs_for_ever():
    assert tokens_to(3.5, TOKENS, (3.0, 2.0, 1.0)) == 100
    assert tokens_to(0.5, TOKENS, (3.0, 2.0, 1.0)) == math.inf


def test_resamples_lie_about_the_mean_of_all_seeds():
    theirs, ours = np.array([2.0, 2.1, 1.9]), np.array([[3.0, 2.0, 1.0], [3.1, 2.1, 1.1], [2.9, 1.9, 0.9]])
    share, *resampled = shares_of_tokens(theirs, ours, TOKENS)
    assert share == pytest.approx(0.5)
    assert min(resampled) < 0.5 < max(resampled) and abs(np.mean(resampled) - 0.5) < 0.01


@pytest.mark.parametrize("family", FAMILIES)
def test_all_have_about_as_many_parameters(family):
    theirs = sum(parameter.numel() for parameter in llama(0).parameters())
    for won in (False, True):
        assert model_cost(model(family, won)).parameters == pytest.approx(theirs, rel=0.15)


def test_texts_are_cut_into_stories_and_articles(tmp_path):
    (tmp_path / "stories").write_text("one\n<|endoftext|>\ntwo\n<|endoftext|>")
    (tmp_path / "articles").write_text(" = A = \n\n == part == \n text \n = B = \n more\n")
    files = [str(tmp_path / name) for name in ("stories", "articles")]
    assert [text.splitlines()[0].strip() for text in documents(files)] == ["one", "two", "= A =", "= B ="]
