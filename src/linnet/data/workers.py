"""Several processes, or a thread, that work on batches, with results in order.

The processes end with the one that started them, however that ends, and leave Ctrl-C to it.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_BATCH_TEXTS, _BATCH_CHARACTERS = 512, 1 << 20
_PROCESSES_FROM_BYTES = 16 << 20
"""Of less text the start of processes takes longer than the work."""

_LAST_S = 10.0
"""Seconds for which the end of a process is waited for; a system that is out of memory takes its time."""


def default_workers(total_bytes: int) -> int:
    """As many processes as processors that may be used; one for little text."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return processors if total_bytes >= _PROCESSES_FROM_BYTES else 1


def batched_texts(texts: Iterable[T], length: Callable[[T], int] = len) -> Iterator[list[T]]:  # type: ignore[assignment]
    """Lists of neighboring texts, of limited number and length.

    length: the characters of one; needed where `texts` are rows that hold a text.
    """
    batch, characters = list[T](), 0
    for text in texts:
        batch.append(text)
        characters += length(text)
        if len(batch) == _BATCH_TEXTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def computed_ahead(function: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[T, R]]:
    """Each item with the function's result; while the caller works on one, a thread computes that of the next.

    This saves time where the function leaves Python, as encoding by a library does. At most two results are in memory.
    """
    pool = ThreadPoolExecutor(1)
    try:
        before: tuple[T, Future[R]] | None = None
        for item in items:
            running = item, pool.submit(function, item)
            if before is not None:
                yield before[0], before[1].result()
            before = running
        if before is not None:
            yield before[0], before[1].result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class ReadAhead(Generic[T, R]):
    """Results of a function, of which a thread computes the one that was announced while the caller works.

    The results are those of `function(item)`: what is computed ahead changes only when. The function is called by one
    thread, for one item after the other, so it may keep what it needs again.
    """

    def __init__(self, function: Callable[[T], R]) -> None:
        self._function, self._pool = function, ThreadPoolExecutor(1, "read ahead")
        self._ahead: tuple[T, Future[R]] | None = None

    def take(self, item: T, following: T | None = None) -> R:
        """The result for an item; from now on the thread computes that of `following`, unless it is None.

        An error of the function is raised here, when its result is taken, and never for an item that is not.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == item:
            running = ahead[1]
        else:
            if ahead is not None:
                ahead[1].cancel()
            running = self._pool.submit(self._function, item)
        result = running.result()
        if following is not None:
            self._ahead = following, self._pool.submit(self._function, following)
        return result

    def close(self) -> None:
        """End the thread, after the result that it is computing."""
        self._ahead = None
        self._pool.shutdown(wait=True, cancel_futures=True)


def map_in_order(function: Callable[[Any], Any], batches: Iterable[Any], workers: int) -> Iterator[Any]:
    """Apply a function to batches in several processes; the results come in order, and few batches are in memory.

    `ChildProcessError` names a process that the system ended, as it does where memory runs out.
    """
    if workers == 1:
        yield from map(function, batches)
        return
    context = multiprocessing.get_context("spawn")
    running: deque[Future[Any]] = deque()
    others, started = set(multiprocessing.active_children()), set[BaseProcess]()
    with ProcessPoolExecutor(workers, context, initializer=_begin_worker, initargs=(function,)) as pool:
        try:
            for batch in batches:
                with _interrupt_held_back():  # the first one starts the processes
                    running.append(pool.submit(_run_in_worker, batch))
                if len(started) < workers:
                    started |= set(multiprocessing.active_children()) - others
                if len(running) > 2 * workers:
                    yield _result(running.popleft(), started)
            while running:
                yield _result(running.popleft(), started)
        except BrokenProcessPool:
            lost = _lost_process(started)
            for process in set(multiprocessing.active_children()) - others:
                process.kill()  # one that was starting meanwhile, which the pool would wait for
            raise ChildProcessError(f"{lost} from outside; fewer --workers need less memory") from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _result(future: Future[Any], started: Iterable[BaseProcess]) -> Any:
    """The result of a task; `BrokenProcessPool` if a process was ended.

    The pool of Python 3.11 watches a process only from the task on that follows the one for which it was started.
    """
    while not futures.wait([future], timeout=1.0).done:
        if any((process.exitcode or 0) < 0 for process in started):
            raise BrokenProcessPool
    return future.result()


def _lost_process(started: Iterable[BaseProcess]) -> str:
    """Which process was ended first: the pool ends all others by SIGTERM then.

    The pool's thread may have asked the system for the exit code, which is there once and not known here at once.
    """
    last_s = time.monotonic() + _LAST_S
    while time.monotonic() < last_s:
        codes = {process.pid: process.exitcode for process in started}
        for pid, code in codes.items():
            if code is not None and code < 0 and -code != signal.SIGTERM:
                return f"worker process {pid} was ended by {signal.Signals(-code).name}"
        if None not in codes.values():
            break
        time.sleep(0.01)
    return "a worker process was ended"


@contextmanager
def _interrupt_held_back() -> Iterator[None]:
    """Let processes that start in the block leave Ctrl-C to this one, which gets it after the block."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows it reaches them while they start
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_function: Callable[[Any], Any] | None = None
"""In a worker: what it applies to each batch."""


def _begin_worker(function: Callable[[Any], Any]) -> None:
    """Leave Ctrl-C to the first process, and end when that has ended, however it did."""
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _run_in_worker(batch: Any) -> Any:
    assert _function is not None
    return _function(batch)
