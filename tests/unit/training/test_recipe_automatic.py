"""The recipe that fits model and tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.errors import UserError, note
from linnet.model.cost import model_cost
from linnet.training.data import check_training_on_rows
from linnet.training.recipe import STEP_TOKENS, TOKENS, batch_size, peak_learning_rate
from linnet.training.run import resolve_run_config, train
from linnet.training.run_files import given_files
from linnet.training.spec import read_run

pytestmark = pytest.mark.usefixtures("quick")


def run(*assignments: str, **given):
    return read_run(model="tiny-attention", data="x", assignments=list(assignments), **given)


@given(st.integers(1, 1 << 48), st.sampled_from([1, 16, 100, 256, 8192, 1 << 20]))
def test_batches_grow_with_tokens_and_are_powers_of_two(tokens, context_length):
    size = batch_size(tokens, context_length)
    assert size.bit_count() == 1 and size <= batch_size(4 * tokens, context_length) <= 1 << 20


def test_the_law_passes_through_the_measured_point():
    assert batch_size(TOKENS, 256) * 256 == STEP_TOKENS
    assert peak_learning_rate(128, STEP_TOKENS) == 5.5e-3
    assert (
        peak_learning_rate(512, STEP_TOKENS)
        < peak_learning_rate(128, STEP_TOKENS)
        < peak_learning_rate(128, 4 * STEP_TOKENS)
    )


def test_auto_fills_what_is_not_given():
    found = run(recipe="auto", training={"tokens": 1_660_000}).training
    assert (found.optimizer.kind, found.optimizer.lr, found.batch_size) == ("muon", 5.5e-3, 4)
    assert found.optimizer.low_lr == 1.1e-4
    assert (found.schedule.kind, found.schedule.warmup_share, found.schedule.final_fraction) == ("linear", 0.05, 0.0)
    own = run("training.batch_size=16", recipe="auto", training={"tokens": 1_660_000}).training
    assert (own.batch_size, own.optimizer.lr) == (16, peak_learning_rate(128, 16 * 256))
    assert own.optimizer.low_lr == pytest.approx(0.02 * own.optimizer.lr, rel=0.05)
    assert run("training.optimizer.lr=1e-3", recipe="auto").training.optimizer.lr == 1e-3


def test_a_run_without_a_length_has_twenty_tokens_for_each_parameter():
    found = run(recipe="auto")
    assert found.training.tokens == 20 * model_cost(found.model).parameters


def test_trained_weights_get_a_tenth_of_the_rate(caplog):
    note.cache_clear()
    fresh, trained = (run("training.steps=100", recipe="auto", start_from=m).training for m in (None, "runs/mine"))
    assert trained.optimizer.lr == pytest.approx(fresh.optimizer.lr / 10, rel=0.02)
    assert trained.optimizer.low_lr == pytest.approx(trained.optimizer.lr / 50, rel=0.05)
    assert trained.schedule == fresh.schedule
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == (
        "note: recipe auto: muon, learning rate 0.0078, 100 steps of 8 x 256 tokens, 5 of them warm-up,"
        " then linear to 0"
    )
    assert "learning rate 0.00078 (of fine-tuning), 100 steps" in told[1] and len(told) == 2


def test_preferences_get_a_hundredth_of_the_rate(tmp_path):
    pairs, mine = tmp_path / "pairs.jsonl", {"start_from": "runs/mine", "assignments": ["training.steps=100"]}
    pairs.write_text("{}\n")

    def rate(**given):
        files = given_files({"preferences": pairs})
        return resolve_run_config(tmp_path / "run", model="tiny-attention", files=files, **mine, **given).training

    fine_tuned = run("training.steps=100", recipe="auto", start_from="runs/mine").training.optimizer.lr
    found = rate(recipe="auto")
    assert found.preference is not None and found.preference.kind == "dpo"
    assert found.optimizer.lr == pytest.approx(fine_tuned / 10, rel=0.02)
    kinds = {"ipo": 0.1, "orpo": 1.0, "reward": 1.0}
    for kind, share in kinds.items():
        of_kind = rate(recipe="auto", training={"preference": {"kind": kind}})
        assert of_kind.optimizer.lr == pytest.approx(share * fine_tuned, rel=0.02), kind
    assert rate(recipe="auto", training={"optimizer": {"lr": 3e-4}}).optimizer.lr == 3e-4


def test_a_run_from_trained_weights_has_the_steps_that_are_told(caplog):
    """Conversations, pairs and prompts refuse a number of tokens, which no user has given."""
    note.cache_clear()
    fresh, trained = (run(recipe="auto", start_from=start) for start in (None, "runs/mine"))
    assert fresh.training.tokens and trained.training.tokens is None
    assert trained.training.steps == fresh.resolved().training.steps
    assert f"{trained.training.steps:,} steps of" in caplog.text
    check_training_on_rows(trained)
    given = run("training.tokens=4096", recipe="auto", start_from="runs/mine")
    with pytest.raises(UserError, match=r"training\.tokens: 4096: applies only to text"):
        check_training_on_rows(given)


def test_what_auto_chose_is_told_with_the_fields_beside_it(caplog):
    note.cache_clear()
    run("training.steps=100", "training.optimizer.lr=1e-3", "training.recipe=auto")
    run("training.steps=100")
    assert [record.getMessage().split(",")[1] for record in caplog.records] == [" learning rate 0.001"]


def test_only_active_experts_count(caplog):
    note.cache_clear()
    found = read_run(model="tiny-experts", data="x", training={"recipe": "auto"})
    cost = model_cost(found.model)
    assert found.training.tokens == 20 * cost.active_parameters < 20 * cost.parameters
    assert "20 for each of the 1.00 M parameters that one token uses, of 3.21 M" in caplog.text


def test_growing_batches_have_their_sizes():
    found = run("training.steps=100", recipe="auto").training
    assert (found.steps, found.tokens, found.batch_size) == (100, None, 8)
    assert found.optimizer.lr == peak_learning_rate(128, 8 * 256)


@pytest.mark.parametrize("assignments", [["training.recipe=auto", "training.tokens=1660000"]])
def test_recipe_as_a_field_equals_the_option(assignments, tmp_path):
    assert run(*assignments) == run(recipe="auto", training={"tokens": 1_660_000})
    config = tmp_path / "run.yaml"
    config.write_text("model: tiny-attention\ndata: x\ntraining: {recipe: auto, tokens: 1660000}\n")
    assert read_run(config) == run(*assignments)


def test_errors_beside_an_override_are_reported():
    with pytest.raises(UserError, match=r"training\.tokens"):
        run("training.tokens=x", recipe="auto")
    with pytest.raises(UserError, match=r"recipe: nothing: no such file, and no recipe of that name; recipes: auto, "):
        run(recipe="nothing")


def test_a_run_in_the_folder_keeps_its_fields(tmp_path, tiny_model, tiny_data):
    settings = {"recipe": "auto", "tokens": 64, "threads": 1, "evaluate": {"tokens": 64}}
    train(tmp_path / "run", model=tiny_model(), data=tiny_data, training=settings)
    assert resolve_run_config(tmp_path / "run").training.optimizer.kind == "muon"
    with pytest.raises(UserError, match="keeps its fields"):
        resolve_run_config(tmp_path / "run", assignments=["training.recipe=auto"])
