import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from linnet.ops.bfloat16_linear import can_pack, pack, packed_linear

needs_packing = pytest.mark.skipif(not can_pack(torch.device("cpu")), reason="no bfloat16 products on this processor")


@needs_packing
@torch.no_grad()
@given(
    st.integers(1, 70),
    st.integers(1, 70),
    st.booleans(),
    st.sampled_from([(), (1,), (1, 1), (0,), (3,), (2, 5)]),
    st.booleans(),
)
def test_any_shape_gives_the_product_rounded(inputs, outputs, with_bias, batch, contiguous):
    x = torch.randn(*batch, inputs).bfloat16() if contiguous else torch.randn(inputs, *batch).bfloat16().movedim(0, -1)
    weight, bias = torch.randn(outputs, inputs).bfloat16(), torch.randn(outputs).bfloat16() if with_bias else None
    actual = packed_linear(x, pack(weight), bias)
    expected = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.float(), expected, rtol=0.01, atol=0.02)


@needs_packing
def test_packing_loses_nothing():
    weight = torch.randn(33, 17).bfloat16()
    assert torch.equal(pack(weight).to_dense(), weight)


def test_there_is_no_such_layout_on_other_devices():
    assert not can_pack(torch.device("cuda"))
