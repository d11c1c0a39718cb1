import pytest
import torch
from torch import Tensor

from linnet.ops.retention import retention, retention_reference, retention_step

LOG_GAMMA = torch.tensor([-0.03, -0.5, -1e-4], dtype=torch.float64)


def inputs(length: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    torch.manual_seed(length)
    shapes = (2, 3, length, 4), (2, 3, length, 4), (2, 3, length, 6)
    return tuple(torch.randn(shape, dtype=dtype) for shape in shapes)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("begun", [False, True])
def test_chunks_equal_all_pairs_with_all_gradients(length: int, begun: bool):
    before = (torch.randn(2, 3, 4, 6, dtype=torch.float64),) if begun else ()
    tensors = [part.requires_grad_() for part in (*inputs(length), LOG_GAMMA.clone(), *before)]
    results = []
    for form in (retention, retention_reference):
        out_BNTV, sum_BNKV = form(*tensors)
        (out_BNTV.square().sum() + sum_BNKV.sin().sum()).backward()
        results.append([out_BNTV, sum_BNKV, *(part.grad.clone() for part in tensors)])
        for part in tensors:
            part.grad = None
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow)


def test_steps_equal_all_pairs():
    q, k, v = inputs(9)
    expected, end_BNKV = retention_reference(q, k, v, LOG_GAMMA)
    sum_BNKV = torch.zeros(2, 3, 4, 6, dtype=torch.float64)
    for place in range(9):
        out_BNV, sum_BNKV = retention_step(q[:, :, place], k[:, :, place], v[:, :, place], LOG_GAMMA, sum_BNKV)
        torch.testing.assert_close(out_BNV, expected[:, :, place])
    torch.testing.assert_close(sum_BNKV, end_BNKV)


def test_the_weight_of_each_token_decays_with_its_age():
    q, k, v = inputs(5)
    gamma_N = LOG_GAMMA.exp()
    out_BNTV, _ = retention(q, k, v, LOG_GAMMA)
    for head in range(3):
        weights = [gamma_N[head] ** (4 - j) * (q[1, head, 4] @ k[1, head, j]) for j in range(5)]
        expected = sum(weight * v[1, head, j] for j, weight in enumerate(weights))
        torch.testing.assert_close(out_BNTV[1, head, 4], expected)


def test_the_past_of_the_fastest_head_vanishes():
    q, k, v = inputs(3000, torch.float32)
    out_BNTV, sum_BNKV = retention(q, k, v, torch.tensor([-100.0, -1.0, -0.03]))
    assert out_BNTV.isfinite().all() and sum_BNKV.isfinite().all()
    expected = (q[:, 0] * k[:, 0]).sum(-1, keepdim=True) * v[:, 0]
    torch.testing.assert_close(out_BNTV[:, 0], expected)
