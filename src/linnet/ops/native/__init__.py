"""Products of a few rows with weights of 32, 16, 8 and 4 bits, and attention beside them, compiled where they run.

Decoding a stream is reading weights, and PyTorch's products of few bits do not read them as fast as the memory gives.
These do (`benchmarks/quantised_decode.py`). They are C++ and need Linux on an x86 processor with AVX2, and a compiler;
anywhere else PyTorch's serve.
"""

import ctypes
import platform
from functools import cache
from pathlib import Path

import torch

from linnet.core.notes import note
from linnet.ops.native.build import loaded

SOURCES = tuple(Path(__file__).with_name(f"{name}.cpp") for name in ("rows", "attention", "elementwise"))
HEADERS = (Path(__file__).with_name("vectors.hpp"),)

MOST_ROWS = 16
"""From more rows on products of many rows are faster."""

_POINTER, _SIZE, _THREADS = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_ROWS, _RESULT = [_POINTER, _SIZE, _SIZE], [_SIZE, _POINTER, _POINTER, _POINTER, _THREADS]
ARGUMENTS = {
    "linnet_float32_rows": [*_ROWS, _POINTER, *_RESULT],
    "linnet_bfloat16_rows": [*_ROWS, _POINTER, *_RESULT],
    "linnet_int8_rows": [*_ROWS, _POINTER, _SIZE, _POINTER, *_RESULT],
    "linnet_int4_rows": [*_ROWS, _POINTER, _SIZE, *_RESULT],
    "linnet_int4_matrix": [_POINTER, *[_SIZE] * 4, _POINTER, _THREADS],
    "linnet_attention_row": [*[_POINTER] * 5, *[_SIZE] * 5, ctypes.c_float, _POINTER, ctypes.c_int, _THREADS],
    "linnet_rms_norm": [_POINTER, _POINTER, _SIZE, ctypes.c_float, _POINTER],
    "linnet_turn": [_POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _POINTER, ctypes.c_int],
    "linnet_gated_silu": [_POINTER, _SIZE, _POINTER],
}


def library(device: torch.device) -> ctypes.CDLL | None:
    """The functions of `SOURCES` where weights on that device are theirs; None: PyTorch's products serve."""
    return _proved() if device.type == "cpu" else None


@cache
def _proved() -> ctypes.CDLL | None:
    """Compiled, and held to plain PyTorch once."""
    from linnet.ops.native.trial import problem

    linux_on_x86 = platform.system() == "Linux" and platform.machine() == "x86_64"
    if not linux_on_x86 or torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return None
    found = loaded(SOURCES, HEADERS)
    if found is None:
        return None
    for name, arguments in ARGUMENTS.items():
        function = getattr(found, name)
        function.argtypes, function.restype = arguments, None
    wrong = problem(found)
    if wrong is not None:
        note(f"{SOURCES[0].name} does not serve on this processor, PyTorch's products do: {wrong}")
        return None
    return found
