import json
import math
import os
import shutil
import signal
import threading
import time

import pytest
import torch
from runs_alike import metrics_of, same, weights_of
from safetensors.torch import load_file

from linnet.core.checksum import read_checked_json, write_checked_json
from linnet.core.errors import UserError
from linnet.core.system import ENDING_SIGNALS
from linnet.data.loader import Batches, document_windows, validation_batches
from linnet.data.token_data import TokenData
from linnet.evaluation.measure import evaluate_windows
from linnet.evaluation.models import calibration_tokens
from linnet.model.cost import model_cost
from linnet.model.store import load_decoder
from linnet.present import numbers
from linnet.training.callbacks import Callback, saving
from linnet.training.checkpoint import checkpoint_steps
from linnet.training.metrics import DIVERGED
from linnet.training.objectives import Loss
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.reporter import Reporter
from linnet.training.run import train_run
from linnet.training.run_folder import DivergedError, RunFolder
from linnet.training.run_list import read_run_info

pytestmark = pytest.mark.usefixtures("quick")

MIXERS = ["attention", "ted", "plga"]


class Recorder(Reporter):
    """Remembers what it hears; asks for a stop after a step, as Ctrl-C does."""

    def __init__(self, stop_at=None, number=signal.SIGINT):
        self.notes, self.steps = [], []
        self.stop_at, self.number = stop_at, number

    def note(self, text):
        self.notes.append(text)

    def step(self, progress):
        self.steps.append(progress)
        if progress.step == self.stop_at:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_fixed_seed_gives_the_same_run_twice(tmp_path, tiny_run, mixer):
    for name in ("one", "two"):
        torch.rand(3)
        train_run(tiny_run(mixer), tmp_path / name)
    train_run(tiny_run(mixer, seed=1), tmp_path / "other")
    assert same(tmp_path / "one", tmp_path / "two")
    assert weights_of(tmp_path / "one") != weights_of(tmp_path / "other")


