"""An operation of which its inputs alone are kept: backward makes it again, and what lies within is gone in between.

As checkpointing does for parts of a model (Chen et al., 2016, arXiv 1604.06174), for one function of tensors.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable


@_disable_dynamo  # `torch.compiler.disable` imports the whole compiler, a second, wherever this file is read
def recompute(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`function(*inputs)`, a tensor; differentiable once."""
    out: Tensor = _Remade.apply(function, *inputs)  # type: ignore[no-untyped-call]
    return out


class _Remade(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        with torch.enable_grad(), torch.autocast(upstream.device.type, enabled=False):
            out = ctx.function(*inputs)
        return None, *torch.autograd.grad(out, inputs, upstream)
