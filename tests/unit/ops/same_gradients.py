"""A fast form of a small operation against its definition, with all gradients."""

import torch
from torch import Tensor


def double(*shape: int) -> Tensor:
    """A random tensor in float64 that wants a gradient."""
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def assert_same_with_gradients(fast: Tensor, slow: Tensor, inputs: tuple[Tensor, ...]) -> None:
    """The same outputs, and the same gradients of every input for a random one from above."""
    torch.testing.assert_close(fast, slow)
    upstream = torch.randn_like(fast)
    for actual, expected in zip(
        torch.autograd.grad(fast, inputs, upstream), torch.autograd.grad(slow, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(actual, expected)
