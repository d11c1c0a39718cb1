"""One training after another: gone on with, stopped, recorded where it diverges."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from linnet.core.errors import UserError
from linnet.data.prepare import prepare_texts
from linnet.experiments.jobs import Diverged, ExperimentStopped, Planned, Runner
from linnet.training.reporter import Progress, Reporter
from linnet.training.run import RunResult
from linnet.training.run_folder import DivergedError
from linnet.training.spec import RunSpec

MODEL = {
    "vocab_size": 257,
    "d_model": 8,
    "context_length": 16,
    "blocks": [{"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 8}}],
}
TRAINING = {"steps": 3, "batch_size": 2, "threads": 1, "evaluate": {"tokens": 64}}
TOO_FAST = {"optimizer": {"lr": 1e38}, "schedule": {"warmup_steps": 0}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runner") / "data"
    prepare_texts(["the bird sang to the tree. " * 4] * 20, ["the tree was glad. "] * 6, folder, tokenizer="bytes")
    return folder


def planned(data: Path, folder: Path, **training: object) -> Planned:
    run = RunSpec.parse({"model": MODEL, "data": str(data), "training": TRAINING | training}, "test")
    return Planned("one, seed 0", folder, run)


class Steps(Reporter):
    """Remembers the steps; a signal is sent after step `until`."""

    def __init__(self, until: int | None = None, number: signal.Signals = signal.SIGINT) -> None:
        self.made: list[int] = []
        self._until, self._number = until, number

    def step(self, progress: Progress) -> None:
        self.made.append(progress.step)
        if progress.step == self._until:
            os.kill(os.getpid(), self._number)


class Saving(Reporter):
    """A signal is sent after the evaluation of the last step, before that is saved."""

    def line(self, line: dict[str, object]) -> None:
        if line["step"] == 3:
            os.kill(os.getpid(), signal.SIGINT)


def runner(reporter: Reporter, said: list[str], titles: list[str] | None = None) -> Runner:
    @contextmanager
    def watching(title: str) -> Iterator[Reporter]:
        if titles is not None:
            titles.append(title)
        yield reporter

    return Runner(said.append, "linnet test", watching)


def test_the_display_is_passed_on_and_a_finished_run_is_not_changed(data: Path, tmp_path: Path):
    reporter, titles = Steps(), []
    first = runner(reporter, [], titles).train(planned(data, tmp_path / "run"))
    assert (reporter.made, titles, first.summary["command"]) == ([1, 2, 3], ["one, seed 0"], "linnet test")
    again = runner(reporter, []).train(planned(data, tmp_path / "run"))
    assert reporter.made == [1, 2, 3] and again.summary == first.summary


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_ends_the_experiment_and_the_next_call_continues(data: Path, tmp_path: Path, number: signal.Signals):
    with pytest.raises(ExperimentStopped, match=r"^stopped at step 2 of 3 of one, seed 0$") as stopped:
        runner(Steps(2, number), []).attempt(planned(data, tmp_path / "run"))
    assert stopped.value.signal == number
    reporter = Steps()
    result = runner(reporter, []).attempt(planned(data, tmp_path / "run"))
    assert reporter.made == [3] and isinstance(result, RunResult) and result.finished


def test_a_stop_while_the_last_step_is_saved_ends_the_experiment_too(data: Path, tmp_path: Path):
    with pytest.raises(ExperimentStopped, match="stopped at step 3 of 3") as stopped:
        runner(Saving(), []).train(planned(data, tmp_path / "run"))
    assert stopped.value.signal == signal.SIGINT
    assert runner(Steps(), []).train(planned(data, tmp_path / "run")).finished


def test_a_run_that_diverges_is_recorded_and_not_tried_again(data: Path, tmp_path: Path):
    said: list[str] = []
    reporter = Steps()
    found = runner(reporter, said).attempt(planned(data, tmp_path / "run", **TOO_FAST))
    assert isinstance(found, Diverged) and found == Diverged.read(tmp_path / "run")
    assert said == [f"one, seed 0: diverged at step {found.step}: {found.reason}"]
    steps = list(reporter.made)
    assert runner(reporter, said).attempt(planned(data, tmp_path / "run", **TOO_FAST)) == found
    assert reporter.made == steps
    assert said[1] == f"{said[0]}; not trained again (remove {tmp_path / 'run'} to train it again)"
    with pytest.raises(UserError, match="holds a run with training"):
        runner(reporter, said).attempt(planned(data, tmp_path / "run", **TOO_FAST, batch_size=3))


def test_a_single_run_that_diverges_is_an_error(data: Path, tmp_path: Path):
    with pytest.raises(DivergedError, match="not finite, stopped at step"):
        runner(Steps(), []).train(planned(data, tmp_path / "run", **TOO_FAST))
    assert "loss nan" in str(Diverged.read(tmp_path / "run"))
    with pytest.raises(DivergedError, match="not finite, stopped at step"):  # who asks for it has it tried again
        runner(Steps(), []).train(planned(data, tmp_path / "run", **TOO_FAST))


def test_a_run_that_finished_later_did_not_diverge(data: Path, tmp_path: Path):
    one = planned(data, tmp_path / "run")
    runner(Steps(), []).train(one)
    (one.folder / "diverged.json").write_text('{"step": 3, "reason": "loss nan"}')
    assert Diverged.read(one.folder) is None
    other = replace(one, folder=tmp_path / "other")
    other.folder.mkdir()
    (other.folder / "diverged.json").write_text('{"step": 3, "reason": "loss nan"}')
    assert Diverged.read(other.folder) == Diverged(step=3, reason="loss nan")
