import pytest
import torch
from torch import Tensor

from linnet.ops.complex_pairs import complex_div, complex_exp, complex_expm1, complex_mul, complex_powers


def pairs(*shape: int, size: float = 1.0) -> Tensor:
    return size * torch.randn(*shape, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(torch.view_as_complex(found.contiguous()), expected)


def test_arithmetic_is_that_of_complex_numbers():
    u, w = pairs(3, 5), pairs(5)
    u_complex, w_complex = torch.view_as_complex(u), torch.view_as_complex(w)
    same(complex_mul(u, w), u_complex * w_complex)
    same(complex_div(u, w), u_complex / w_complex)
    same(complex_exp(u), u_complex.exp())


@pytest.mark.parametrize("size", [1e-12, 1e-3, 1.0])
def test_small_differences_keep_their_digits(size: float):
    u = pairs(7, size=size)
    same(complex_expm1(u), torch.view_as_complex(u).expm1())
    narrow = complex_expm1(u.float()).double()
    torch.testing.assert_close(narrow, complex_expm1(u), rtol=1e-5, atol=1e-7 * size)


@pytest.mark.parametrize("count", [1, 2, 3, 65])
def test_powers(count: int):
    a = pairs(4, 3, size=0.5)
    expected = torch.view_as_complex(a)[:, None] ** torch.arange(count)[:, None]
    same(complex_powers(a, count), expected)
