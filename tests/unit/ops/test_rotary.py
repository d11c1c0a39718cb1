import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.ops import rotary
from linnet.ops.rotary import (
    Interpolation,
    NtkBase,
    Pairing,
    YarnRamp,
    dynamic_factor,
    frequencies,
    rotary_range,
    rotary_table,
    rotate_heads,
    rotate_reference,
    yarn_gain,
)

table = rotary._table
PAIRINGS: list[Pairing] = ["adjacent", "halves"]


def _by_definition(x: list[float], position: int, base: float, pairing: Pairing) -> list[float]:
    width, out = len(x), list(x)
    for i in range(width // 2):
        a, b = (2 * i, 2 * i + 1) if pairing == "adjacent" else (i, i + width // 2)
        angle = position * base ** (-2 * i / width)
        out[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
        out[b] = x[b] * math.cos(angle) + x[a] * math.sin(angle)
    return out


def test_positions_beyond_the_largest_table_need_none(monkeypatch: pytest.MonkeyPatch):
    tables = list[int]()
    monkeypatch.setattr(rotary, "_table", lambda length, *given: tables.append(length) or table(length, *given))
    start, scaling = rotary.MAX_TABLE - 2, Interpolation(2.0)
    positions = torch.arange(start, start + 4)
    of_table = table(2 * rotary.MAX_TABLE, 8, 100.0, torch.device("cpu"), scaling)
    for found in (
        rotary_range(start, start + 4, 8, 100.0, torch.device("cpu"), scaling),
        rotary_table(positions, 8, 100.0, start + 4, scaling),
    ):
        for part, expected in zip(found, of_table, strict=True):
            assert torch.equal(part[:, 0], expected[start : start + 4])
    assert tables == []
    rotary_range(0, rotary.MAX_TABLE, 8, 100.0, torch.device("cpu"))
    assert tables == [rotary.MAX_TABLE]


@given(
    st.integers(1, 8).flatmap(lambda n: st.lists(st.floats(-3, 3, width=32), min_size=2 * n, max_size=2 * n)),
    st.integers(0, 500),
    st.sampled_from([100.0, 10000.0]),
    st.sampled_from(PAIRINGS),
)
def test_rotation_follows_the_definition(x, position, base, pairing):
    table = rotary_table(torch.tensor([position]), len(x), base, position + 1)
    actual = rotate_reference(torch.tensor(x, dtype=torch.float64)[None, None, None], table, pairing)
    expected = torch.tensor(_by_definition(x, position, base, pairing), dtype=torch.float64)
    torch.testing.assert_close(actual[0, 0, 0], expected, rtol=0, atol=3e-4)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_scores_depend_only_on_the_distance(pairing: Pairing):
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64)

    def score(i: int, j: int) -> torch.Tensor:
        at_i, at_j = (rotary_table(torch.tensor([p]), 16, 10000.0, p + 1) for p in (i, j))
        return (rotate_reference(q, at_i, pairing) * rotate_reference(k, at_j, pairing)).sum()

    torch.testing.assert_close(score(9, 4), score(25, 20), rtol=1e-4, atol=1e-4)
    assert (score(9, 4) - score(9, 5)).abs() > 1e-3


def test_a_table_computed_in_inference_mode_can_be_used_for_training():
    with torch.inference_mode():
        rotary_table(torch.arange(3), 6, 77.0, 3)
    x = torch.randn(1, 3, 1, 6, requires_grad=True)
    rotate_heads(x, (1, 0, 0), rotary_table(torch.arange(3), 6, 77.0, 3), "halves")[0].sum().backward()
    assert x.grad is not None


@given(st.integers(0, 40), st.integers(0, 9))
def test_a_range_of_positions_equals_their_table(start, length):
    views = rotary_range(start, start + length, 6, 77.0, torch.device("cpu"))
    for view, copy in zip(
        views, rotary_table(torch.arange(start, start + length), 6, 77.0, start + length), strict=True
    ):
        assert torch.equal(view, copy)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_a_narrow_table_rotates_only_the_first_elements(pairing: Pairing):
    x, table = torch.randn(1, 5, 2, 8, dtype=torch.float64), rotary_table(torch.arange(5), 4, 100.0, 5)
    turned = rotate_reference(x, table, pairing)
    assert torch.equal(turned[..., :4], rotate_reference(x[..., :4], table, pairing))
    assert torch.equal(turned[..., 4:], x[..., 4:])


@pytest.mark.parametrize("width", [8, 4])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("heads", [(1, 1, 1), (3, 1, 1), (2, 2, 2)])
def test_fast_form_equals_reference_with_gradients(pairing: Pairing, heads: tuple[int, int, int], width: int):
    joint = torch.randn(2, 7, sum(heads), 8, dtype=torch.float64, requires_grad=True)
    table = rotary_table(torch.stack([torch.arange(7), torch.arange(7).flip(0)]), width, 100.0, 7)
    fast = torch.cat(rotate_heads(joint, heads, table, pairing), dim=2)
    turned = heads[0] + heads[1]
    slow = torch.cat([rotate_reference(joint[:, :, :turned], table, pairing), joint[:, :, turned:]], dim=2)
    upstream = torch.randn_like(fast)
    torch.testing.assert_close(fast, slow)
    gradients = [torch.autograd.grad(out, joint, upstream)[0] for out in (fast, slow)]
    torch.testing.assert_close(*gradients)
    with torch.no_grad():
        assert torch.equal(torch.cat(rotate_heads(joint, heads, table, pairing), dim=2), fast)


CPU = torch.device("cpu")
BASE, WIDTH = 10000.0, 64
AS_TRAINED = frequencies(WIDTH, BASE, CPU)


def test_interpolated_positions_are_divided_positions():
    scaled = rotary_table(torch.arange(0, 400, 4), WIDTH, BASE, 400, Interpolation(4.0))
    quarter = rotary_table(torch.arange(100), WIDTH, BASE, 100)
    torch.testing.assert_close(scaled[0], quarter[0], rtol=0, atol=1e-4)


def test_ntk_divides_the_slowest_pair_by_the_factor_and_leaves_the_fastest():
    ratio = AS_TRAINED / frequencies(WIDTH, BASE, CPU, NtkBase(8.0))
    torch.testing.assert_close(ratio[[0, -1]], torch.tensor([1.0, 8.0]))
    assert (ratio.diff() > 0).all()


def test_yarn_leaves_fast_pairs_and_divides_slow_pairs():
    ratio = AS_TRAINED / frequencies(WIDTH, BASE, CPU, YarnRamp(8.0, 1024, 32, 1, 1.0))
    turns = 1024 * AS_TRAINED / (2 * math.pi)
    assert (ratio[turns > 34 * 2] == 1).all() and (ratio[turns < 0.5] - 8).abs().max() < 1e-4
    assert (ratio.diff() >= -1e-6).all()


def test_the_table_contains_the_gain_of_yarn():
    law = YarnRamp(8.0, 64, 32, 1, yarn_gain(8.0))
    cos, sin = rotary_range(5, 6, WIDTH, BASE, CPU, law)
    torch.testing.assert_close((cos**2 + sin**2).sqrt(), torch.full_like(cos, 0.1 * math.log(8) + 1))


@pytest.mark.parametrize("law", [Interpolation(1.0), NtkBase(1.0), YarnRamp(1.0, 64, 32, 1, yarn_gain(1.0))])
def test_a_factor_of_one_changes_nothing(law):
    for scaled, plain in zip(
        rotary_range(0, 9, WIDTH, BASE, CPU, law), rotary_range(0, 9, WIDTH, BASE, CPU), strict=True
    ):
        torch.testing.assert_close(scaled, plain)


def test_dynamic_factors_begin_at_one():
    assert [dynamic_factor(2.0, length, 64) for length in (8, 64, 128)] == [1.0, 1.0, 3.0]


def test_scalings_of_the_same_factor_have_separate_tables():
    one, other = (rotary_range(3, 9, WIDTH, BASE, CPU, law)[0] for law in (Interpolation(4.0), NtkBase(4.0)))
    assert not torch.equal(one, other)
