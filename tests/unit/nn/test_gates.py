import pytest
import torch

from linnet.nn.gates import ACTIVATIONS


@pytest.mark.parametrize(
    ("x", "expected", "slope"), [(-2.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.5, 0.25, 1.0), (3.0, 9.0, 6.0)]
)
def test_relu_squared(x: float, expected: float, slope: float):
    value = torch.tensor(x, requires_grad=True)
    out = ACTIVATIONS["relu_squared"](value)
    out.backward()
    assert (out.item(), value.grad.item()) == (expected, slope)
