import os
import subprocess
import sys

import pytest

from linnet.core.launch import (
    NotDistributedError,
    exit_process,
    is_distributed,
    is_rank0,
    quiet_torch_distributed,
    refuse_distributed,
)

TORCHRUN_VARIABLES = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.fixture
def told(monkeypatch):
    """`told(**changes)`: what torchrun says; None: it does not say it."""

    def tell(**changes):
        for name, value in {**TORCHRUN_VARIABLES, **changes}.items():
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
        monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)

    return tell


def test_one_of_several_is_told_by_all_of_the_variables(told):
    told()
    assert is_distributed() and not is_rank0()
    told(RANK="0")
    assert is_distributed() and is_rank0()


@pytest.mark.parametrize("changes", [{"WORLD_SIZE": "1"}, {"WORLD_SIZE": "two"}, {"WORLD_SIZE": ""}, {"RANK": None}])
def test_otherwise_it_is_alone(told, changes):
    """As on a cluster that sets some of them for its own ends."""
    told(**changes)
    assert not is_distributed() and is_rank0()
    refuse_distributed("demo")
    quiet_torch_distributed()
    assert "TORCH_CPP_LOG_LEVEL" not in os.environ
    exit_process(3)


def test_what_is_made_for_one_process_says_so(told):
    told()
    with pytest.raises(NotDistributedError, match=r"^demo: runs in one process, not in 2; leave torchrun out$"):
        refuse_distributed("demo")


def test_pytorch_keeps_quiet_unless_the_user_wants_to_hear(told, monkeypatch):
    told()
    quiet_torch_distributed()
    assert os.environ["TORCH_CPP_LOG_LEVEL"] == "ERROR"
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "INFO")
    quiet_torch_distributed()
    assert os.environ["TORCH_CPP_LOG_LEVEL"] == "INFO"


def test_one_of_several_ends_at_once_and_loses_nothing_of_what_it_said():
    """A thread that waits would keep the process."""
    program = (
        "import threading; from linnet.core.launch import exit_process;"
        "threading.Thread(target=threading.Event().wait).start(); print('said', end=''); exit_process(7)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **TORCHRUN_VARIABLES},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (7, "said")
