from hypothesis import given
from hypothesis import strategies as st
from same_gradients import assert_same_with_gradients, double

from linnet.ops.gated_output import gated_output, gated_output_reference


@given(*[st.integers(1, 6)] * 3)
def test_gated_output(rows, inputs, outputs):
    o, weight, gate = double(2, rows, inputs), double(outputs, inputs), double(2, rows, outputs)
    fast, slow = gated_output(o, weight, gate), gated_output_reference(o, weight, gate)
    assert_same_with_gradients(fast, slow, (o, weight, gate))
