"""Weights in memory pages of 2 MiB: who reads all of them once a token looks up 500 times fewer addresses."""

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

PAGE = 1 << 21
_HUGEPAGE = 14
"""`MADV_HUGEPAGE` of Linux."""


def in_huge_pages(x: Tensor) -> Tensor:
    """A copy of a contiguous tensor in such pages, where Linux has them; one that would fill none stays as it is.

    They are asked for before the memory is written: pages that are there already would be brought together one by one.
    """
    if x.nbytes < 2 * PAGE:
        return x
    room = torch.empty_like(x)
    first, behind = -(-room.data_ptr() // PAGE) * PAGE, (room.data_ptr() + room.nbytes) // PAGE * PAGE
    _madvise()(first, behind - first, _HUGEPAGE)  # what it answers makes no difference
    return room.copy_(x)


@cache
def _madvise() -> Any:
    call = ctypes.CDLL(None).madvise
    call.argtypes, call.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    return call
