"""Linear maps of a row, as products straight with the weights.

Legend: `I` inputs, `O` outputs.
"""

import ctypes
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from linnet.nn.packed_linear import Bfloat16Linear, PackedLinear, QuantizedEmbedding, QuantizedLinear
from linnet.ops.linear import SLICES_ARE_FASTER, linear
from linnet.ops.native import library
from linnet.ops.native.gemv import Gemv, Lookup, bfloat16_lookup, float32_gemv, float32_lookup


class RowMap(NamedTuple):
    """`x W^T + b` of a row, which is float32, and so is the result. Weights are those of when it was made.

    of: `[1, I] -> [1, O]`. added: a row `[1, O]` plus what it makes of `[1, I]`.
    """

    of: Callable[[Tensor], Tensor]
    added: Callable[[Tensor, Tensor], Tensor]


def gemv(weight_OI: Tensor, bias_O: Tensor | None) -> RowMap:
    """The map with these weights, float32: compiled (`ops.native`); else slices of the product (`ops.linear`), or one
    whose transposed layout is made once.
    """
    if (compiled := _compiled_for(weight_OI)) is not None:
        few = float32_gemv(compiled, weight_OI, bias_O)
        return RowMap(few, _added_by(few))
    if SLICES_ARE_FASTER:
        return _called(lambda x_1I: linear(x_1I, weight_OI, bias_O))
    weight_IO = weight_OI.t()
    if bias_O is None:
        return RowMap(lambda x_1I: torch.mm(x_1I, weight_IO), lambda sum_1O, x_1I: torch.addmm(sum_1O, x_1I, weight_IO))
    return RowMap(
        lambda x_1I: torch.addmm(bias_O, x_1I, weight_IO),
        lambda sum_1O, x_1I: torch.addmm(sum_1O + bias_O, x_1I, weight_IO),
    )


def _called(call: Callable[[Tensor], Tensor]) -> RowMap:
    return RowMap(call, lambda sum_1O, x_1I: call(x_1I).add_(sum_1O))


def gemv_of(module: nn.Module) -> RowMap | None:
    """The map of a linear layer; None for anything else."""
    if isinstance(module, PackedLinear) and module.few is not None:
        return RowMap(module.few, _added_by(module.few))
    if isinstance(module, Bfloat16Linear) or (isinstance(module, nn.Linear) and module.weight.dtype == torch.bfloat16):
        return _in_bfloat16(module)
    if isinstance(module, nn.Linear):
        return gemv(module.weight, module.bias)
    if isinstance(module, QuantizedLinear):
        return _rounded(module)
    return _called(module) if isinstance(module, PackedLinear) else None


def native_library_of(module: nn.Module) -> ctypes.CDLL | None:
    """The functions of `ops.native` where this map's products are among them: what lies beside them may be, too."""
    if isinstance(module, nn.Linear):
        return _compiled_for(module.weight)
    return library(module.device) if isinstance(module, PackedLinear) and module.few is not None else None


def token_lookup_of(table: nn.Embedding | QuantizedEmbedding) -> Lookup | None:
    """A token's vector `[1, E]`, float32, by functions of `ops.native`; None where they do not serve."""
    if isinstance(table, QuantizedEmbedding):
        return table.table.look_up
    compiled = library(table.weight.device)
    if compiled is None or table.weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    look_up = float32_lookup if table.weight.dtype == torch.float32 else bfloat16_lookup
    return look_up(compiled, table.weight)


def _compiled_for(weight_OI: Tensor) -> ctypes.CDLL | None:
    return library(weight_OI.device) if weight_OI.dtype == torch.float32 else None


def _added_by(few: Gemv) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda sum_1O, x_1I: few(x_1I, sum_1O)


def _rounded(module: QuantizedLinear) -> RowMap:
    """A product in bfloat16 is added to the row as it is."""
    bias_O, product = module.bias, module.row
    if bias_O is None:
        return RowMap(lambda x_1I: product(x_1I).float(), lambda sum_1O, x_1I: sum_1O + product(x_1I))
    return RowMap(lambda x_1I: bias_O + product(x_1I), lambda sum_1O, x_1I: (sum_1O + bias_O).add_(product(x_1I)))


def _in_bfloat16(product: nn.Module) -> RowMap:
    """Rounded for the product alone; what it is added to stays float32."""
    return RowMap(lambda x_1I: product(x_1I.bfloat16()).float(), lambda sum_1O, x_1I: sum_1O + product(x_1I.bfloat16()))
