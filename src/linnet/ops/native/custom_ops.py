"""The native functions as operators of PyTorch, `torch.ops.linnet`: nodes of a graph that is captured for this machine.

A package that AOTInductor compiles calls them directly (`custom_ops.cpp`, after `link`); PyTorch, when it runs the
captured graph itself, calls the same functions through Python. Inputs and results are float32 but for the weights,
keys and values. They have no gradients. Graphs for other machines (ONNX) have PyTorch's operations in their place.

Legend: `R` rows, `I` inputs, `J` inputs padded, `O` outputs, `N` blocks of outputs, `G` groups of inputs, `B` streams,
`M` key-value heads, `P` query heads of each, `S` room for tokens, `K` head width.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from linnet.ops.native import attention, library
from linnet.ops.native.gemv import bfloat16_gemv, float32_gemv, int4_gemv, int8_gemv

C_TYPES = {"Tensor": "AtenTensorHandle", "Tensor?": "AtenTensorHandle*", "int": "int64_t", "float": "double"}
"""The types of arguments in C, by those of a schema."""

PYTORCH_FUNCTIONS = ("get_data_ptr", "get_dtype", "get_size", "get_stride", "empty_strided")
"""What `custom_ops.cpp` calls of PyTorch's stable C interface, without the prefix `aoti_torch_`."""

C_DECLARATIONS: dict[OpOverload, list[str]] = {}
"""The functions of `custom_ops.cpp` by operator, as AOTInductor's option `custom_ops_to_c_shims` takes them."""

_definitions: Any = torch.library.Library("linnet", "DEF")  # type: ignore[no-untyped-call]


def _define(name: str, arguments: str, function: Callable[..., Tensor], empty: Callable[..., Tensor]) -> OpOverload:
    """An operator that `function` computes; empty: from its arguments to a tensor of the shape of its result."""
    _definitions.define(f"{name}({arguments}) -> Tensor")
    _definitions.impl(name, function, "CPU")
    torch.library.register_fake(f"linnet::{name}", empty, lib=_definitions)
    operator: OpOverload = getattr(torch.ops.linnet, name).default
    types = [C_TYPES[argument.split()[0]] for argument in arguments.split(", ")]
    C_DECLARATIONS[operator] = [f"int32_t aoti_torch_cpu_{name}({', '.join(types)}, AtenTensorHandle*)"]
    return operator


def _library() -> ctypes.CDLL:
    found = library(torch.device("cpu"))
    assert found is not None, "graphs have these operators only where the library is"
    return found


float32_linear = _define(
    "linnet_float32_linear",
    "Tensor x_RI, Tensor weight_OI, Tensor? bias_O",
    lambda x_RI, weight_OI, bias_O: float32_gemv(_library(), weight_OI, bias_O)(x_RI),
    lambda x_RI, weight_OI, bias_O: x_RI.new_empty(x_RI.shape[0], weight_OI.shape[0]),
)
"""`x W^T + b`, `[R, I] -> [R, O]`; the weight is contiguous."""

bfloat16_linear = _define(
    "linnet_bfloat16_linear",
    "Tensor x_RI, Tensor weight_OI, Tensor? bias_O",
    lambda x_RI, weight_OI, bias_O: bfloat16_gemv(_library(), weight_OI, bias_O)(x_RI),
    lambda x_RI, weight_OI, bias_O: x_RI.new_empty(x_RI.shape[0], weight_OI.shape[0]),
)
"""The same with a weight in bfloat16."""

int8_linear = _define(
    "linnet_int8_linear",
    "Tensor x_RI, Tensor numbers_OJ, Tensor scale_O, Tensor? bias_O",
    lambda x_RI, numbers_OJ, scale_O, bias_O: int8_gemv(_library(), numbers_OJ, scale_O, x_RI.shape[1], bias_O)(x_RI),
    lambda x_RI, numbers_OJ, scale_O, bias_O: x_RI.new_empty(x_RI.shape[0], numbers_OJ.shape[0]),
)
"""The same with an `ops.int8_linear.Int8Weight`."""

