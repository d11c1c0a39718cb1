"""What the C library does with memory that was freed, for processes that train.

glibc takes a large block from the system anew each time and gives it back, so that a training step touches pages for
the first time over and over: up to a third of the time of long sequences (experiments/LOG.md).
"""

import ctypes
import os
import platform

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Numbers of glibc's `mallopt`."""

NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, for its next step; whether it does.

    Nothing is changed where the C library is not glibc, or where the user has set it up (`MALLOC_...`,
    `GLIBC_TUNABLES`). It holds for the process from now on, so it is for programs, not for libraries.
    """
    chosen = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if chosen or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, NEVER))
