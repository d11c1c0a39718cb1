import torch

from linnet.layers.mixers.plga.operator import PowerLawOperator


def _deduced(start: str) -> torch.Tensor:
    torch.manual_seed(0)
    operator = PowerLawOperator(2, 8, hidden=5, residual_units=1, gated_units=1, start=start)
    q = torch.randn(1, 2, 40, 8)
    return operator(q.transpose(-1, -2) @ q).g.detach()


def test_the_identity_start_is_the_identity_and_a_small_rank_one_part():
    rest = _deduced("identity") - torch.eye(8)
    assert torch.linalg.matrix_rank(rest, atol=1e-5).tolist() == [[1, 1]]
    assert 0 < rest.abs().max() < 0.3


def test_the_papers_start_is_not():
    assert (_deduced("paper") - torch.eye(8)).abs().max() > 1
