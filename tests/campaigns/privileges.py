"""A child that is root may read and write everything; as anybody else it may not."""

import ctypes
import os

OVERRIDE_ACCESS, OVERRIDE_READING, OWNER = 1, 2, 3
VERSION_3 = 0x20080522


def without_privileges() -> None:
    """Let file permissions hold in this process for ever, also where it is root."""
    if os.geteuid() != 0:
        return
    library = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    if library.capget(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    for place in (0, 1, 2):
        data[place] &= ~(1 << OVERRIDE_ACCESS | 1 << OVERRIDE_READING)
    if library.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")
