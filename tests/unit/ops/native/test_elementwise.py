import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.ops.gated import gated_silu_reference
from linnet.ops.native import library
from linnet.ops.native.elementwise import gated_silu_row, rms_norm_row, turn_row
from linnet.ops.rotary import rotary_range, rotate

COMPILED = library(torch.device("cpu"))
pytestmark = pytest.mark.skipif(COMPILED is None, reason="no compiler, or another processor")


@given(st.integers(1, 70))
@settings(max_examples=30, deadline=None)
def test_rms_norm(width: int):
    x, gain = torch.randn(1, width), torch.randn(width)
    expected = torch.nn.functional.rms_norm(x, (width,), gain, 1e-5)
    torch.testing.assert_close(rms_norm_row(COMPILED, gain, 1e-5)(x), expected)


@pytest.mark.parametrize("pairing", ["adjacent", "halves"])
@pytest.mark.parametrize("left", [0, 3])
def test_heads_are_turned_in_place_and_the_rest_of_them_is_left(pairing: str, left: int):
    table = rotary_range(0, 9, 10, 100.0, torch.device("cpu"))
    cos, sin = (part[:, 0] for part in table)
    x = torch.randn(4, 10 + left)
    expected = x.clone()
    at_5 = tuple(part[5:6] for part in table)
    expected[:, :10] = rotate(x[None, None, :, :10].contiguous(), at_5, pairing)[0, 0]
    assert turn_row(COMPILED, cos, sin, pairing)(x, 5) is x
    torch.testing.assert_close(x, expected)


@given(st.integers(1, 40), st.sampled_from([0.0, 1.0, 30.0, 1000.0]))
@settings(max_examples=40, deadline=None)
def test_gated_silu(width: int, size: float):
    joint = torch.randn(1, 2 * width) * size
    found = gated_silu_row(COMPILED)(joint)
    torch.testing.assert_close(found, gated_silu_reference(joint), rtol=1e-5, atol=1e-6)


def test_a_gate_that_is_not_a_number_is_not_hidden():
    assert gated_silu_row(COMPILED)(torch.full((1, 32), torch.nan)).isnan().all()
