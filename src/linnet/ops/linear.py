"""An affine map with a fast path for one row, which is what decoding one stream on a CPU consists of.

Legend: `I` inputs, `O` outputs. One row needs every weight once, so reading the weights is the limit. The library's
product of a row with a matrix reads them at less than half of what the memory gives; the same product as a batch of
`SLICES` smaller ones comes close to it (14 against 32 GB/s on two Zen 4 cores with MKL; see `benchmarks/`).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

HAS_MKL = bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]
SLICES = 16
"""Slices of the outputs; what is left over when they do not divide it is done apart."""


def linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`x W^T + b`, `[..., I] -> [..., O]`."""
    if not _is_one_row(x, weight_OI):
        return F.linear(x, weight_OI, bias_O)
    outputs, inputs = weight_OI.shape
    rows = outputs // SLICES
    whole = rows * SLICES
    out_O = x.new_empty(outputs)
    # The transposed view tells the library which layout the row has; without it, it takes its slow path again.
    column_sI1 = x.reshape(1, inputs).t().expand(SLICES, inputs, 1)
    torch.bmm(weight_OI[:whole].view(SLICES, rows, inputs), column_sI1, out=out_O[:whole].view(SLICES, rows, 1))
    if whole < outputs:
        torch.mv(weight_OI[whole:], x.reshape(inputs), out=out_O[whole:])
    if bias_O is not None:
        out_O += bias_O
    return out_O.view(*x.shape[:-1], outputs)


def _is_one_row(x: Tensor, weight_OI: Tensor) -> bool:
    return (
        x.numel() == weight_OI.shape[1]
        and weight_OI.shape[0] >= SLICES
        and x.dtype == weight_OI.dtype == torch.float32
        and x.device.type == "cpu"
        and weight_OI.is_contiguous()
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and HAS_MKL
    )
