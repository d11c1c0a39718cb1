"""Whether what runs is being made a graph of, to be exported: some forms are for graphs alone."""

import torch
from torch import Tensor


def is_exporting() -> bool:
    """`torch.compiler.is_exporting`, which in PyTorch 2.11 is true of all that is compiled as well; here it is not.

    Exports trace without the compiler (`strict=False`).
    """
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


def is_traced_or_differentiated(x: Tensor) -> bool:
    """Whether somebody wants gradients or a graph of what becomes of it: then compiled functions do not serve."""
    traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    graphed = traced or is_exporting() or torch.compiler.is_compiling() or type(x) is not Tensor
    return graphed or (torch.is_grad_enabled() and x.requires_grad)
