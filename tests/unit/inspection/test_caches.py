"""The four settings of the caches: which text, and the operators of which text."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import speaker

from linnet.inference.sampling import Sampling
from linnet.inspection.caches import CacheComparison, compare_caches, distances, first_difference
from linnet.inspection.operator_figures import operator_figures
from linnet.layers.mixers.plga import DensitySpec, PlgaSpec
from linnet.model.watched import operators

PLGA = PlgaSpec(heads=2, metric_hidden=12, residual_units=2)
PROMPT, TOKENS = "a bird", 12


@pytest.fixture(scope="module")
def found() -> CacheComparison:
    return compare_caches(speaker(PLGA), PROMPT, TOKENS)


def test_each_setting_writes_what_generate_writes(found):
    model = speaker(PLGA)
    settings = [(run.caches.kv, run.caches.calibration) for run in found.runs]
    assert settings == [(True, True), (True, False), (False, True), (False, False)]
    for run in found.runs:
        assert [run.text] == model.complete([PROMPT], TOKENS, Sampling(temperature=0.0), run.caches)
    assert found.prompt_tokens == 7


def test_the_operators_are_those_of_the_prompt_or_of_the_whole_text(found):
    model = speaker(PLGA)
    prompt = model.prompt_tokens(PROMPT)
    of_prompt = operators(model.decoder, torch.tensor([prompt]))
    *kept, none = found.runs
    for run in kept:
        assert run.ids == found.runs[0].ids and run.first_difference is None
        assert run.distances == dict.fromkeys(("A", "A_LM", "A_P", "G"), 0.0)
        assert [one.rmse for one in run.outputs] == [one.rmse for one in operator_figures(of_prompt).outputs]
    assert len(none.ids) == TOKENS, "no end token came, so the last one has not been read"
    of_text = operators(model.decoder, torch.tensor([[*prompt, *none.ids[:-1]]]))
    expected = operator_figures(of_text).outputs
    assert [one.rmse for one in none.outputs] == [pytest.approx(one.rmse, rel=1e-9) for one in expected]
    assert none.distances["G"] == pytest.approx(distances(of_text, of_prompt)["G"], rel=1e-9)
    assert none.distances["G"] > 0


def test_another_text_is_found(found):
    first, none = found.runs[0], found.runs[-1]
    place = none.first_difference
    assert place is not None, "this model depends on its operator"
    assert first.ids[:place] == none.ids[:place] and first.ids[place] != none.ids[place]
    assert found.figures()["same_text"] is False


def test_an_operator_of_the_first_token_alone_makes_all_settings_the_same():
    found = compare_caches(speaker(PLGA.model_copy(update={"density": DensitySpec(scope="prefix")})), PROMPT, TOKENS)
    assert found.figures()["same_text"] is True
    assert all(distance < 1e-12 for run in found.runs for distance in run.distances.values())


class EndsAtOnce:
    """A tokenizer whose end token is 0."""

    end_id = 0

    def __init__(self, tokenizer) -> None:
        self.vocab_size, self.encode, self.decode = tokenizer.vocab_size, tokenizer.encode, tokenizer.decode


def test_a_text_of_one_token_and_one_that_ends_at_once():
    assert [run.distances["G"] for run in compare_caches(speaker(PLGA), PROMPT, 1).runs] == [0.0] * 4
    model = speaker(PLGA)
    with torch.no_grad():
        model.decoder.head.weight.zero_()  # all tokens equally likely: the first, which is a byte, is taken
    assert [run.text for run in compare_caches(model, PROMPT, 3).runs] == ["\0\0\0"] * 4
    model.tokenizer = EndsAtOnce(model.tokenizer)
    ended = compare_caches(model, PROMPT, 3)
    assert [run.ids for run in ended.runs] == [[]] * 4 and ended.figures()["same_text"] is True


def test_figures_are_json_by_setting(found):
    plain = json.loads(json.dumps(found.figures(), allow_nan=False))
    assert plain["prompt"] == PROMPT and len(plain["settings"]) == 4
    last = plain["settings"][-1]
    assert (last["kv_cache"], last["g_cache"], last["tokens"], last["same_text"]) == (False, False, TOKENS, False)
    assert last["G"].keys() == {"rmse", "max_abs_det", "log10_max_abs_det", "distance"}


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_the_first_difference(first, other):
    place = first_difference(first, other)
    if first == other:
        assert place is None
    else:
        assert place is not None and first[:place] == other[:place]
        assert first[place : place + 1] != other[place : place + 1]


def test_distances_by_their_definition():
    x, y = [{"G": torch.tensor([[[3.0]]])}, {"G": torch.tensor([[[1.0]]])}], [{"G": torch.tensor([[[1.0]]])}] * 2
    assert distances(x, y) == {"G": pytest.approx(2 / math.sqrt(2))}
    assert math.isnan(distances(x, [{"G": torch.zeros(1, 1, 1)}] * 2)["G"])
    assert math.isnan(distances([{"G": torch.full((1, 1, 1), math.inf)}] * 2, y)["G"])