@pytest.mark.usefixtures("hangups_are_heard")
@pytest.mark.parametrize("mixer", MIXERS)
def test_a_resumed_run_ends_bit_for_bit_like_an_uninterrupted_one(tmp_path, tiny_run, mixer):
    run = tiny_run(mixer, gradient_accumulation=2, precision="bfloat16" if mixer == "ted" else "float32")
    train_run(run, tmp_path / "straight")
    for stop_at, number in ((1, signal.SIGINT), (4, signal.SIGTERM), (7, signal.SIGHUP)):
        result = train_run(run, tmp_path / "stopped", Recorder(stop_at, number))
        assert not result.finished and result.summary["step"] == stop_at
        assert checkpoint_steps(tmp_path / "stopped" / "checkpoints")[-1] == stop_at
    assert train_run(run, tmp_path / "stopped").finished
    assert same(tmp_path / "straight", tmp_path / "stopped")
    assert [line["step"] for line in metrics_of(tmp_path / "stopped")] == [2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_run_with_muon_resumes_bit_for_bit_and_reports_its_share(tmp_path, tiny_run, mixer):
    run = tiny_run(mixer, optimizer={"kind": "muon", "cautious_decay": True, "muon": {"every": 3}})
    summary = train_run(run, tmp_path / "straight").summary
    for stop_at in (1, 5):
        train_run(run, tmp_path / "stopped", Recorder(stop_at))
    assert train_run(run, tmp_path / "stopped").finished
    assert same(tmp_path / "straight", tmp_path / "stopped")
    shares = [json.loads(text)["orthogonalizing_share"] for text in (tmp_path / "straight" / "metrics.jsonl").open()]
    assert len(shares) == 6 and all(0 < share < 1 for share in shares)
    assert min(shares) <= summary["orthogonalizing_share"] <= max(shares)


@pytest.mark.parametrize("averaging", [{"kind": "ema", "decay": 0.9}, {"kind": "mean", "share": 0.5}])
def test_a_run_with_averaged_weights_resumes_bit_for_bit(tmp_path, tiny_run, tiny_data, averaging):
    run = tiny_run(averaging=averaging)
    summary = train_run(run, tmp_path / "straight").summary
    for stop_at in (1, 5, 9):
        train_run(run, tmp_path / "stopped", Recorder(stop_at))
    train_run(run, tmp_path / "stopped")
    assert same(tmp_path / "straight", tmp_path / "stopped")
    train_run(tiny_run(), tmp_path / "plain")
    losses = [[line["loss"] for line in metrics_of(tmp_path / name)] for name in ("straight", "plain")]
    assert losses[0] == losses[1] and weights_of(tmp_path / "straight") != weights_of(tmp_path / "plain")
    last = load_file(tmp_path / "straight" / "checkpoints" / "step-00000012" / "optimizer.safetensors")
    trained = load_decoder(tmp_path / "plain" / "model").state_dict()
    assert all(torch.equal(last[f"{name}/trained_weight"], tensor) for name, tensor in trained.items())
    assert summary["averaging"]["kind"] == averaging["kind"]
    assert _evaluated(tmp_path / "straight" / "model", tiny_data) == {
        key: value for key, value in summary["validation"].items() if key != "step"
    }


def _evaluated(model, folder):
    """What the model folder comes to on the validation set of a tiny run."""
    data = TokenData.open(folder)
    sequence = data.split("validation")
    windows = validation_batches(sequence, document_windows(sequence, 16), 2, 128)
    calibration_1T = calibration_tokens(data, "train", 16)
    return evaluate_windows(load_decoder(model), windows, data.tokenizer.byte_counts(), 16, calibration_1T).to_dict()


GROWTH = {"context_length": [[0.25, 4], [0.5, 8]], "batch_size": [[0.4, 1]]}
"""Of 12 steps with 2 x 16 tokens: 3 of 1 x 4, 2 of 1 x 8, 1 of 2 x 8, 6 of 2 x 16."""


@pytest.mark.parametrize(("mixer", "windows"), zip(MIXERS, ("stream", "documents", "stream"), strict=True))
def test_a_growing_run_resumes_bit_for_bit(tmp_path, tiny_run, mixer, windows):
    run = tiny_run(mixer, growth=GROWTH, windows=windows, gradient_accumulation=2)
    reporter = Recorder()
    summary = train_run(run, tmp_path / "straight", reporter).summary
    for stop_at in (2, 3, 7):
        train_run(run, tmp_path / "stopped", Recorder(stop_at))
    assert train_run(run, tmp_path / "stopped").finished
    assert same(tmp_path / "straight", tmp_path / "stopped")
    each = [2 * tokens for tokens in [4] * 3 + [8] * 2 + [16] + [32] * 6]
    assert [progress.tokens for progress in reporter.steps] == [sum(each[: step + 1]) for step in range(12)]
    assert summary["tokens"] == sum(each)
    assert [note for note in reporter.notes if "from here on" in note] == [
        "step 4: 2 sequences of 8 tokens from here on",
        "step 6: 4 sequences of 8 tokens from here on",
        "step 7: 4 sequences of 16 tokens from here on",
    ]
    assert (
        train_run(tiny_run(mixer, windows=windows, steps=1), tmp_path / "one").summary["validation"]["tokens"]
        == (summary["validation"]["tokens"])
    ), "evaluated with the same windows"


def test_a_length_in_tokens_counts_those_of_each_stage(tmp_path, tiny_run):
    summary = train_run(tiny_run(steps=None, tokens=250, growth=GROWTH), tmp_path).summary
    assert 250 <= summary["tokens"] < 250 + 32


def test_an_extended_run_keeps_its_growth_stages(tmp_path, tiny_run):
    train_run(tiny_run(growth=GROWTH), tmp_path)
    reporter = Recorder()
    assert train_run(tiny_run(growth=GROWTH, steps=20), tmp_path, reporter).summary["tokens"] == 236 + 8 * 32
    assert not [note for note in reporter.notes if "from here on" in note]


@pytest.mark.parametrize("stop_at", [4, 12])
def test_a_stop_before_an_evaluation_leaves_it_for_later(tmp_path, tiny_run, stop_at):
    """The stop comes in the step after which an evaluation is due: it is not begun, and made first on resuming."""
    run = tiny_run("plga")
    train_run(run, tmp_path / "straight")
    result = train_run(run, tmp_path / "stopped", Recorder(stop_at))
    assert not result.finished
    assert [line["step"] for line in metrics_of(tmp_path / "stopped")][-1] == stop_at - 2
    train_run(run, tmp_path / "stopped")
    assert same(tmp_path / "straight", tmp_path / "stopped")


def test_checkpoints_that_a_killed_process_did_not_prune_are_pruned(tmp_path, tiny_run, monkeypatch):
    run = tiny_run(checkpoint={"every": 3, "keep": 1})
    train_run(run, tmp_path / "straight")
    with monkeypatch.context() as patch:
        patch.setattr(saving, "prune", lambda *_: None)
        train_run(run, tmp_path / "run")
    assert checkpoint_steps(tmp_path / "run" / "checkpoints") == [3, 4, 6, 8, 9, 12]
    shutil.rmtree(tmp_path / "run" / "model")  # written after the last checkpoint
    train_run(run, tmp_path / "run")
    assert checkpoint_steps(tmp_path / "run" / "checkpoints") == checkpoint_steps(tmp_path / "straight" / "checkpoints")


def test_a_line_that_a_killed_process_wrote_after_its_checkpoint_is_written_once(tmp_path, tiny_run):
    """Stopped before an evaluation, resumed, killed after it was written: the checkpoint knows nothing of that line."""
    run = tiny_run()
    train_run(run, tmp_path / "straight")
    train_run(run, tmp_path / "killed", Recorder(stop_at=4))
    with (tmp_path / "killed" / "metrics.jsonl").open("a") as handle:
        handle.write('{"step": 4, "loss": 1}\n{"step": 6, "lo')
    train_run(run, tmp_path / "killed")
    assert same(tmp_path / "straight", tmp_path / "killed")


def test_a_run_ends_equally_from_any_older_checkpoint(tmp_path, tiny_run):
    run = tiny_run(checkpoint={"every": 3, "keep": 9})
    train_run(run, tmp_path / "run")
    straight, metrics = weights_of(tmp_path / "run"), metrics_of(tmp_path / "run")
    steps = checkpoint_steps(tmp_path / "run" / "checkpoints")
    assert {3, 6, 9, 12} <= set(steps)
    for step in reversed(steps):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{step:08d}")
        shutil.rmtree(tmp_path / "run" / "model")
        train_run(run, tmp_path / "run")
        assert weights_of(tmp_path / "run") == straight and metrics_of(tmp_path / "run") == metrics


def test_a_damaged_newest_checkpoint_is_skipped(tmp_path, tiny_run):
    run = tiny_run()
    train_run(run, tmp_path / "straight")
    train_run(run, tmp_path / "run", Recorder(stop_at=7))
    (tmp_path / "run" / "checkpoints" / "step-00000007" / "model.safetensors").write_bytes(b"half")

    class Looks(Recorder):
        def begin(self, step, steps):
            self.left = checkpoint_steps(tmp_path / "run" / "checkpoints")

    reporter = Looks()
    train_run(run, tmp_path / "run", reporter)
    assert reporter.left[-1] == 6
    assert "damaged checkpoint skipped" in reporter.notes[0] and "step-00000007" in reporter.notes[0]
    assert reporter.notes[1].startswith("resuming from step 6")
    assert same(tmp_path / "straight", tmp_path / "run")


def test_one_process_resumes_a_sharded_run(tmp_path, tiny_run):
    """A new run is refused, and leaves no folder; one that has begun goes on, and keeps what it was asked for."""
    with pytest.raises(UserError, match=r"training.parallel.shard: 2: expected 1 in one process"):
        train_run(tiny_run(parallel={"shard": 2}), tmp_path / "new" / "run")
    assert not (tmp_path / "new").exists()
    train_run(tiny_run(), tmp_path / "run", Recorder(stop_at=5))
    reporter = Recorder()
    longer = tiny_run(parallel={"shard": 2}, steps=13)
    assert train_run(longer, tmp_path / "run", reporter).finished
    assert "note: training.parallel.shard: 1 instead of 2 in one process; the result is the same" in reporter.notes
    assert RunFolder(tmp_path / "run").configuration().training.parallel.shard == 2


def test_a_finished_run_is_left_as_it_is(tmp_path, tiny_run):
    first = train_run(tiny_run(), tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    reporter = Recorder()
    again = train_run(tiny_run(), tmp_path, reporter)
    assert again.finished and again.summary == first.summary
    assert reporter.steps == [] and reporter.notes == [f"{tmp_path}: finished at step 12, nothing to do"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_the_folder_of_another_run_is_refused(tmp_path, tiny_run):
    train_run(tiny_run(), tmp_path)
    with pytest.raises(UserError, match=r"training\.seed: 0, not 5"):
        train_run(tiny_run(seed=5), tmp_path)


def test_other_data_in_the_same_place_is_refused(tmp_path, tiny_run, tiny_data):
    shutil.copytree(tiny_data, tmp_path / "data")
    run = tiny_run().model_copy(update={"data": tmp_path / "data"})
    train_run(run, tmp_path / "run", Recorder(stop_at=3))
    _name_source(tmp_path / "data", "another")
    with pytest.raises(UserError, match=r"not the data that .* was trained on"):
        train_run(run, tmp_path / "run")


def test_a_finished_run_is_refused_with_other_data(tmp_path, tiny_run, tiny_data):
    shutil.copytree(tiny_data, tmp_path / "data")
    train_run(tiny_run(steps=1), tmp_path / "run")
    other = tiny_run(steps=1).model_copy(update={"data": tmp_path / "data"})
    assert train_run(other, tmp_path / "run").finished  # moved, and the same
    _name_source(tmp_path / "data", "another")
    with pytest.raises(
        UserError, match=rf"^data: {tmp_path / 'data'}: not the data that {tmp_path / 'run'} was trained"
    ):
        train_run(other, tmp_path / "run")


def _name_source(data, name):
    manifest = read_checked_json(data / "manifest.json")
    manifest["sources"][0]["file"] = name
    write_checked_json(data / "manifest.json", manifest)


def test_the_run_folder_has_its_files(tmp_path, tiny_run, tiny_data):
    result = train_run(tiny_run("plga"), tmp_path, command="linnet train ...")
    assert {p.name for p in tmp_path.iterdir()} == {
        "config.yaml", "metrics.jsonl", "curves.png", "checkpoints", "model",
    }  # fmt: skip
    assert {p.name for p in result.model.iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "run.json", "manifest.json",
    }  # fmt: skip
    summary = json.loads((result.model / "run.json").read_text())
    assert summary == result.summary
    assert (summary["finished"], summary["step"], summary["tokens"]) == (True, 12, 12 * 2 * 16)
    assert summary["command"] == "linnet train ..." and summary["seconds"] > 0
    line = metrics_of(tmp_path)[-1]
    assert line["validation"] == {k: v for k, v in summary["validation"].items() if k != "step"}
    assert line["tokens"] == 12 * 2 * 16 and line["lr"] == pytest.approx(1e-4)
    assert result.model / "model.safetensors" != result.folder / summary["best"]["checkpoint"]
    assert summary["best"]["bits_per_byte"] == min(
        line["validation"]["bits_per_byte"] for line in metrics_of(tmp_path) if "validation" in line
    )


@pytest.mark.parametrize("mixer", ["attention", "plga"])
def test_the_validation_figures_are_those_of_the_saved_model(tmp_path, tiny_run, tiny_data, mixer):
    result = train_run(tiny_run(mixer), tmp_path)
    found = _evaluated(result.model, tiny_data)
    assert found == {k: v for k, v in result.summary["validation"].items() if k != "step"}
    assert ("leak" in found) == (mixer == "plga")


def test_losses_are_means_over_the_steps_of_a_line(tmp_path, tiny_run):
    reporter = Recorder()
    train_run(tiny_run(log={"every": 1}), tmp_path / "each", reporter)
    train_run(tiny_run(log={"every": 3}, evaluate={"every": 100, "tokens": 128}), tmp_path / "thirds")
    each = [line["loss"] for line in metrics_of(tmp_path / "each")]
    thirds = [line["loss"] for line in metrics_of(tmp_path / "thirds")]
    assert thirds == pytest.approx([sum(each[i : i + 3]) / 3 for i in range(0, 12, 3)])
    assert [progress.nats_per_token for progress in reporter.steps] == each
    assert each[-1] < each[0]
    assert each[0] == pytest.approx(math.log(257), rel=0.1)


def test_accumulated_batches_are_those_of_one_large_batch(tmp_path, tiny_run):
    train_run(tiny_run(batch_size=4), tmp_path / "large")
    train_run(tiny_run(batch_size=2, gradient_accumulation=2), tmp_path / "parts")
    large, parts = ([line["loss"] for line in metrics_of(tmp_path / name)] for name in ("large", "parts"))
    assert parts == pytest.approx(large, rel=1e-5)


def test_the_best_checkpoint_stays(tmp_path, tiny_run):
    """A learning rate that ruins the model late: the best checkpoint is an early one, and it is kept."""
    schedule = {"kind": "constant", "warmup_steps": 20, "start_fraction": 0.0}
    run = tiny_run(steps=20, optimizer={"lr": 1.0}, schedule=schedule, checkpoint={"every": 2, "keep": 1})
    result = train_run(run, tmp_path)
    best = result.summary["best"]
    assert best["step"] < 20
    assert checkpoint_steps(tmp_path / "checkpoints") == [best["step"], 20]
    assert (tmp_path / best["checkpoint"] / "model.safetensors").is_file()


def _breaks_down(step):
    """The objective, whose loss is not finite from a step on (two batches a step)."""
    calls = 0

    def objective(decoder, batch):
        nonlocal calls
        calls += 1
        loss = next_token_loss(decoder, batch)
        return Loss(loss.total * math.nan, loss.nats) if calls == 2 * step else loss

    return objective


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path, tiny_run):
    run = tiny_run(gradient_accumulation=2)
    with pytest.raises(DivergedError) as error:
        train_run(run, tmp_path, objective=_breaks_down(step=6))
    message = str(error.value)
    assert "\n" not in message
    for part in ("step 6:", "loss nan", "learning rate 0.000", "gradient norm nan"):
        assert part in message
    assert message.endswith(f"last good checkpoint: {tmp_path / 'checkpoints' / 'step-00000004'}")
    good = load_decoder(tmp_path / "checkpoints" / "step-00000004")
    assert all(torch.isfinite(p).all() for p in good.parameters())
    assert not (tmp_path / "model").exists()
    assert (read_run_info(tmp_path).state, read_run_info(tmp_path).step) == ("diverged", 4)
    assert read_run_info(tmp_path).problem == f"step 6: {error.value.reason}"
    train_run(run, tmp_path)
    assert not (tmp_path / DIVERGED).exists()
    train_run(run, tmp_path / "straight")
    assert same(tmp_path, tmp_path / "straight")


def test_a_checkpoint_with_a_nonfinite_loss_is_not_called_good(tmp_path, tiny_run):
    run = tiny_run(gradient_accumulation=2)
    with pytest.raises(DivergedError, match=r"step 4: loss nan.* last good checkpoint: none yet"):
        train_run(run, tmp_path, objective=_breaks_down(step=4))
    assert checkpoint_steps(tmp_path / "checkpoints") == [3]


@pytest.mark.parametrize("every", [1, 100])
def test_nonfinite_weights_are_not_saved(tmp_path, tiny_run, every):
    run = tiny_run(optimizer={"lr": 1e38}, schedule={"warmup_steps": 0}, checkpoint={"every": every})
    with pytest.raises(DivergedError, match=r"stopped at step \d+: .*learning rate .*gradient norm .*none yet"):
        train_run(run, tmp_path)
    assert checkpoint_steps(tmp_path / "checkpoints") == []


def test_the_vocabulary_is_the_tokenizers(tmp_path, tiny_run):
    run = tiny_run()
    reporter = Recorder()
    run = run.model_copy(update={"model": run.model.replace(vocab_size=5)})
    result = train_run(run, tmp_path, reporter)
    model = load_decoder(result.model).spec
    before, after = (numbers.metric(model_cost(spec).parameters) for spec in (run.model, model))
    assert model.vocab_size == 257 and before != after
    assert reporter.notes == [
        f"note: vocabulary: 257 tokens of {run.data} instead of the 5 of the description ({model.name}):"
        f" {after} parameters instead of {before}"
    ]


def test_curves_are_drawn_during_the_run(tmp_path, tiny_run, monkeypatch):
    monkeypatch.setattr(saving, "CURVES_INTERVAL_S", 0.0)

    class Looks(Recorder):
        def step(self, progress):
            super().step(progress)
            self.seen = (tmp_path / "curves.png").exists()

    reporter = Looks(stop_at=5)
    train_run(tiny_run(), tmp_path, reporter)
    assert reporter.seen


def test_a_stop_before_the_first_step(tmp_path, tiny_run):
    class Impatient(Recorder):
        def begin(self, step, steps):
            os.kill(os.getpid(), signal.SIGINT)

    result = train_run(tiny_run(), tmp_path, Impatient())
    assert (result.finished, result.summary["step"], result.summary["tokens_per_s"]) == (False, 0, None)
    assert train_run(tiny_run(), tmp_path).finished


def test_signal_handlers_are_restored(tmp_path, tiny_run):
    before = [signal.getsignal(number) for number in ENDING_SIGNALS]
    train_run(tiny_run(steps=1), tmp_path)
    assert [signal.getsignal(number) for number in ENDING_SIGNALS] == before


def test_a_run_under_nohup_ignores_sighup(tmp_path, tiny_run):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert train_run(tiny_run(), tmp_path, Recorder(4, signal.SIGHUP)).finished
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_next_batches_are_read_during_a_step_and_those_of_the_last_step_are_the_last(
    tmp_path, tiny_run, monkeypatch
):
    read, steps, batch = list[int](), list[list[int]](), Batches.batch

    def noted(self, number):
        read.append(number)
        return batch(self, number)

    class Steps(Callback):
        name = "steps"

        def after_update(self, result):
            end_s = time.monotonic() + 60  # for the thread
            while len(read) < min(24, 2 * self.context.state.step + 2) and time.monotonic() < end_s:
                time.sleep(0.001)
            steps.append(list(read))

    monkeypatch.setattr(Batches, "batch", noted)
    run, threads = tiny_run(gradient_accumulation=2), threading.active_count()
    train_run(run, tmp_path / "run", callbacks=[Steps()])
    assert [*steps, read] == [list(range(min(24, 2 * step + 2))) for step in range(1, 14)]
    assert threading.active_count() == threads


def test_damage_is_found_at_the_step_that_needs_the_batch(tmp_path, tiny_run, monkeypatch):
    def damaged(self, number, batch=Batches.batch):
        if number == 5:
            raise UserError("train-00000.bin: damaged")
        return batch(self, number)

    monkeypatch.setattr(Batches, "batch", damaged)
    recorder = Recorder()
    with pytest.raises(UserError, match="damaged"):
        train_run(tiny_run(log={"every": 1}), tmp_path / "run", recorder)
    assert [progress.step for progress in recorder.steps] == [1, 2, 3, 4, 5]
