"""A fast form of a small operation against its definition, with all gradients."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def double(*shape: int) -> Tensor:
    """A random tensor in float64 that requires a gradient."""
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def assert_same_with_gradients(fast: Tensor, slow: Tensor, inputs: tuple[Tensor, ...]) -> None:
    """Equal outputs, and equal gradients of every input for a random upstream gradient."""
    torch.testing.assert_close(fast, slow)
    upstream = torch.randn_like(fast)
    for actual, expected in zip(
        torch.autograd.grad(fast, inputs, upstream), torch.autograd.grad(slow, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(actual, expected)


def with_gradients(form: Callable[..., tuple[Tensor, Tensor]], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Outputs and last state of a recurrence, and the gradients of all inputs from both."""
    tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    out, state = form(*tensors)
    return [out, state, *torch.autograd.grad(out.square().sum() + state.pow(3).sum(), tensors)]


def assert_same_recurrence(
    fast: Callable[..., tuple[Tensor, Tensor]], slow: Callable[..., tuple[Tensor, Tensor]], tensors: Sequence[Tensor]
) -> None:
    """Outputs, the last state and all gradients of both forms."""
    for found, expected in zip(with_gradients(fast, tensors), with_gradients(slow, tensors), strict=True):
        torch.testing.assert_close(found, expected)
