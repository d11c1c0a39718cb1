import torch
from torch import Tensor

from linnet.ops.recompute import recompute


def function(x: Tensor, y: Tensor) -> Tensor:
    return (x.exp() * y).sin() * y


def test_outputs_and_gradients_are_those_of_the_function():
    x, y = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    upstream = torch.randn(3, 4, dtype=torch.float64)
    found, expected = recompute(function, x, y), function(x, y)
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(out, (x, y), upstream) for out in (found, expected))
    for own, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(own, plain)


def test_nothing_is_kept_but_the_inputs():
    x, y = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        recompute(function, x, y)
    assert {tensor.data_ptr() for tensor in kept} == {x.data_ptr(), y.data_ptr()}
