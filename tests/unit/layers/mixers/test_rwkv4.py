import math

import pytest
import torch
from torch import nn

from linnet.layers.contract import Place
from linnet.layers.mixers.rwkv4 import Rwkv4, Rwkv4Spec

WIDTH, CHANNELS, LENGTH = 16, 24, 9


def built(index: int = 0, layers: int = 3) -> Rwkv4:
    torch.manual_seed(0)
    return Rwkv4Spec(channels=CHANNELS).build(Place(WIDTH, 128, index, layers))


@torch.no_grad()
def test_matches_the_block_of_the_paper():
    """Section 3.1, token by token, with sums of exponentials."""
    mixer = built().double()
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    x_TD = torch.randn(LENGTH, WIDTH, dtype=torch.float64)
    before_D = torch.zeros(WIDTH, dtype=torch.float64)
    sums_E, weights_E, outs = torch.zeros(CHANNELS).double(), torch.zeros(CHANNELS).double(), []
    for x_D in x_TD:
        mixed = [
            mix.flatten() * x_D + (1 - mix.flatten()) * before_D
            for mix in (mixer.time_mix_receptance, mixer.time_mix_key, mixer.time_mix_value)
        ]
        maps = (mixer.receptance, mixer.key, mixer.value)
        r_E, k_E, v_E = (linear.weight @ part_D for linear, part_D in zip(maps, mixed, strict=True))
        own_E = (mixer.time_first + k_E).exp()
        outs.append(mixer.output.weight @ (r_E.sigmoid() * (sums_E + own_E * v_E) / (weights_E + own_E)))
        fade_E = (-mixer.time_decay.exp()).exp()
        sums_E, weights_E = fade_E * sums_E + k_E.exp() * v_E, fade_E * weights_E + k_E.exp()
        before_D = x_D
    torch.testing.assert_close(mixer(x_TD[None])[0], torch.stack(outs))


@torch.no_grad()
def test_a_state_holds_a_token_and_two_numbers_for_each_channel_whatever_the_precision():
    mixer = built().bfloat16()
    state = mixer.initial_state(3, 1000, torch.device("cpu"), torch.bfloat16)
    for _ in range(2):
        mixer(torch.randn(3, 4, WIDTH).bfloat16(), state)
        assert (state.last.shape, state.last.dtype) == ((3, WIDTH), torch.bfloat16)
        for part in (state.mean, state.log_weight):
            assert (part.shape, part.dtype) == ((3, CHANNELS), torch.float32)
            assert part.isfinite().all()
    assert (state.forget().log_weight == -math.inf).all() and not state.forget().mean.any()


@torch.no_grad()
@pytest.mark.parametrize("index", [0, 2])
def test_initial_weights_depend_on_the_age_alone(index: int):
    """And on the bonus of the last token: keys are 0, gates half open."""
    mixer, x_BTD = built(index), torch.randn(1, 2, WIDTH)
    before_BTD = nn.functional.pad(x_BTD, (0, 0, 1, 0))[:, :-1]
    v_TE = mixer.value(torch.lerp(before_BTD, x_BTD, mixer.time_mix_value))[0]
    bonus_E = mixer.time_first.exp()
    expected_E = (v_TE[0] + bonus_E * v_TE[1]) / (1 + bonus_E) / 2
    torch.testing.assert_close(mixer(x_BTD)[0, 1], mixer.output(expected_E))


def test_rates_start_from_slow_to_fast_and_later_layers_are_slower():
    first, last, alone = (built(*place).time_decay for place in ((0, 3), (2, 3), (0, 1)))
    for rates_E in (first, last, alone):
        assert (rates_E[0].item(), rates_E[-1].item()) == (-5, 3)
        assert (rates_E.diff() > 0).all()
    assert (last[1:-1] < first[1:-1]).all()
    assert torch.equal(alone, first)
