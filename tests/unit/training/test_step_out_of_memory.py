"""A step that runs out of memory names the batch that fits."""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.training.checkpoint import checkpoint_steps
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.run import train_run
from linnet.training.step import REFINEMENTS, largest_that_fits

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module", autouse=True)
def _earlier_tests_are_not_searched() -> None:
    """Each trial collects garbage; what thousands of tests before made takes it half a second to look through."""
    gc.freeze()


@given(st.integers(1, 4096), st.integers(0, 4095))
def test_the_search_finds_what_fits_in_few_trials(failed, room):
    room, tried = min(room, failed - 1), []

    def fits(size):
        tried.append(size)
        return size <= room

    found = largest_that_fits(fits, failed)
    assert found <= room and (found > 0 or room == 0)
    assert room - found <= max(0, failed // 2 // 2**REFINEMENTS, room // 8)
    assert len(tried) == len(set(tried)) <= failed.bit_length() + REFINEMENTS


def _limited(room, error, after=0):
    """The objective on a device with room for so many sequences; it has more for the first steps."""
    calls = []

    def objective(decoder, batch):
        calls.append(len(batch))
        loss = next_token_loss(decoder, batch)
        if len(batch) > room and len(calls) > after:
            raise error
        return loss

    return objective, calls


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_the_error_names_the_batch_that_fits(tmp_path, tiny_run, error):
    objective, calls = _limited(5, error)
    with pytest.raises(UserError) as refused:
        train_run(tiny_run(batch_size=16, gradient_accumulation=2), tmp_path, objective=objective)
    assert str(refused.value) == (
        "training.batch_size: 16: out of memory in step 1 (saved: none yet); expected at most 5, which was measured"
        " to fit (accumulate 4 times as many batches for as large a step)"
    )
    assert calls == [16, 8, 4, 4, 6, 5, 5]


def test_an_error_later_in_a_run_names_the_last_checkpoint(tmp_path, tiny_run):
    run = tiny_run(batch_size=4)
    objective, _ = _limited(1, MemoryError(), after=5)
    with pytest.raises(UserError, match=r"in step 6 \(saved: step 4\); expected at most 1, "):
        train_run(run, tmp_path / "run", objective=objective)
    assert checkpoint_steps(tmp_path / "run" / "checkpoints")[-1] == 4
    train_run(run, tmp_path / "run")
    train_run(run, tmp_path / "straight")
    ends = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("run", "straight")]
    assert ends[0] == ends[1]


def test_an_error_says_if_not_one_sequence_fits(tmp_path, tiny_run):
    with pytest.raises(UserError, match="not even one sequence fits"):
        train_run(tiny_run(batch_size=4), tmp_path, objective=_limited(0, MemoryError())[0])


def test_other_errors_are_their_own(tmp_path, tiny_run):
    with pytest.raises(RuntimeError, match="a bug"):
        train_run(tiny_run(), tmp_path, objective=_limited(0, RuntimeError("a bug"))[0])
