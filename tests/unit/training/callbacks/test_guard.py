"""Loss spikes: told, kept from the weights, and the same however a run is interrupted."""

import math
import os
import random
import shutil
import signal
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from runs_alike import metrics_of, weights_of

from linnet.model.store import load_decoder
from linnet.training.callbacks.guard import Guard, GuardState
from linnet.training.checkpoint import checkpoint_steps
from linnet.training.objectives import Loss
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.reporter import Reporter
from linnet.training.run import train_run
from linnet.training.run_folder import DivergedError
from linnet.training.sections import GuardSpec

pytestmark = pytest.mark.usefixtures("quick")


class Notes(Reporter):
    def __init__(self, stop_at=None):
        self.notes, self.stop_at = [], stop_at

    def note(self, text):
        self.notes.append(text)

    def step(self, progress):
        if progress.step == self.stop_at:
            os.kill(os.getpid(), signal.SIGINT)


def _guard(values, spec):
    guard = Guard(spec)
    guard.state = GuardState(values[-spec.window :], [1.0] * min(len(values), spec.window))
    return guard


@given(st.lists(st.floats(0.9, 1.1), min_size=8, max_size=40), st.floats(4.0, 1e30))
def test_a_value_far_above_the_median_is_a_spike_and_not_counted(values, value):
    spec = GuardSpec(window=16)
    guard = _guard(values, spec)
    before = list(guard.state.losses)
    assert before == values[-16:]
    spike = guard.check_update(value, 1.0)
    assert spike is not None and str(spike).startswith("loss ") and "above the median" in str(spike)
    assert guard.state.losses == before and guard.state.consecutive == 1


@given(st.lists(st.floats(0.9, 1.1), min_size=8, max_size=40), st.floats(0.01, 1.0))
def test_values_below_the_median_are_not_spikes(values, value):
    spec = GuardSpec(window=16)
    assert _guard(values, spec).check_update(value * min(values), 1.0) is None


def test_a_spike_in_the_window_does_not_hide_the_next():
    """As it would with mean and standard deviation."""
    spec, generator = GuardSpec(window=16, max_consecutive=1), random.Random(0)
    guard = _guard([generator.gauss(4.0, 0.05) for _ in range(15)] + [400.0], spec)
    assert guard.check_update(6.0, 1.0) is not None


def test_noise_alone_is_hardly_ever_a_spike():
    guard, generator = Guard(GuardSpec()), random.Random(0)
    found = [guard.check_update(generator.gauss(4, 0.2), math.exp(generator.gauss(0, 0.25))) for _ in range(5000)]
    assert sum(spike is not None for spike in found) <= 5


@pytest.mark.parametrize(
    ("metric", "told"), [("loss", "loss 9"), ("gradient_norm", "gradient norm 7"), ("either", "loss 9")]
)
def test_the_metric_of_the_guard_is_configurable(metric, told):
    spec = GuardSpec(window=16, metric=metric)
    assert str(_guard([1.0] * 16, spec).check_update(9.0, 7.0)).startswith(told)
    one = (1.0, 7.0) if metric == "loss" else (9.0, 1.0)
    assert (_guard([1.0] * 16, spec).check_update(*one) is None) == (metric != "either")


def test_with_few_steps_only_nonfinite_values_are_spikes():
    spec = GuardSpec(window=16)
    assert _guard([1.0] * 7, spec).check_update(99.0, 1.0) is None
    assert str(Guard(spec).check_update(math.nan, 1.0)) == "loss nan"
    assert str(Guard(spec).check_update(1.0, math.inf)) == "gradient norm inf"


def test_a_lasting_change_of_level_is_not_a_spike():
    guard = _guard([1.0] * 16, GuardSpec(window=16, max_consecutive=3))
    assert [guard.check_update(9.0, 1.0) is None for _ in range(5)] == [False, False, False, True, True]
    assert guard.state.losses == [9.0, 9.0]


def test_rewinds_to_one_checkpoint_are_limited():
    spec = GuardSpec(window=16, action="rewind", max_consecutive=2)

    def target(guard):
        return guard.check_update(math.nan, 1.0).rewind_to

    assert target(Guard(spec)) is None
    skipping = Guard(GuardSpec())
    skipping.state.checkpoint = 10
    assert target(skipping) is None
    guard = Guard(spec)
    guard.context = SimpleNamespace(reporter=Reporter())
    guard.state.checkpoint = 10
    for times in (1, 2):
        spike = guard.check_update(math.nan, 1.0)
        assert spike.rewind_to == 10
        before = guard.state_dict()
        guard.load_state_dict({"checkpoint": 10})
        guard.on_skip(spike, 14, before)
        assert (guard.state.rewound_to, guard.state.rewinds, guard.state.count) == (10, times, times)
    assert target(guard) is None
    guard.state.consecutive, guard.state.checkpoint = 0, 20
    assert target(guard) == 20


