import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from linnet.ops import linear as module
from linnet.ops.linear import linear


@torch.no_grad()
@given(st.integers(1, 40), st.integers(1, 70), st.booleans(), st.sampled_from([(), (1,), (1, 1), (3,), (2, 2)]))
def test_any_shape_gives_the_library_result(inputs, outputs, with_bias, batch):
    x, weight = torch.randn(*batch, inputs), torch.randn(outputs, inputs)
    bias = torch.randn(outputs) if with_bias else None
    torch.testing.assert_close(linear(x, weight, bias), F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not module.HAS_MKL, reason="the fast path is for MKL")
def test_one_row_takes_the_fast_path_and_training_does_not(monkeypatch: pytest.MonkeyPatch):
    calls = []
    monkeypatch.setattr(
        module.torch, "bmm", lambda *arguments, out: calls.append(1) or torch.ops.aten.bmm.out(*arguments, out=out)
    )
    x, weight = torch.randn(1, 1, 8), torch.randn(32, 8)
    with torch.no_grad():
        linear(x, weight)
        assert len(calls) == 1
        linear(torch.randn(2, 8), weight)
        linear(x.double(), weight.double())
    linear(x, weight)
    assert len(calls) == 1
