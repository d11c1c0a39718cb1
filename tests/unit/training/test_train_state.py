import pytest

from linnet.core.errors import UserError
from linnet.training.train_state import Meter, TrainState

STANDING = TrainState("hash", 3, 300, 0.1, False, Meter(1.5, 20, terms={"z": 0.1}), 2, {"nats": 0.3}, 2, 1.1)


def test_what_was_written_is_read_back():
    assert TrainState.from_dict(STANDING.to_dict(), "file") == STANDING


@pytest.mark.parametrize(
    "changes",
    [{"step": "x"}, {"tokens": None}, {"meter": None}, {"meter": {"nats": []}}, {"meter": {"more": 1}}, {"more": 1}],
)
def test_fields_of_another_kind_are_named(changes):
    (name,) = changes
    with pytest.raises(UserError, match=f"file: standing: not where a run stands .*{name}"):
        TrainState.from_dict(STANDING.to_dict() | changes, "file")


@pytest.mark.parametrize("plain", [None, [], {}, "standing"])
def test_something_else_is_refused(plain):
    with pytest.raises(UserError, match="file: standing: not where a run stands"):
        TrainState.from_dict(plain, "file")
