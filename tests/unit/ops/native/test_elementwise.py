import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.nn.gates import ACTIVATIONS
from linnet.ops.gated_feed_forward import gated_silu_reference
from linnet.ops.native import library
from linnet.ops.native.elementwise import (
    KINDS,
    activation_row,
    norm_row,
    rotate_row,
    scale_add_row,
)
from linnet.ops.rotary import rotary_range, rotate

COMPILED = library(torch.device("cpu"))
pytestmark = pytest.mark.skipif(COMPILED is None, reason="no compiler, or another processor")


@given(st.integers(1, 70))
@settings(max_examples=30, deadline=None)
def test_rms_norm(width: int):
    x, gain = torch.randn(1, width), torch.randn(width)
    expected = torch.nn.functional.rms_norm(x, (width,), gain, 1e-5)
    torch.testing.assert_close(norm_row(COMPILED, gain, None, 1e-5)(x), expected)


@given(st.integers(1, 4), st.integers(1, 70))
@settings(max_examples=30, deadline=None)
def test_every_head_has_its_own_norm(heads: int, width: int):
    x, gain, bias = torch.randn(3, heads, width)
    alone = [torch.nn.functional.rms_norm(x[n], (width,), gain[n], 1e-5) for n in range(heads)]
    torch.testing.assert_close(norm_row(COMPILED, gain, None, 1e-5)(x), torch.stack(alone))
    centered = [torch.nn.functional.layer_norm(x[n], (width,), gain[n], bias[n], 1e-3) for n in range(heads)]
    found = norm_row(COMPILED, gain, bias, 1e-3)(x)
    torch.testing.assert_close(found, torch.stack(centered), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0, 1000.0])
def test_every_activation(kind: str, size: float):
    joint = torch.randn(1, 2 * 93, generator=torch.Generator().manual_seed(0)) * size
    gate, value = joint.chunk(2, dim=1)
    expected = ACTIVATIONS[kind](gate)
    torch.testing.assert_close(activation_row(COMPILED, kind)(gate), expected, rtol=1e-5, atol=4e-7 * size)
    torch.testing.assert_close(
        activation_row(COMPILED, kind, gated=True)(joint), expected * value, rtol=1e-5, atol=4e-7 * size * size
    )
    assert set(KINDS) == set(ACTIVATIONS)


def test_scale_add_adds_the_row_of_a_position():
    x, table = torch.randn(1, 13), torch.randn(4, 13)
    torch.testing.assert_close(scale_add_row(COMPILED, 0.3, table)(x, 3), 0.3 * x + table[3])
    assert torch.equal(scale_add_row(COMPILED, 2.0)(x, 3), 2 * x)
    with pytest.raises(ValueError, match="a row of the table"):
        scale_add_row(COMPILED, 0.3, table)(x, 4)


@pytest.mark.parametrize("pairing", ["adjacent", "halves"])
@pytest.mark.parametrize("left", [0, 3])
def test_heads_are_rotated_in_place_and_other_elements_are_unchanged(pairing: str, left: int):
    table = rotary_range(0, 9, 10, 100.0, torch.device("cpu"))
    cos, sin = (part[:, 0] for part in table)
    x = torch.randn(4, 10 + left)
    expected = x.clone()
    at_5 = tuple(part[5:6] for part in table)
    expected[:, :10] = rotate(x[None, None, :, :10].contiguous(), at_5, pairing)[0, 0]
    assert rotate_row(COMPILED, cos, sin, pairing)(x, 5) is x
    torch.testing.assert_close(x, expected)


@given(st.integers(1, 40), st.sampled_from([0.0, 1.0, 30.0, 1000.0]))
@settings(max_examples=40, deadline=None)
def test_gated_silu(width: int, size: float):
    joint = torch.randn(1, 2 * width) * size
    found = activation_row(COMPILED, "silu", gated=True)(joint)
    torch.testing.assert_close(found, gated_silu_reference(joint), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_nan_in_a_gate_is_propagated(kind: str):
    assert activation_row(COMPILED, kind, gated=True)(torch.full((1, 32), torch.nan)).isnan().all()
