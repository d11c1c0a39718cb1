"""The recipes are fair: equal tokens, and models of about one size."""

from dataclasses import replace
from pathlib import Path

import pytest

from linnet.experiments.demo import recipes
from linnet.experiments.demo.recipes import RECIPES, planned
from linnet.model.cost import model_cost
from linnet.training.spec import RunSpec


def test_every_model_sees_the_same_batches_for_the_same_number_of_steps():
    plan = planned(None, seed=3, device="cpu")
    shared = {
        (one.training.steps, one.tokens_per_step, one.training.seed, one.training.device, one.training.batch_size)
        for one in plan
    }
    assert shared == {(recipes.STEPS, plan[0].tokens_per_step, 3, "cpu", plan[0].training.batch_size)}


def test_what_a_model_is_trained_with_stays_its_own():
    for before, after in zip(RECIPES, planned(7, seed=0, device="auto"), strict=True):
        assert after.training.steps == 7
        assert after.training.optimizer == before.training.optimizer
        assert after.training.clip == before.training.clip
        assert after.training.windows == before.training.windows == "documents"


@pytest.mark.parametrize("steps", [1, 5, 400, None])
def test_the_warm_up_is_the_same_share_of_any_length(steps: int | None):
    for recipe in planned(steps, seed=0, device="auto"):
        run = RunSpec(model=recipe.model, data=Path("data"), training=recipe.training).resolved()
        assert run.training.schedule.warmup_steps == round(recipes.WARMUP_SHARE * (steps or recipes.STEPS))


@pytest.mark.parametrize("steps", [1, 5, 400])
def test_a_run_of_any_length_is_measured_often_and_to_its_end(steps: int):
    for recipe in planned(steps, seed=0, device="auto"):
        assert 1 <= recipe.training.evaluate.every <= max(1, steps / recipes.EVALUATIONS)
        assert recipe.training.log.every <= recipe.training.evaluate.every


def test_unequal_tokens_are_refused(monkeypatch: pytest.MonkeyPatch):
    larger = RECIPES[1].training.model_copy(update={"batch_size": RECIPES[1].training.batch_size + 1})
    monkeypatch.setattr(recipes, "RECIPES", (RECIPES[0], replace(RECIPES[1], training=larger)))
    with pytest.raises(AssertionError, match="unequal tokens"):
        planned(None, seed=0, device="auto")


def test_the_models_are_of_about_one_size_and_read_equally_far():
    sizes = [model_cost(recipe.model).parameters for recipe in RECIPES]
    assert max(sizes) < 1.2 * min(sizes)
    assert len({recipe.model.context_length for recipe in RECIPES}) == 1
    assert {recipe.model.vocab_size for recipe in RECIPES} == {recipes.VOCAB_SIZE}
