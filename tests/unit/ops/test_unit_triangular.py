import pytest
import torch

from linnet.ops.unit_triangular import solved, solved_by_products


@pytest.mark.parametrize("tokens", [1, 2, 7, 64])
def test_products_alone_solve_the_same_equations(tokens: int):
    generator = torch.Generator().manual_seed(0)
    below = 0.2 * torch.randn(3, tokens, tokens, dtype=torch.float64, generator=generator)
    right = torch.randn(3, tokens, 5, dtype=torch.float64, generator=generator)
    x = solved_by_products(below, right)
    torch.testing.assert_close(x, solved(below, right))
    torch.testing.assert_close(x + below.tril(-1) @ x, right)
