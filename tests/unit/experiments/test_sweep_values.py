"""What `--sweep` says, and the runs that it makes."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.experiments.sweep import Sweep, read_sweep, shortened, typed
from linnet.training.spec import RunSpec

MODEL = {
    "vocab_size": 257,
    "d_model": 8,
    "context_length": 16,
    "blocks": [{"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 8}}],
}


def run_of(**training: Any) -> RunSpec:
    return RunSpec.parse({"model": MODEL, "data": "data", "training": {"steps": 60, **training}}, "test")


@pytest.mark.parametrize(
    ("text", "path", "values"),
    [
        ("lr", "optimizer.lr", (0.00025, 0.0005, 0.001, 0.002, 0.004)),
        ("lr=4e-3, 1e-3,0.002", "optimizer.lr", (0.001, 0.002, 0.004)),
        ("training.optimizer.lr=1,2", "optimizer.lr", (1, 2)),
        ("batch_size=4,16,8", "batch_size", (4, 8, 16)),
        ("weight_decay=0,0.1", "optimizer.weight_decay", (0, 0.1)),
        ("optimizer.muon.momentum=.9,.95", "optimizer.muon.momentum", (0.9, 0.95)),
    ],
)
def test_a_field_and_its_values(text: str, path: str, values: tuple[float, ...]):
    assert read_sweep(text, run_of()) == Sweep(path, values)


def test_a_learning_rate_alone_is_swept_about_the_one_that_is_configured():
    muon = {"kind": "muon", "lr": 3e-3}
    assert read_sweep("lr", run_of(optimizer=muon)).values == (0.00075, 0.0015, 0.003, 0.006, 0.012)
    assert read_sweep("optimizer.muon.lr", run_of(optimizer=muon)).values[2] == 3e-3
    own = run_of(optimizer={**muon, "muon": {"lr": 0.02}})
    assert read_sweep("optimizer.muon.lr", own) == Sweep("optimizer.muon.lr", (0.005, 0.01, 0.02, 0.04, 0.08))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr=a,1", "sweep: lr=a,1: 'a' is no number; expected FIELD=A,B,..."),
        ("lr=true,1", "'true' is no number"),
        ("lr=", "'' is no number"),
        ("lr=[1,2]", "sweep=[1"),
        ("lr=1e-3", "sweep: lr=1e-3: expected two values or more, each once"),
        ("lr=1e-3,0.001,1", "each once"),
        ("batch_size", "sweep: batch_size: expected values, as in batch_size=A,B,C"),
        ("lrr=1,2", "sweep: lrr=1,2: did you mean lr?"),
        ("seed=0,1", "expected a number of training that decides what is learned, such as lr"),
        ("evaluate.every=1,2", "expected a number of training that decides what is learned"),
        ("optimizer.betas=1,2", "expected a number of training that decides what is learned"),
        ("low_lr=1e-4,1e-3", "sweep: low_lr=1e-4,1e-3: no layer of the model has parameters with a low learning rate"),
        ("nothing.of.the.kind=1,2", "expected a number of training that decides what is learned"),
    ],
)
def test_mistakes_are_one_line(text: str, message: str):
    with pytest.raises(UserError) as error:
        read_sweep(text, run_of())
    assert message in str(error.value)


def test_an_invalid_value_is_named():
    run = run_of()
    with pytest.raises(UserError, match=r"^`sweep` training.optimizer.lr: -1: must be greater than 0$"):
        read_sweep("lr=-1,1", run).run(run, -1)
    with pytest.raises(UserError, match=r"^sweep: context_length=32: training.context_length: 32: must be at most"):
        read_sweep("context_length=8,32", run).run(run, 32)


def test_folders_have_the_short_name_of_a_unique_field():
    labels = [Sweep(path, ()).label(0.001) for path in ("optimizer.lr", "optimizer.muon.lr", "averaging.decay")]
    assert labels == ["lr-0.001", "optimizer.muon.lr-0.001", "averaging.decay-0.001"]
    assert Sweep("batch_size", ()).label(8) == "batch_size-8"


@given(st.floats(1e-9, 1e9) | st.integers(1, 1 << 30))
def test_values_are_printed_as_they_are_typed(value: float):
    (again, _) = read_sweep(f"lr={typed(value)},1e12", run_of()).values
    assert again == value


@given(
    batch_size=st.integers(1, 64),
    gradient_accumulation=st.integers(1, 4),
    steps=st.integers(1, 400),
    swept=st.integers(1, 64),
    grown=st.booleans(),
)
def test_a_step_of_another_size_leaves_the_tokens_as_they_are(
    batch_size: int, gradient_accumulation: int, steps: int, swept: int, grown: bool
):
    growth = {"context_length": [[0.5, 8]]} if grown else {}
    run = run_of(batch_size=batch_size, gradient_accumulation=gradient_accumulation, steps=steps, growth=growth)
    made = Sweep("batch_size", (swept,)).run(run, swept).resolved()
    wanted = run.resolved().growth.tokens(0, steps)
    assert made.training.batch_size == swept
    found = made.growth.tokens(0, made.steps)
    assert wanted <= found < wanted + 2 * swept * gradient_accumulation * 16


def test_warm_up_keeps_its_share_and_other_fields_stay():
    run = run_of(schedule={"warmup_steps": 30, "kind": "linear"})
    made = Sweep("batch_size", (16,)).run(run, 16).resolved()
    assert (made.training.steps, made.training.schedule.warmup_steps) == (30, 15)
    short = shortened(run, 20).resolved()
    assert (short.training.steps, short.training.schedule.warmup_steps) == (20, 10)
    same = Sweep("optimizer.lr", (0.5,)).run(run, 0.5)
    assert same == run.model_copy(
        update={"training": run.training.model_copy(update={"optimizer": same.training.optimizer})}
    )
    by_tokens = run_of(steps=None, tokens=1600)
    assert Sweep("batch_size", (4,)).assignments(by_tokens, 4) == ["training.batch_size=4"]
    assert math.isclose(Sweep("schedule.warmup_share", (0.1,)).run(run, 0.1).training.schedule.warmup_share or 0, 0.1)


def test_a_share_of_the_steps():
    run = run_of()
    assert shortened(run, None) is run
    assert shortened(run_of(steps=None, tokens=8 * 16 * 60), 7).steps == 7
    with pytest.raises(UserError, match=r"^sweep_steps: 61: expected at most the 60 steps of the run$"):
        shortened(run, 61)