int4_linear = _define(
    "linnet_int4_linear",
    "Tensor x_RI, Tensor blocks_NGb, int group, int outputs, Tensor? bias_O",
    lambda x_RI, blocks_NGb, group, outputs, bias_O: int4_gemv(
        _library(), blocks_NGb, x_RI.shape[1], outputs, group, bias_O
    )(x_RI),
    lambda x_RI, blocks_NGb, group, outputs, bias_O: x_RI.new_empty(x_RI.shape[0], outputs),
)
"""The same with an `ops.int4_linear.BlockedInt4Weight`."""

attention_past = _define(
    "linnet_attention_past",
    "Tensor q_BMPK, Tensor keys_BMSK, Tensor values_BMSK, Tensor last_B, float scale",
    lambda q_BMPK, keys_BMSK, values_BMSK, last_B, scale: attention.attention_past(
        _library(), q_BMPK, keys_BMSK, values_BMSK, scale, last_B + 1
    ),
    lambda q_BMPK, keys_BMSK, values_BMSK, last_B, scale: q_BMPK.new_empty(q_BMPK.shape),
)
"""`softmax(scale q K^T) V` over the keys up to `last_B` of each stream, contiguous `[B, M, P, K]`.

Keys and values are alike, in float32 or bfloat16, with contiguous rows of heads.
"""


def _define_row_op(name: str, arguments: str, function: Callable[..., Tensor]) -> OpOverload:
    """An operator of native steps alone (`inference.native_lowering`): compiled code fuses the parts of `function`."""
    _definitions.define(f"{name}({arguments}) -> Tensor")
    _definitions.impl(name, function, "CPU")
    operator: OpOverload = getattr(torch.ops.linnet, name).default
    return operator


def _rotate(x_BTNK: Tensor, cos: Tensor, sin: Tensor, adjacent: bool) -> Tensor:
    from linnet.ops.rotary import rotate_reference

    return rotate_reference(x_BTNK, (cos, sin), "adjacent" if adjacent else "halves")


rotate = _define_row_op("linnet_rotate", "Tensor x_BTNK, Tensor cos, Tensor sin, bool adjacent", _rotate)
"""`ops.rotary.rotate`."""


def _int8_look_up(numbers_OJ: Tensor, scale_O: Tensor, inputs: int, places: Tensor) -> Tensor:
    from linnet.ops.int8_linear import Int8Weight, gather_rows

    return gather_rows(Int8Weight(numbers_OJ, scale_O, inputs), places)


int8_look_up = _define_row_op(
    "linnet_int8_look_up", "Tensor numbers_OJ, Tensor scale_O, int inputs, Tensor places", _int8_look_up
)
"""Rows of an `ops.int8_linear.Int8Weight`."""


def _int4_look_up(blocks_NGb: Tensor, inputs: int, outputs: int, group: int, places: Tensor) -> Tensor:
    from linnet.ops.int4_linear import BlockedInt4Weight, gather_rows

    return gather_rows(BlockedInt4Weight(blocks_NGb, inputs, outputs, group), places)


int4_look_up = _define_row_op(
    "linnet_int4_look_up", "Tensor blocks_NGb, int inputs, int outputs, int group, Tensor places", _int4_look_up
)
"""Rows of an `ops.int4_linear.BlockedInt4Weight`."""


@cache
def link() -> None:
    """Give packages the functions of the native library, and the library those of PyTorch."""
    found = _library()
    pytorch = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    functions = (getattr(pytorch, f"aoti_torch_{name}") for name in PYTORCH_FUNCTIONS)
    addresses = [ctypes.cast(function, ctypes.c_void_p) for function in functions]
    found.linnet_set_pytorch.restype = None
    dtypes = [getattr(pytorch, f"aoti_torch_dtype_{name}")() for name in ("float32", "bfloat16")]
    found.linnet_set_pytorch(*addresses, *dtypes, pytorch.aoti_torch_device_type_cpu())
    ctypes.CDLL(found._name, mode=ctypes.RTLD_GLOBAL)
