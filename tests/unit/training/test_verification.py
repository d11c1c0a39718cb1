"""A run that is killed and resumed, compared with one that was not."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.cli.main import main
from linnet.core.arrays import read_tensors, write_tensors
from linnet.core.checksum import write_file_checksums
from linnet.core.errors import UserError
from linnet.model.folder import CONFIG, TOKENIZER, WEIGHTS
from linnet.training import verification
from linnet.training.checkpoint import OPTIMIZER, SUMMARY, checkpoint_path, checkpoint_steps
from linnet.training.machine import Precision
from linnet.training.run_folder import RunFolder
from linnet.training.verification import Compared, Verification, _differing, verify_resume

pytestmark = pytest.mark.usefixtures("warm_python")


def test_a_killed_and_resumed_run_equals_an_uninterrupted_one(tmp_path, tiny_run):
    run = tiny_run("ted", steps=200, gradient_accumulation=2, guard={"window": 16})
    found = verify_resume(run, tmp_path / "run", steps=12, seed=0)
    assert found.same and found.steps == 12 and 6 < found.killed_at < 12
    assert found.resumed_from["truncated"] < found.resumed_from["killed"] <= found.killed_at
    assert "damaged checkpoint skipped" in found.refused and WEIGHTS in found.refused
    assert {each.what for each in found.compared} >= {"weights", "moments", "lines of figures", "state"}
    assert min(each.count for each in found.compared) > 0
    assert list(tmp_path.iterdir()) == []
    assert json.loads(json.dumps(found.to_dict()))["same"]


def test_sharded_runs_are_verified_in_one_process(tmp_path, tiny_run, caplog):
    one = verification._in_one_process(tiny_run(parallel={"shard": 2}))
    assert one == tiny_run() and verification._in_one_process(one) is one
    assert "note: verified in one process, with training.parallel.shard 1 instead of 2" in caplog.text


def test_a_measured_precision_is_measured_once(tmp_path, tiny_run):
    run = tiny_run(steps=200)
    assert verification._with_precision(run, tmp_path).training.precision == "auto"
    RunFolder(tmp_path).write_precision(Precision(name="bfloat16", reason="a test", measured=True))
    assert verification._with_precision(run, tmp_path).training.precision == "bfloat16"
    assert verification._with_precision(tiny_run(precision="float32"), tmp_path).training.precision == "float32"


@pytest.mark.slow
def test_a_run_that_does_not_resume_equally_is_reported(tmp_path, tiny_run, monkeypatch):
    """In the place of the truncated checkpoint there is one with other weights, and hashes that fit."""

    def alter(out):
        folder = RunFolder(out).checkpoints
        newest = checkpoint_path(folder, checkpoint_steps(folder)[-1])
        weights = {name: tensor + 1e-7 for name, tensor in read_tensors(newest / WEIGHTS).items()}
        write_tensors(newest / WEIGHTS, weights)
        write_file_checksums(newest, (CONFIG, WEIGHTS, TOKENIZER, OPTIMIZER, SUMMARY))

    monkeypatch.setattr(verification, "_truncate_newest", alter)
    found = verify_resume(tiny_run(steps=200), tmp_path / "run", steps=8, seed=1)
    differing = {(each.case, each.what) for each in found.compared if each.differs}
    assert not found.same and ("killed, checkpoint truncated", "weights") in differing
    assert not any(case == "killed" for case, _ in differing)
    assert "refused, the one before it used" in {what for _, what in differing}


@given(st.lists(st.integers(0, 11), unique=True, max_size=5))
def test_single_values_are_counted_by_their_bits(places):
    one = {"a": torch.arange(8, dtype=torch.float32), "b": torch.zeros(2, 2, dtype=torch.bfloat16)}
    other = {name: tensor.clone() for name, tensor in one.items()}
    for place in places:
        name, index = ("a", place) if place < 8 else ("b", place - 8)
        other[name].view(-1)[index] = -0.0 if index == 0 or name == "b" else float("nan")
    assert _differing(one, other) == len(places)


def test_nan_equals_itself_and_missing_tensors_count():
    nan = {"a": torch.tensor([float("nan"), 1.0])}
    assert _differing(nan, {"a": nan["a"].clone()}) == 0
    assert _differing(nan, {}) == 2 and _differing(nan, {"a": torch.zeros(3)}) == 2


def test_an_empty_comparison_is_not_equal():
    assert not Verification(4, 3, {}, "", [Compared("killed", "weights", 0, 0)]).same


def test_a_process_that_fails_is_one_line(tmp_path, tiny_run):
    run = tiny_run(steps=200).model_copy(update={"data": tmp_path / "nothing"})
    with pytest.raises(UserError, match=r"a process of the verification failed: .*nothing"):
        verify_resume(run, tmp_path / "run", steps=8)
    with pytest.raises(UserError, match="expected at least 4"):
        verify_resume(tiny_run(steps=3), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_step_count_without_a_verification_is_refused(tmp_path, capsys):
    assert main(["train", "--out", str(tmp_path), "--verify-steps", "9"]) == 2
    assert "--verify-steps: belongs to --verify-resume" in capsys.readouterr().err