def _content(inputs):
    return inputs.numpy().tobytes()


def _spiked(places, times=1e4):
    """The objective, of which the batches with these contents have other gradients."""

    def objective(decoder, batch):
        loss = next_token_loss(decoder, batch)
        factor = times if _content(batch.tokens) in places else 1.0
        return Loss(loss.total * factor, loss.nats)

    return objective


def _contents(run):
    from linnet.data.token_data import TokenData
    from linnet.training.data import training_batches

    batches = training_batches(TokenData.open(run.data), run.resolved())
    return [_content(batches.batch(number).tokens) for number in range(60)]


def _ends(folder):
    return weights_of(folder), metrics_of(folder)


def _run(tiny_run, action, **changes):
    return tiny_run(steps=30, checkpoint={"every": 8}, guard={"window": 16, "limit": 60, "action": action}, **changes)


def test_without_spikes_a_guarded_run_is_the_run_without_a_guard(tmp_path, tiny_run):
    assert train_run(_run(tiny_run, "skip"), tmp_path / "guarded").summary["spikes"] == {"count": 0, "latest": []}
    assert train_run(tiny_run(steps=30, checkpoint={"every": 8}), tmp_path / "plain").summary["spikes"] is None
    assert _ends(tmp_path / "guarded")[0] == _ends(tmp_path / "plain")[0]


def test_skipping_a_batch_equals_a_run_without_it(tmp_path, tiny_run):
    run = _run(tiny_run, "skip")
    contents, reporter = _contents(run), Notes()
    result = train_run(run, tmp_path / "run", reporter, objective=_spiked({contents[19]}))
    (note,) = [note for note in reporter.notes if "spike" in note]
    assert note.startswith("spike at step 20: ") and note.endswith("; its batch is skipped")
    assert result.summary["step"] == 30 and result.summary["spikes"]["count"] == 1
    assert result.summary["spikes"]["latest"][0]["step"] == 20
    assert [line["spikes"] for line in metrics_of(tmp_path / "run")] == [0] * 9 + [1] * 6
    unguarded = tiny_run(steps=30, checkpoint={"every": 8})
    train_run(unguarded, tmp_path / "unguarded", objective=_spiked({contents[19]}))
    moved = load_decoder(tmp_path / "unguarded" / "model").state_dict()
    kept = load_decoder(tmp_path / "run" / "model").state_dict()
    assert any(not torch.equal(moved[name], kept[name]) for name in kept)


@pytest.mark.parametrize("action", ["skip", "rewind"])
def test_a_guarded_run_with_spikes_resumes_bit_for_bit(tmp_path, tiny_run, action):
    run = _run(tiny_run, action)
    contents = _contents(run)
    objective = _spiked({contents[12], contents[19], contents[20]})
    train_run(run, tmp_path / "straight", objective=objective)
    for stop_at in (9, 13, 18, 20, 27):
        train_run(run, tmp_path / "stopped", Notes(stop_at), objective=objective)
    train_run(run, tmp_path / "stopped", objective=objective)
    assert _ends(tmp_path / "stopped") == _ends(tmp_path / "straight")
    train_run(run, tmp_path / "killed", Notes(22), objective=objective)
    steps = checkpoint_steps(tmp_path / "killed" / "checkpoints")
    shutil.rmtree(tmp_path / "killed" / "checkpoints" / f"step-{steps[-1]:08d}")
    shutil.rmtree(tmp_path / "killed" / "model")
    train_run(run, tmp_path / "killed", objective=objective)
    assert _ends(tmp_path / "killed") == _ends(tmp_path / "straight")


def test_a_rewind_skips_the_data_since_the_checkpoint(tmp_path, tiny_run):
    run = _run(tiny_run, "rewind", evaluate={"every": 1000, "tokens": 64})
    contents, seen, reporter = _contents(run), [], Notes()
    spiked = _spiked({contents[18]})

    def objective(decoder, batch):
        seen.append(contents.index(_content(batch.tokens)))
        return spiked(decoder, batch)

    result = train_run(run, tmp_path, reporter, objective=objective)
    assert seen == [*range(19), *range(19, 33)]
    note = next(note for note in reporter.notes if note.startswith("spike"))
    assert note.startswith("spike at step 19: ") and note.endswith("; back to step 16, the data since then is skipped")
    assert result.summary["spikes"]["latest"][0]["action"] == "rewind" and result.summary["step"] == 30


def test_endless_nonfinite_spikes_end_the_run(tmp_path, tiny_run):
    def broken(decoder, batch):
        return Loss(next_token_loss(decoder, batch).total * math.nan, torch.zeros(()))

    reporter = Notes()
    with pytest.raises(DivergedError, match="stopped at step 1: loss nan"):
        train_run(_run(tiny_run, "skip"), tmp_path, reporter, objective=broken)
    assert sum("spike at step 1: loss nan" in note for note in reporter.notes) == 5
