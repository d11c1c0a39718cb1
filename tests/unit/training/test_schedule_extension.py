"""A run that is given more steps."""

import os
import shutil
import signal

import pytest
from runs_alike import metrics_of, same, weights_of

from linnet.core.checksum import read_checked_json, write_checked_json
from linnet.core.errors import UserError
from linnet.training import run_folder
from linnet.training.checkpoint import checkpoint_steps
from linnet.training.reporter import Reporter
from linnet.training.run import train, train_run
from linnet.training.run_folder import RunFolder
from linnet.training.runs import NotARunError, read_run_folder
from linnet.training.schedule import Extension, StepBudget, learning_rate

pytestmark = pytest.mark.usefixtures("quick")


class Stops(Reporter):
    def __init__(self, at=None):
        self.at, self.notes, self.rates = at, [], {}

    def note(self, text):
        self.notes.append(text)

    def step(self, progress):
        self.rates[progress.step] = progress.lr
        if progress.step == self.at:
            os.kill(os.getpid(), signal.SIGINT)


def test_each_step_uses_the_budget_of_its_first_time():
    lengths = StepBudget(
        40, (Extension(step=10, before=10, steps=20), Extension(step=15, before=20, steps=30),
             Extension(step=12, before=30, steps=40))
    )  # fmt: skip
    assert [lengths.of(step) for step in (1, 10, 11, 15, 16, 40)] == [10, 10, 20, 20, 40, 40]
    assert [step for step in range(1, 41) if lengths.ends(step)] == [10, 40]


def test_a_finished_run_is_extended(tmp_path, tiny_run):
    train_run(tiny_run(), tmp_path)
    first = metrics_of(tmp_path)
    reporter = Stops()
    result = train_run(tiny_run(steps=20), tmp_path, reporter)
    assert result.finished and result.summary["step"] == 20
    assert result.summary["extensions"] == [{"step": 12, "before": 12, "steps": 20}]
    assert RunFolder(tmp_path).configuration().training.steps == 20
    assert RunFolder(tmp_path).configuration().training.schedule.warmup_steps == 1
    assert metrics_of(tmp_path)[: len(first)] == first and metrics_of(tmp_path)[-1]["step"] == 20
    schedule = RunFolder(tmp_path).configuration().training.schedule
    assert reporter.rates == {step: learning_rate(schedule, 1e-3, step, 20) for step in range(13, 21)}
    assert reporter.notes[1] == (
        "extended at step 12: 20 steps instead of 12; the schedule (cosine) spans all steps:"
        f" learning rate {reporter.rates[13]:.2e} now, 1.00e-04 before"
    )
    assert train_run(tiny_run(steps=20), tmp_path).summary == result.summary


def test_an_extended_run_with_a_constant_rate_equals_a_long_run(tmp_path, tiny_run):
    """Prolonged before its end, the run is the one that had all steps from the start."""
    constant = {"schedule": {"kind": "constant", "warmup_steps": 2}}
    train_run(tiny_run(**constant), tmp_path / "run", Stops(at=7))
    train_run(tiny_run(**constant, steps=20), tmp_path / "run")
    train_run(tiny_run(**constant, steps=20), tmp_path / "straight")
    assert same(tmp_path / "run", tmp_path / "straight")


def test_an_extended_run_ends_equally_from_any_checkpoint(tmp_path, tiny_run):
    def longer(steps):
        return tiny_run(steps=steps, checkpoint={"every": 3, "keep": 20}, evaluate={"every": 5, "tokens": 128})

    train_run(longer(8), tmp_path)
    train_run(longer(14), tmp_path, Stops(at=11))
    train_run(longer(20), tmp_path)
    weights, metrics = weights_of(tmp_path), metrics_of(tmp_path)
    steps = checkpoint_steps(tmp_path / "checkpoints")
    assert {3, 6, 8, 11, 15, 20} <= set(steps)
    for step in reversed(steps):
        shutil.rmtree(tmp_path / "checkpoints" / f"step-{step:08d}")
        shutil.rmtree(tmp_path / "model")
        train(tmp_path)
        assert weights_of(tmp_path) == weights and metrics_of(tmp_path) == metrics, step


