from hypothesis import given
from hypothesis import strategies as st
from same_gradients import assert_same_with_gradients, double

from linnet.ops.gated import gated_silu, gated_silu_reference


@given(st.integers(1, 5), st.integers(1, 9))
def test_gated_silu(rows, width):
    joint = double(2, rows, 2 * width)
    assert_same_with_gradients(gated_silu(joint), gated_silu_reference(joint), (joint,))
