import math

import pytest
import torch

from linnet.ops.rotary import rotary_range, rotary_table
from linnet.ops.rotary_scaling import Linear, Ntk, Yarn, dynamic_factor, unscaled, yarn_gain

CPU = torch.device("cpu")
BASE, WIDTH = 10000.0, 64
AS_TRAINED = unscaled(WIDTH, BASE, CPU)


def test_interpolated_positions_are_positions_divided():
    scaled = rotary_table(torch.arange(0, 400, 4), WIDTH, BASE, 400, Linear(4.0))
    quarter = rotary_table(torch.arange(100), WIDTH, BASE, 100)
    torch.testing.assert_close(scaled[0], quarter[0], rtol=0, atol=1e-4)


def test_ntk_divides_the_slowest_pair_by_the_factor_and_the_fastest_by_nothing():
    ratio = AS_TRAINED / Ntk(8.0).frequencies(WIDTH, BASE, CPU)
    torch.testing.assert_close(ratio[[0, -1]], torch.tensor([1.0, 8.0]))
    assert (ratio.diff() > 0).all()


def test_yarn_leaves_fast_pairs_and_divides_slow_ones():
    ratio = AS_TRAINED / Yarn(8.0, 1024, 32, 1, 1.0).frequencies(WIDTH, BASE, CPU)
    turns = 1024 * AS_TRAINED / (2 * math.pi)
    assert (ratio[turns > 34 * 2] == 1).all() and (ratio[turns < 0.5] - 8).abs().max() < 1e-4
    assert (ratio.diff() >= -1e-6).all()


def test_yarn_s_gain_stands_in_the_table():
    law = Yarn(8.0, 64, 32, 1, yarn_gain(8.0))
    cos, sin = rotary_range(5, 6, WIDTH, BASE, CPU, law)
    torch.testing.assert_close((cos**2 + sin**2).sqrt(), torch.full_like(cos, 0.1 * math.log(8) + 1))


@pytest.mark.parametrize("law", [Linear(1.0), Ntk(1.0), Yarn(1.0, 64, 32, 1, yarn_gain(1.0))])
def test_a_factor_of_one_changes_nothing(law):
    for scaled, plain in zip(
        rotary_range(0, 9, WIDTH, BASE, CPU, law), rotary_range(0, 9, WIDTH, BASE, CPU), strict=True
    ):
        torch.testing.assert_close(scaled, plain)


def test_dynamic_factors_begin_at_one():
    assert [dynamic_factor(2.0, length, 64) for length in (8, 64, 128)] == [1.0, 1.0, 3.0]
