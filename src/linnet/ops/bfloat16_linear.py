"""A linear map with weights of bfloat16, laid out as oneDNN reads them best.

For a few rows the library's product of a plain matrix takes one and a half times as long, as it goes through the matrix
in another order; no number of rows is slower. Legend: `I` inputs, `O` outputs.
"""

import torch
from torch import Tensor


def can_pack(device: torch.device) -> bool:
    """Whether there is such a layout: on a CPU that oneDNN multiplies bfloat16 on."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(weight_OI: Tensor) -> Tensor:
    """An opaque tensor of the same numbers, bfloat16; where `can_pack`. `to_dense` gives the plain matrix again."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach().to(torch.bfloat16))
    return packed


def packed_linear(x: Tensor, packed: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`x W^T + b` in bfloat16, `[..., I] -> [..., O]`, without gradients."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias_O, "none", [], "")
    return out
