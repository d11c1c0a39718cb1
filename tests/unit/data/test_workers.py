"""Processes that work on batches end when they should, and give results in order."""

import signal
import subprocess
import sys
import threading
import time
from functools import partial

import psutil
import pytest

from linnet.core.errors import UserError
from linnet.data.workers import ReadAhead, computed_ahead, map_in_order


def test_results_come_in_order_and_batches_are_read_as_they_are_needed():
    read = []

    def batches():
        for number in range(40):
            read.append(number)
            yield [number] * (number + 1)

    lengths = map_in_order(len, batches(), workers=2)
    assert next(lengths) == 1
    assert len(read) <= 6
    assert list(lengths) == list(range(2, 41))


def test_the_next_result_is_computed_while_the_caller_works():
    begun = {number: threading.Event() for number in range(4)}

    def square(number):
        begun[number].set()
        return number * number

    results = []
    for number, result in computed_ahead(square, iter(range(4))):
        if number < 3:
            assert begun[number + 1].wait(10)
        results.append((number, result))
    assert results == [(0, 0), (1, 1), (2, 4), (3, 9)]
    assert list(computed_ahead(square, [])) == []


def test_errors_of_the_thread_reach_the_caller_and_no_further_item_is_computed():
    computed = []

    def fail_at_two(number):
        computed.append(number)
        if number == 2:
            raise UserError("two")
        return number

    with pytest.raises(UserError, match="two"):
        list(computed_ahead(fail_at_two, iter(range(9))))
    assert computed[:3] == [0, 1, 2] and len(computed) <= 4
    threads, stopped = threading.active_count(), computed_ahead(fail_at_two, iter([5, 6, 7, 8, 9]))
    assert next(stopped) == (5, 5)
    stopped.close()
    assert 9 not in computed and threading.active_count() == threads


def test_what_was_announced_is_computed_while_the_caller_works():
    begun = {number: threading.Event() for number in range(5)}

    def square(number):
        begun[number].set()
        return number * number

    ahead = ReadAhead(square)
    assert ahead.take(1, 2) == 1
    assert begun[2].wait(10) and not begun[3].is_set()
    assert ahead.take(2) == 4
    assert ahead.take(4, 3) == 16
    assert ahead.take(0) == 0, "another one than was announced"
    ahead.close()


def test_an_error_is_raised_for_the_item_that_needs_the_result_alone():
    asked = []

    def fail_at_two(number):
        asked.append(number)
        if number == 2:
            raise UserError("two")
        return number

    threads, ahead = threading.active_count(), ReadAhead(fail_at_two)
    assert ahead.take(1, 2) == 1
    assert ahead.take(3, 2) == 3, "nobody takes the failed one"
    with pytest.raises(UserError, match="two"):
        ahead.take(2, 4)
    assert ahead.take(5, 2) == 5
    ahead.close()
    assert 4 not in asked and threading.active_count() == threads


def has_ended(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_workers_end_with_the_process_that_started_them():
    program = (
        "import multiprocessing, os, signal\n"
        "from linnet.data.workers import map_in_order\n"
        "if __name__ == '__main__':\n"
        "    work = map_in_order(len, [['a text']] * 9, 2)\n"
        "    next(work)\n"
        "    print(*[child.pid for child in multiprocessing.active_children()], flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, stdout=subprocess.PIPE, text=True, timeout=60)
    workers = [int(number) for number in done.stdout.split()]
    assert len(workers) == 2
    end_s = time.monotonic() + 60
    while not all(map(has_ended, workers)) and time.monotonic() < end_s:
        time.sleep(0.02)
    assert all(map(has_ended, workers))


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="Windows has no masks of signals")
def test_workers_leave_the_interrupt_to_the_process_that_started_them():
    """Also before their first line of Python, where each would print a traceback."""
    blocked = partial(signal.pthread_sigmask, signal.SIG_BLOCK)
    assert signal.SIGINT in next(map_in_order(blocked, [[]], workers=2))
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_worker_that_is_killed_ends_the_run_and_is_named():
    with pytest.raises(ChildProcessError, match=r"^worker process \d+ was ended by SIGKILL from outside"):
        list(map_in_order(signal.raise_signal, [signal.SIGKILL] * 2, workers=2))


MISSED = """
import signal, sys, time
from pathlib import Path
from linnet.data.workers import map_in_order

begun, finished = map(Path, sys.argv[1:])

def work(batch):
    if batch == "stays":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        begun.touch()
        time.sleep(120)
        finished.touch()
    while not begun.exists():
        time.sleep(0.01)
    signal.raise_signal(signal.SIGKILL)

if __name__ == "__main__":
    try:
        list(map_in_order(work, ["stays", "dies"], workers=2))
    except ChildProcessError as error:
        print(error)
"""


def test_a_worker_that_the_pool_does_not_end_is_not_waited_for(tmp_path):
    """One that starts while another is killed is missed by the pool, like this one that takes no SIGTERM."""
    (tmp_path / "program.py").write_text(MISSED)
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "begun"), str(tmp_path / "finished")]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    assert "was ended by SIGKILL" in done.stdout
    assert not (tmp_path / "finished").exists()
