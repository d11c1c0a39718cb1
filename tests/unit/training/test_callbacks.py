"""A callback of the user's own: its hooks are called in order, and its state survives stops."""

import os
import signal

import pytest
from runs_alike import metrics_of, same

import linnet
from linnet.core.errors import UserError
from linnet.training.callbacks import Callback, SkipStepError
from linnet.training.checkpoint import checkpoint_path, checkpoint_steps, read_state
from linnet.training.reporter import Reporter
from linnet.training.run import train_run

pytestmark = pytest.mark.usefixtures("quick")


class CountsTokens(Callback):
    """Counts tokens, and adds them to lines, `run.json` and checkpoints."""

    name = "tokens"

    def __init__(self):
        self.count, self.hooks = 0, []

    def on_load(self):
        self.hooks.append("load")

    def before_step(self):
        self.hooks.append("before")

    def after_update(self, result):
        self.count += result.tokens
        self.hooks.append("update")

    def after_step(self):
        self.hooks.append("step")

    def before_save(self, scheduled):
        self.hooks.append("save" if scheduled else "stop")

    def line_fields(self):
        return {"own_tokens": self.count}

    def summary(self):
        return {"own_tokens": self.count}

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state.get("count", 0)

    def close(self):
        self.hooks.append("close")


class Stops(Reporter):
    def __init__(self, step):
        self.at = step

    def step(self, progress):
        if progress.step == self.at:
            os.kill(os.getpid(), signal.SIGINT)


def test_its_state_is_saved_and_a_resumed_run_is_the_uninterrupted_one(tmp_path, tiny_run):
    run = tiny_run()
    straight = train_run(run, tmp_path / "straight", callbacks=[CountsTokens()])
    for step in (5, 8):
        train_run(run, tmp_path / "stopped", Stops(step), callbacks=[CountsTokens()])
    stopped = train_run(run, tmp_path / "stopped", callbacks=[CountsTokens()])
    assert straight.summary["own_tokens"] == stopped.summary["own_tokens"] == straight.summary["tokens"]
    assert same(tmp_path / "straight", tmp_path / "stopped")
    assert [line["own_tokens"] for line in metrics_of(tmp_path / "stopped")] == [
        line["tokens"] for line in metrics_of(tmp_path / "stopped")
    ]
    folder = tmp_path / "stopped" / "checkpoints"
    state = read_state(checkpoint_path(folder, checkpoint_steps(folder)[-1]))
    assert state.callbacks["tokens"] == {"count": state.tokens}


def test_its_hooks_are_called_in_order(tmp_path, tiny_run):
    callback = CountsTokens()
    train_run(tiny_run(steps=3, evaluate={"every": 9, "tokens": 64}), tmp_path, callbacks=[callback])
    step = ["before", "update", "step"]
    assert callback.hooks == ["load", *step, *step, *step, "save", "close"]


def test_it_may_refuse_updates_whose_data_is_skipped(tmp_path, tiny_run):
    class Refuses(Callback):
        refused = 0

        def check_update(self, loss, gradient_norm):
            if self.context.state.step == 2 and self.refused < 2:
                return SkipStepError("not this one")
            return None

        def on_skip(self, skipped, step, before):
            assert (str(skipped), step) == ("not this one", 3)
            self.refused += 1

    callback = Refuses()
    result = train_run(tiny_run(steps=4), tmp_path, callbacks=[callback])
    assert callback.refused == 2 and result.finished
    state = read_state(checkpoint_path(tmp_path / "checkpoints", 4))
    assert (state.step, state.data_position) == (4, 6)


def test_it_is_closed_if_the_run_fails(tmp_path, tiny_run, tiny_data, tiny_model):
    class Fails(CountsTokens):
        def after_step(self):
            raise UserError("enough")

    callback = Fails()
    fields = {"steps": 2, "batch_size": 2, "context_length": 16, "threads": 1}
    with pytest.raises(UserError, match="enough"):
        linnet.train(tmp_path / "run", model=tiny_model(), data=tiny_data, training=fields, callbacks=[callback])
    assert callback.hooks[-1] == "close"
