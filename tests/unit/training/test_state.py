import pytest

from linnet.core.errors import UserError
from linnet.training.callbacks.evaluation import EvaluationState
from linnet.training.callbacks.guard import GuardState
from linnet.training.callbacks.log import LogState
from linnet.training.state import TrainState, parse_dataclass

STATE = TrainState("hash", 5, 3, 300, 4, 1e-3, 0.7, 0.1, False, 2, {"log": {"meter": {"nats": 1.5}}})


def test_a_state_is_read_back():
    assert TrainState.from_dict(STATE.to_dict(), "file") == STATE


@pytest.mark.parametrize(
    "changes",
    [{"step": "x"}, {"tokens": None}, {"callbacks": None}, {"callbacks": {"log": []}}, {"more": 1}, {"lr": {}}],
)
def test_fields_of_another_type_are_named(changes):
    (name,) = changes
    with pytest.raises(UserError, match=f"file: state: not the state of a run .*{name}"):
        TrainState.from_dict(STATE.to_dict() | changes, "file")


@pytest.mark.parametrize("plain", [None, [], {}, "state"])
def test_something_else_is_refused(plain):
    with pytest.raises(UserError, match="file: state: not the state of a run"):
        TrainState.from_dict(plain, "file")


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        (LogState, {"meter": None}),
        (LogState, {"meter": {"nats": []}}),
        (LogState, {"meter": {"more": 1}}),
        (GuardState, {"losses": 3}),
        (EvaluationState, {"best_step": "x"}),
    ],
)
def test_the_state_of_a_callback_is_checked_too(kind, plain):
    (name,) = plain
    with pytest.raises(UserError, match=f"file: .*{name}"):
        parse_dataclass(kind, plain, "file: state")
