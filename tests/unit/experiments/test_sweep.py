"""A sweep in its folder: each value once, gone on with, added to, and refused where it would be another."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from linnet.core.checksum import write_checked_json
from linnet.core.errors import UserError
from linnet.data.prepare import prepare_texts
from linnet.experiments.jobs import ExperimentStopped, Runner
from linnet.experiments.sweep import sweep
from linnet.training.reporter import Progress, Reporter
from linnet.training.run import train_run
from linnet.training.spec import RunSpec

MODEL = {
    "vocab_size": 257,
    "d_model": 8,
    "context_length": 16,
    "blocks": [{"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 8}}],
}
TRAINING = {"steps": 4, "batch_size": 2, "threads": 1, "evaluate": {"tokens": 64}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep") / "data"
    prepare_texts(["the bird sang to the tree. " * 4] * 20, ["the tree was glad. "] * 6, folder, tokenizer="bytes")
    return folder


def described(data: Path, **training: object) -> RunSpec:
    return RunSpec.parse({"model": MODEL, "data": str(data), "training": TRAINING | training}, "test")


class Counting(Reporter):
    """Remembers which run took how many steps; a signal is sent after step `until` of run `title`."""

    def __init__(self, until: tuple[str, int] | None = None) -> None:
        self.made: dict[str, int] = {}
        self.title, self._until = "", until

    def step(self, progress: Progress) -> None:
        self.made[self.title] = self.made.get(self.title, 0) + 1
        if (self.title, progress.step) == self._until:
            os.kill(os.getpid(), signal.SIGINT)


def runner(reporter: Counting) -> Runner:
    @contextmanager
    def watching(title: str) -> Iterator[Reporter]:
        reporter.title = title
        yield reporter

    return Runner([].append, "linnet test", watching)


def test_each_value_is_a_run_of_its_own_and_trained_as_it_is_alone(data: Path, tmp_path: Path):
    reporter = Counting()
    found = sweep("lr=0.01,0.001", described(data), tmp_path / "out", runner(reporter))
    assert reporter.made == {"lr-0.001": 4, "lr-0.01": 4}
    alone = train_run(described(data, optimizer={"lr": 0.01}), tmp_path / "alone").summary["validation"]
    assert found.runs[1].bits_per_byte == alone["bits_per_byte"] != found.runs[0].bits_per_byte
    assert json.loads((tmp_path / "out" / "sweep.json").read_text())["best"] == found.best.value  # type: ignore[union-attr]
    assert (tmp_path / "out" / "sweep.png").is_file()


def test_a_stopped_sweep_continues_and_new_values_join_it(data: Path, tmp_path: Path):
    out, reporter = tmp_path / "out", Counting(("lr-0.01", 2))
    with pytest.raises(ExperimentStopped, match=r"^stopped at step 2 of 4 of lr-0\.01$"):
        sweep("lr=0.001,0.01,0.02", described(data), out, runner(reporter))
    assert reporter.made == {"lr-0.001": 4, "lr-0.01": 2} and not (out / "sweep.json").exists()
    reporter = Counting()
    found = sweep("lr=0.001,0.01,0.02", described(data), out, runner(reporter))
    assert reporter.made == {"lr-0.01": 2, "lr-0.02": 4}
    straight = sweep("lr=0.001,0.01,0.02", described(data), tmp_path / "straight", runner(Counting()))
    assert [run.bits_per_byte for run in found.runs] == [run.bits_per_byte for run in straight.runs]
    reporter = Counting()
    more = sweep("lr=0.02,0.04", described(data), out, runner(reporter))
    assert reporter.made == {"lr-0.04": 4}
    assert [run.value for run in more.runs] == [0.001, 0.01, 0.02, 0.04]


def test_a_value_that_diverges_is_a_result_and_not_tried_again(data: Path, tmp_path: Path):
    run, out = described(data, schedule={"warmup_steps": 0}), tmp_path / "out"
    found = sweep("lr=0.001,1e38", run, out, runner(Counting()))
    assert [each.state.split()[0] for each in found.runs] == ["finished", "diverged"]
    assert found.best is found.runs[0] and found.runs[1].bits_per_byte is None
    reporter = Counting()
    again = sweep("lr=0.001,1e38", run, out, runner(reporter))
    assert reporter.made == {} and again.to_dict() == found.to_dict()


def test_a_share_of_the_steps_and_the_same_tokens_for_every_batch(data: Path, tmp_path: Path):
    reporter = Counting()
    found = sweep("batch_size=1,2,4", described(data, steps=9), tmp_path / "out", runner(reporter), steps=4)
    assert reporter.made == {"batch_size-1": 8, "batch_size-2": 4, "batch_size-4": 2}
    assert {run.tokens for run in found.runs} == {128}


def test_another_sweep_is_refused_before_training(data: Path, tmp_path: Path):
    out, reporter = tmp_path / "out", Counting()
    sweep("lr=0.001,0.01", described(data), out, runner(Counting()), steps=2)
    with pytest.raises(UserError, match=r"holds a suite with training\.steps: 2, not 4; choose another `out`"):
        sweep("lr=0.0005,0.001", described(data), out, runner(reporter))
    with pytest.raises(UserError, match=r"holds a suite with training\.batch_size: 2, not 3"):
        sweep("lr=0.0005,0.001", described(data, batch_size=3), out, runner(reporter), steps=2)
    with pytest.raises(UserError, match=r"^out: .*lr-0\.001: holds a run; a sweep makes a folder for each value"):
        sweep("lr", described(data), out / "lr-0.001", runner(reporter))
    with pytest.raises(UserError, match="must be greater than 0"):
        sweep("lr=0,0.1", described(data), tmp_path / "new", runner(reporter))
    assert reporter.made == {} and not (tmp_path / "new").exists()
    assert sorted(path.name for path in out.iterdir()) == [
        "curves.png", "lr-0.001", "lr-0.01", "results.jsonl", "suite.json", "sweep.json", "sweep.png",
    ]  # fmt: skip


@pytest.mark.parametrize("plain", [{}, {"field": "training.optimizer.lr", "runs": [3]}, {"field": "x", "runs": None}])
def test_other_results_are_refused(data: Path, tmp_path: Path, plain: dict[str, object]):
    write_checked_json(tmp_path / "sweep.json", plain)
    if plain.get("field") == "x":
        assert len(sweep("lr=0.001,0.01", described(data), tmp_path, runner(Counting()), steps=1).runs) == 2
        return
    with pytest.raises(UserError, match=r"sweep\.json: expected the results of a sweep; choose another `out`$"):
        sweep("lr=0.001,0.01", described(data), tmp_path, runner(Counting()))


def test_the_vocabulary_of_the_data_is_told_once(data: Path, tmp_path: Path):
    told = list[str]()

    class Noting(Reporter):
        def note(self, text: str) -> None:
            told.append(text)

    run = RunSpec.parse({"model": {**MODEL, "vocab_size": 300}, "data": str(data), "training": TRAINING}, "test")
    found = sweep(
        "lr=0.001,0.002", run, tmp_path / "out", Runner(told.append, watching=lambda _: nullcontext(Noting()))
    )
    assert len(found.runs) == 2 and all(swept.bits_per_byte for swept in found.runs)
    (line,) = (text for text in told if "vocabulary" in text)
    assert "257 tokens of" in line and "instead of the 300" in line
