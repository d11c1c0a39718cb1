"""Native products of rows with weights of 32, 16, 8 and 4 bits, and the operations between them, compiled on first use.

Decoding a stream reads all weights for each token, and PyTorch's products with weights of few bits do not reach the
memory bandwidth; these do (`benchmarks/quantized_decode.py`). The C++ code is compiled on Linux, for x86 processors
with AVX2 and for 64-bit ARM. Elsewhere, and without a compiler, PyTorch computes, and a note says so once.
"""

import ctypes
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from linnet.core.errors import note
from linnet.ops.native.build import load_library
from linnet.ops.native.program import Function
from linnet.ops.support import is_exporting

SOURCES = tuple(
    Path(__file__).with_name(f"{name}.cpp")
    for name in ("rows", "int4", "attention", "elementwise", "program", "custom_ops")
)
HEADERS = tuple(
    Path(__file__).with_name(f"{name}.hpp")
    for name in ("portable", "vectors", "products", "wide", "tiles", "functions")
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
    "linnet_attention_past": [*[_POINTER] * 3, *[_SIZE] * 6, _POINTER, _FLOAT, _POINTER, _INT, _INT],
    "linnet_apply_operator": [_POINTER, _POINTER, *[_SIZE] * 3, _POINTER, _INT],
    "linnet_rms_norm": [_POINTER, _POINTER, _SIZE, _SIZE, _FLOAT, _POINTER, _INT],
    "linnet_layer_norm": [_POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _FLOAT, _POINTER, _INT],
    "linnet_rotate": [_POINTER, _SIZE, _SIZE, _SIZE, _POINTER, _POINTER, _INT, _INT],
    "linnet_activation": [_POINTER, _SIZE, _INT, _POINTER, _INT],
    "linnet_glu": [_POINTER, _SIZE, _INT, _POINTER, _INT],
    "linnet_scale_add": [_POINTER, _FLOAT, _POINTER, _SIZE, _POINTER, _INT],
}
"""Argument types of the functions that take tensors; their calls can be recorded (`ops.native.program`)."""


class _Graphs(threading.local):
    """Of each thread. use_custom_ops: whether captured graphs contain native operators; use_row_ops: also those of
    native steps.
    """

    use_custom_ops: bool = False
    use_row_ops: bool = False


_graphs = _Graphs()


@contextmanager
def custom_ops_in_graphs() -> Iterator[None]:
    """Capture native operators (`ops.native.custom_ops`) within the block, for a package of this processor."""
    before, _graphs.use_custom_ops = _graphs.use_custom_ops, True
    try:
        yield
    finally:
        _graphs.use_custom_ops = before


def captures_custom_ops() -> bool:
    """True while a graph is captured that may contain native operators."""
    return _graphs.use_custom_ops and is_exporting()


@contextmanager
def row_ops_in_graphs() -> Iterator[None]:
    """The same, with the operators that `inference.native_lowering` maps to native functions of one row."""
    before, _graphs.use_row_ops = _graphs.use_row_ops, True
    try:
        with custom_ops_in_graphs():
            yield
    finally:
        _graphs.use_row_ops = before


def captures_row_ops() -> bool:
    """True while a step of one row is traced for native functions."""
    return _graphs.use_row_ops and is_exporting()


def library(device: torch.device) -> ctypes.CDLL | None:
    """The native library for weights on that device; None where PyTorch's products are used."""
    return _tested_library() if device.type == "cpu" else None


@cache
def _tested_library() -> ctypes.CDLL | None:
    """The compiled library, after its results have been compared once with plain PyTorch."""
    from linnet.ops.native.trial import problem

    if not _is_supported(platform.system(), platform.machine(), torch.backends.cpu.get_cpu_capability()):
        place = f"{platform.system()} on {platform.machine()}"
        note(f"the native decoding code needs Linux on x86 with AVX2 or on 64-bit ARM, not {place}: PyTorch computes")
        return None
    found = load_library(SOURCES, HEADERS)
    if found is None:
        return None
    found.linnet_function_index.argtypes, found.linnet_function_index.restype = [ctypes.c_char_p], _SIZE
    found.linnet_max_int4_rows.argtypes, found.linnet_max_int4_rows.restype = [], _SIZE
    found.linnet_run.argtypes, found.linnet_run.restype = [_POINTER, _SIZE, _SIZE, _SIZE, _INT], None
    for name, arguments in ARGUMENTS.items():  # these become recordable
        call = getattr(found, name)
        call.argtypes, call.restype = arguments, None
        setattr(found, name, Function(call, found.linnet_function_index(name.encode())))
    wrong = problem(found)
    if wrong is not None:
        note(f"the native decoding code is wrong on this processor, PyTorch's products are used: {wrong}")
        return None
    return found


def _is_supported(system: str, machine: str, capability: str) -> bool:
    """True if the code is compiled there; capability: PyTorch's name of the vector instructions of x86."""
    on_x86 = machine == "x86_64" and capability in ("AVX2", "AVX512")
    return system == "Linux" and (on_x86 or machine in ("aarch64", "arm64"))
