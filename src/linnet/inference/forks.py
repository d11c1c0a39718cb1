"""Decoding in a process that was forked off one that has decoded."""

import os
import sys
from functools import cache, partial

import torch


@cache
def one_thread_in_forks() -> None:
    """Processes that are forked off this one from here on compute with one thread.

    PyTorch on Linux, and with it the compiled products, takes the threads of GCC's OpenMP. Those that have worked are
    still written down as waiting in a forked process, where there are none of them: whoever asks for two waits forever.
    """
    if sys.platform == "linux":
        os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))
