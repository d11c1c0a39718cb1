"""An affine map with a fast path for one row, which is what decoding one stream on a CPU consists of.

Legend: `I` inputs, `O` outputs. One row needs every weight once, so reading the weights is the limit. MKL, the library
behind PyTorch's products, reads them as fast as the memory gives on Intel's processors and at less than half of it on
others; there the same product as a batch of `SLICES` smaller ones comes close (32 GB/s instead of 14 on two Zen 4
cores). On Intel's processors the slices take twice as long as the product.
"""

import torch
from torch import Tensor

from linnet.ops.processor import HAS_MKL, MKL_IS_FAST
from linnet.ops.products import by_onednn, linear_product, with_gradients

SLICES = 16
"""Slices of the outputs; what is left over when they do not divide it is done apart."""

SLICES_ARE_FASTER = HAS_MKL and not MKL_IS_FAST
"""Whether slices are faster here."""


def linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`x W^T + b`, `[..., I] -> [..., O]`."""
    if SLICES_ARE_FASTER and _is_one_row(x, weight_OI):
        return sliced_linear(x, weight_OI, bias_O)
    if torch.is_grad_enabled() and by_onednn(x, weight_OI):
        return with_gradients(x, weight_OI, bias_O)
    return linear_product(x, weight_OI, bias_O)


def sliced_linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`linear` of one row in float32, in slices; without gradients. `O` is at least `SLICES`."""
    outputs, inputs = weight_OI.shape
    rows = outputs // SLICES
    whole = rows * SLICES
    out_O = x.new_empty(outputs)
    # The transposed view tells the library which layout the row has; without it, it takes its slow path again.
    column_sI1 = x.reshape(1, inputs).t().expand(SLICES, inputs, 1)
    torch.bmm(weight_OI[:whole].view(SLICES, rows, inputs), column_sI1, out=out_O[:whole].view(SLICES, rows, 1))
    if whole < outputs:
        torch.mm(weight_OI[whole:], x.reshape(inputs, 1), out=out_O[whole:, None])
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
    )
