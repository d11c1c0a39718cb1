from pathlib import Path

import pytest

from linnet.core.errors import UserError
from linnet.model.folder import preset_names
from linnet.training.recipe import merge_fields, recipe_names
from linnet.training.schedule import learning_rate
from linnet.training.spec import TrainingSpec, read_run

PEAKS = {
    "pldr-v51-104m": (1.2e-3, 8000),
    "pldr-v51-110m-1": (1e-3, 4000),
    "pldr-v51-110m-2": (1e-3, 4000),
    "pldr-v51-110m-3": (1e-3, 2000),
    "pldr-v51-110m-4": (1.5e-3, 2000),
    "pldr-v51-110m-5": (1.5e-3, 2000),
    "pldr-v51-dag-110m": (1.5e-3, 2000),
    "pldr-v51g-106m-1": (3e-4, 2000),
    "pldr-v51g-106m-2": (3e-4, 2000),
    "pldr-v51g-106m-3": (3e-4, 2000),
}
"""Peak learning rate and warm-up of PLDR-LLM, from the paper's table."""
TED = "ted-tinystories"


def recipe(name: str, *assignments: str, **sections) -> TrainingSpec:
    return read_run(model="tiny-pldr", data="x", recipe=name, assignments=list(assignments), **sections).training


def test_every_recipe_is_one_of_a_preset():
    assert set(recipe_names()) == {*PEAKS, TED}
    assert set(recipe_names()) <= set(preset_names())


@pytest.mark.parametrize("name", PEAKS)
def test_a_recipe_of_pldr_is_the_published_one(name: str):
    training = recipe(name)
    assert (training.optimizer.lr, training.schedule.warmup_steps) == PEAKS[name]
    assert (training.optimizer.betas, training.optimizer.eps, training.optimizer.weight_decay) == (
        (0.9, 0.95),
        1e-5,
        0.1,
    )
    assert (training.clip.by, training.clip.at) == ("value", 1.0)
    assert (training.schedule.kind, training.schedule.final_fraction) == ("cosine", 0.1)
    assert (training.batch_size * training.gradient_accumulation, training.steps, training.precision) == (
        32,
        250_000,
        "bfloat16",
    )
    assert (training.penalties.get("dag")) == ({"a_lm": 0.05, "a_p": 0.05, "g": 0.05} if "dag" in name else None)


def test_the_recipe_of_ted_is_the_published_one():
    training = read_run(model=TED, data="x", recipe=TED).resolved().training
    assert (training.steps, training.batch_size, training.gradient_accumulation, training.context_length) == (
        20_000,
        4,
        1,
        2048,
    )
    assert (training.windows, training.precision, training.penalties) == ("stream", "float32", {})
    adamw = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "weight_decay_on": "all"}
    assert training.optimizer.model_dump().items() >= adamw.items() and training.optimizer.kind == "adamw"
    assert training.clip.model_dump() == {"by": "norm", "at": 1.0}
    assert (training.schedule.kind, training.schedule.warmup_steps) == ("cosine_squared", 2000)
    rates = {step: learning_rate(training.schedule, 1e-3, step, 20_000) for step in (0, 1000, 2000, 11_000, 20_000)}
    middle = (1e-3 - 1e-6) / 2 + 1e-6
    assert rates == pytest.approx({0: 1e-5, 1000: 0.505e-3, 2000: 1e-3, 11_000: middle, 20_000: 1e-6})


def test_the_warm_up_of_ted_is_a_tenth_of_any_number_of_steps():
    run = read_run(model=TED, data="x", recipe=TED, assignments=["training.steps=300"])
    assert run.resolved().training.schedule.warmup_steps == 30


def test_file_and_assignments_change_fields_of_a_recipe(tmp_path: Path):
    config = tmp_path / "run.yaml"
    config.write_text("training: {steps: 9000, optimizer: {lr: 0.5}}\n")
    training = recipe("pldr-v51-110m-1", "training.optimizer.eps=0.25", config=config)
    assert (training.steps, training.optimizer.lr, training.optimizer.eps) == (9000, 0.5, 0.25)
    assert (training.clip.by, training.optimizer.weight_decay) == ("value", 0.1)


def test_a_recipe_may_be_a_file(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("batch_size: 3\n")
    assert recipe(str(path)).batch_size == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file, and no recipe of that name; recipes: auto, pldr-v51-104m, "), ("- 1", "expected a mapping")],
)
def test_an_unknown_recipe_is_refused(tmp_path: Path, content: str | None, message: str):
    path = tmp_path / "mine.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=f"^recipe: {path}: {message}"):
        recipe(str(path))


def test_merging_does_not_change_its_arguments():
    below = {"a": {"x": 1, "y": 2}, "b": 3}
    merged = merge_fields(below, {"a": {"y": 5}, "b": {"z": 1}, "c": None})
    assert merged == {"a": {"x": 1, "y": 5}, "b": {"z": 1}, "c": None}
    assert below == {"a": {"x": 1, "y": 2}, "b": 3}


def test_tokens_replace_the_steps_of_a_recipe(tmp_path: Path):
    training = recipe("pldr-v51-110m-1", "training.tokens=1000")
    assert (training.steps, training.tokens) == (None, 1000)
    (tmp_path / "run.yaml").write_text("training: {tokens: 2000}\n")
    assert recipe("pldr-v51-110m-1", config=tmp_path / "run.yaml").tokens == 2000
