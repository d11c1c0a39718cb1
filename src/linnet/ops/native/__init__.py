"""Products of rows with weights of 32, 16, 8 and 4 bits, and attention beside them, compiled where they run.

Decoding a stream is reading weights, and PyTorch's products of few bits do not read them as fast as the memory gives.
These do (`benchmarks/quantized_decode.py`). They are C++ and need Linux on an x86 processor with AVX2, and a compiler;
anywhere else PyTorch's serve.
"""

import ctypes
import platform
from functools import cache
from pathlib import Path

import torch

from linnet.core.notes import note
from linnet.ops.native.build import loaded
from linnet.ops.native.program import Function

SOURCES = tuple(
    Path(__file__).with_name(f"{name}.cpp") for name in ("rows", "int4", "attention", "elementwise", "program")
)
HEADERS = tuple(
    Path(__file__).with_name(f"{name}.hpp") for name in ("vectors", "products", "wide", "tiles", "functions")
)

_POINTER, _SIZE, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_ROWS, _RESULT = [_POINTER, _SIZE, _SIZE], [_SIZE, _POINTER, _POINTER, _POINTER, _INT]
ARGUMENTS = {
    "linnet_float32_rows": [*_ROWS, _POINTER, *_RESULT],
    "linnet_bfloat16_rows": [*_ROWS, _POINTER, *_RESULT],
    "linnet_int8_rows": [*_ROWS, _POINTER, _SIZE, _POINTER, *_RESULT],
    "linnet_int4_rows": [*_ROWS, _POINTER, _SIZE, *_RESULT],
    "linnet_float32_matrix": [_POINTER, _SIZE, _POINTER, _INT],
    "linnet_bfloat16_matrix": [_POINTER, _SIZE, _POINTER, _INT],
    "linnet_int8_matrix": [_POINTER, _POINTER, _SIZE, _POINTER, _INT],
    "linnet_int4_matrix": [_POINTER, *[_SIZE] * 4, _POINTER, _INT],
    "linnet_attention_row": [*[_POINTER] * 5, *[_SIZE] * 5, _FLOAT, _POINTER, _INT, _INT],
    "linnet_attention_past": [*[_POINTER] * 3, *[_SIZE] * 6, _POINTER, _FLOAT, _POINTER, _INT],
    "linnet_through_operator": [_POINTER, _POINTER, *[_SIZE] * 3, _POINTER, _INT],
    "linnet_rms_norm": [_POINTER, _POINTER, _SIZE, _SIZE, _FLOAT, _POINTER, _INT],
    "linnet_layer_norm": [_POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _FLOAT, _POINTER, _INT],
    "linnet_turn": [_POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _POINTER, _INT, _INT],
    "linnet_activated": [_POINTER, _SIZE, _INT, _POINTER, _INT],
    "linnet_gated": [_POINTER, _SIZE, _INT, _POINTER, _INT],
    "linnet_scaled": [_POINTER, _FLOAT, _POINTER, _SIZE, _POINTER, _INT],
}
"""Of the functions that tensors are handed to."""


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
    _declare(found)
    wrong = problem(found)
    if wrong is not None:
        note(f"{SOURCES[0].name} does not serve on this processor, PyTorch's products do: {wrong}")
        return None
    return found


def _declare(found: ctypes.CDLL) -> None:
    """Types of arguments and results; functions of `ARGUMENTS` can be written down (`ops.native.program`)."""
    found.linnet_place.argtypes, found.linnet_place.restype = [ctypes.c_char_p], _SIZE
    found.linnet_most_int4_rows.argtypes, found.linnet_most_int4_rows.restype = [], _SIZE
    found.linnet_run.argtypes, found.linnet_run.restype = [_POINTER, _SIZE, _SIZE, _SIZE, _INT], None
    for name, arguments in ARGUMENTS.items():
        call = getattr(found, name)
        call.argtypes, call.restype = arguments, None
        setattr(found, name, Function(call, found.linnet_place(name.encode())))