def test_intervals_that_are_not_given_follow_the_number_of_steps(tmp_path, tiny_run):
    """Ten or more evaluations and lines in a run of any length; each step keeps the interval of its time."""
    fitting = {"evaluate": {"tokens": 64}, "log": {}, "checkpoint": {"every": 4, "keep": 20}}
    train_run(tiny_run(steps=8, **fitting), tmp_path / "run")
    train(tmp_path / "run", training={"steps": 40})
    lines = RunFolder(tmp_path / "run").lines_to_end(40)
    assert [line["step"] for line in lines if "validation" in line] == [*range(1, 9), *range(12, 41, 4)]
    assert read_checked_json(tmp_path / "run" / "extensions.json")["extensions"] == [
        {"step": 8, "before": 8, "steps": 40, "every": {"evaluate": 1, "log": 1}}
    ]
    expected = metrics_of(tmp_path / "run")
    for step in checkpoint_steps(tmp_path / "run" / "checkpoints")[5:]:
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{step:08d}")
    shutil.rmtree(tmp_path / "run" / "model")
    train(tmp_path / "run")
    assert metrics_of(tmp_path / "run") == expected

    fixed = {**fitting, "evaluate": {"every": 3, "tokens": 64}}
    train_run(tiny_run(steps=8, **fixed), tmp_path / "fixed")
    train_run(tiny_run(steps=20, **fitting), tmp_path / "fixed")
    training = RunFolder(tmp_path / "fixed").configuration().training
    assert (training.evaluate.every, training.log.every) == (3, 2)
    with pytest.raises(UserError, match=r"training.log.every: 2, not 5"):
        train(tmp_path / "fixed", training={"steps": 30, "log": {"every": 5}})


@pytest.mark.parametrize("steps, every", [(1, (1, 1)), (19, (1, 1)), (99, (9, 9)), (300, (30, 10)), (5000, (100, 10))])
def test_the_default_intervals(tiny_run, steps, every):
    training = tiny_run(steps=steps, evaluate={}, log={}).resolved().training
    assert (training.evaluate.every, training.log.every) == every


def test_a_process_killed_between_record_and_configuration_changes_nothing(tmp_path, tiny_run, monkeypatch):
    train_run(tiny_run(), tmp_path / "run")
    train_run(tiny_run(steps=20), shutil.copytree(tmp_path / "run", tmp_path / "straight"))
    with monkeypatch.context() as patch:
        patch.setattr(run_folder.RunFolder, "_write_configuration", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train_run(tiny_run(steps=30), tmp_path / "run")
    assert (tmp_path / "run" / "extensions.json").is_file()
    assert train_run(tiny_run(), tmp_path / "run").summary["steps"] == 12, "it was never extended"
    train_run(tiny_run(steps=20), tmp_path / "run")
    assert same(tmp_path / "run", tmp_path / "straight")
    assert read_checked_json(tmp_path / "run" / "extensions.json")["extensions"] == [
        {"step": 12, "before": 12, "steps": 20}
    ]


def test_an_extended_run_is_not_finished_before_its_end(tmp_path, tiny_run):
    train_run(tiny_run(), tmp_path)
    train_run(tiny_run(steps=20), tmp_path, Stops(at=13))
    shutil.rmtree(tmp_path / "model")
    train_run(tiny_run(steps=20), tmp_path, Stops(at=14))
    with pytest.raises(NotARunError, match="is not finished"):
        read_run_folder(tmp_path)


def test_other_changes_and_fewer_steps_are_refused(tmp_path, tiny_run):
    train_run(tiny_run(), tmp_path)
    for changes, message in (
        ({"steps": 11}, "training.steps: 12, not 11"),
        ({"steps": 20, "seed": 4}, "training.seed: 0, not 4"),
        ({"steps": 20, "schedule": {"warmup_steps": 3}}, "training.schedule.warmup_steps: 1, not 3"),
    ):
        with pytest.raises(UserError, match=message):
            train_run(tiny_run(**changes), tmp_path)
    assert not (tmp_path / "extensions.json").exists()


def test_an_altered_record_is_named(tmp_path, tiny_run):
    train_run(tiny_run(), tmp_path)
    train_run(tiny_run(steps=20), tmp_path)
    for plain, message in (
        ({"extensions": [{"step": 12, "before": 12, "steps": 21}]}, r"extended to \[21\] steps.* config.yaml says 20"),
        ({"extensions": [{"step": 12, "before": 12}]}, r"extensions\[0\]: steps: missing"),
        ({}, "expected a list"),
    ):
        write_checked_json(tmp_path / run_folder.EXTENSIONS, plain)
        (tmp_path / "model" / "run.json").unlink(missing_ok=True)
        with pytest.raises(UserError, match=message):
            train(tmp_path)


def test_a_run_that_linnet_0_1_extended_keeps_its_history(tmp_path, tiny_run):
    train_run(tiny_run(), tmp_path)
    train_run(tiny_run(steps=20), tmp_path)
    history = read_checked_json(tmp_path / "extensions.json")["extensions"]
    write_checked_json(tmp_path / "prolonged.json", {"version": 1, "prolonged": history})
    (tmp_path / "extensions.json").unlink()
    result = train_run(tiny_run(steps=24), tmp_path)
    assert result.summary["extensions"] == [*history, {"step": 20, "before": 20, "steps": 24}]
    assert read_checked_json(tmp_path / "extensions.json")["extensions"] == result.summary["extensions"]
