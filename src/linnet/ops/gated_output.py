"""The end of a mixer of decays, `(silu(o) W^T) * gate`, for training: `silu(o)` is made again, not kept.

Legend: `R` rows, `I` inputs, `O` outputs.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.linear import linear_product, matmul
from linnet.ops.support import to_autocast_dtype


def gated_output_reference(o: Tensor, weight_OI: Tensor, gate: Tensor) -> Tensor:
    """The definition: `[..., I]` and `[..., O]` -> `[..., O]`."""
    return F.linear(F.silu(o), weight_OI) * gate


class _GatedOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, o: Tensor, weight_OI: Tensor, gate: Tensor) -> Tensor:
        mapped = linear_product(F.silu(o), weight_OI)
        ctx.save_for_backward(o, weight_OI, gate, mapped)
        return mapped * gate

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        o, weight_OI, gate, mapped = ctx.saved_tensors
        with torch.autocast(upstream.device.type, enabled=False):  # the forward pass was in one precision
            of_mapped = upstream * gate
            of_mapped_RO = of_mapped.flatten(0, -2)
            of_weight_OI = of_mapped_RO.t() @ F.silu(o).flatten(0, -2)
            of_o = torch.ops.aten.silu_backward(matmul(of_mapped_RO, weight_OI).view_as(o), o)
            return of_o, of_weight_OI, upstream * mapped


def gated_output(o: Tensor, weight_OI: Tensor, gate: Tensor) -> Tensor:
    """The same, with less to keep for the backward pass; in one precision, autocast's too."""
    out: Tensor = _GatedOutput.apply(*to_autocast_dtype(o, weight_OI, gate))  # type: ignore[no-untyped-call]
    return out
