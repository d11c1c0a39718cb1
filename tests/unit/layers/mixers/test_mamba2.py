import pytest
import torch
from one_layer import states_in_bfloat16
from torch import nn

from linnet.core.errors import UserError
from linnet.layers.contract import Place
from linnet.layers.mixers.mamba2 import Mamba2Spec

WIDTH = 16


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, {"groups": 2, "step_floor": 0.4, "step_ceiling": 1.2}])
def test_matches_the_recurrence_of_the_paper(changes: dict):
    torch.manual_seed(0)
    spec = Mamba2Spec(head_dim=8, state=5, **changes)
    mixer = spec.build(Place(WIDTH, 32)).double()
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    x_TD, numbers = torch.randn(9, WIDTH, dtype=torch.float64), 5 * spec.groups
    gate_TE, before_TF, dt_TN = (x_TD @ mixer.in_proj.weight.t()).split([32, 32 + 2 * numbers, 4], dim=1)
    taps_FW, padded_TF = mixer.conv1d.weight[:, 0], nn.functional.pad(before_TF, (0, 0, 3, 0))
    summed_TF = torch.stack([(padded_TF[t : t + 4].t() * taps_FW).sum(1) for t in range(9)]) + mixer.conv1d.bias
    x_TE, b_TF, c_TF = nn.functional.silu(summed_TF).split([32, numbers, numbers], dim=1)
    steps_TN = torch.log1p((dt_TN + mixer.dt_bias).exp()).clamp(spec.step_floor, spec.step_ceiling)
    read_TE = torch.zeros(9, 32, dtype=torch.float64)
    for head in range(4):
        group, places = head * spec.groups // 4, slice(8 * head, 8 * head + 8)
        state_PS = torch.zeros(8, 5, dtype=torch.float64)
        for t in range(9):
            b_S, c_S = (part[t, 5 * group : 5 * group + 5] for part in (b_TF, c_TF))
            keep = (-mixer.A_log[head].exp() * steps_TN[t, head]).exp()
            state_PS = keep * state_PS + steps_TN[t, head] * torch.outer(x_TE[t, places], b_S)
            read_TE[t, places] = state_PS @ c_S + mixer.D[head] * x_TE[t, places]
    gated_TGK = (read_TE * nn.functional.silu(gate_TE)).unflatten(1, (spec.groups, -1))
    normed_TGK = gated_TGK / (gated_TGK.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    expected_TD = (normed_TGK.flatten(1) * mixer.norm.weight) @ mixer.out_proj.weight.t()
    torch.testing.assert_close(mixer(x_TD[None])[0], expected_TD)


def test_initialization_matches_the_published_code():
    """Rates from 1 to 16 and steps from a thousandth to a tenth."""
    mixer = Mamba2Spec(head_dim=1).build(Place(1024, 32))
    rates, steps = mixer.A_log.exp(), nn.functional.softplus(mixer.dt_bias)
    for values, lowest, highest in ((rates, 1, 16), (steps.log10(), -3, -1)):
        margin = 0.006 * (highest - lowest)  # of 2,048 values
        assert values.min().item() == pytest.approx(lowest, abs=margin) and values.min() > lowest - 1e-3
        assert values.max().item() == pytest.approx(highest, abs=margin) and values.max() < highest + 1e-3
    assert (mixer.D == 1).all() and (mixer.norm.weight == 1).all()


@torch.no_grad()
def test_state_is_float32_in_any_precision():
    for state in states_in_bfloat16(Mamba2Spec(head_dim=8, state=5, groups=2), WIDTH):
        assert (state.states.shape, state.states.dtype) == ((3, 4, 8, 5), torch.float32)
        assert (state.inputs.shape, state.inputs.dtype) == ((3, 32 + 20, 3), torch.bfloat16)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"head_dim": 5}, "head_dim: 5: must divide 32, 2 times the width"),
        ({"head_dim": 8, "groups": 3}, "groups: 3: must divide the number of heads, 4"),
    ],
)
def test_widths_that_do_not_divide_are_refused(fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        Mamba2Spec(**fields).check(WIDTH)


def test_step_limits_without_a_range_are_refused():
    with pytest.raises(UserError, match=r"step_ceiling: 0\.1: must be above step_floor, 0\.2"):
        Mamba2Spec.parse({"kind": "mamba2", "step_floor": 0.2, "step_ceiling": 0.1}, "test")


def test_a_floor_alone_limits_the_steps():
    assert Mamba2Spec(step_floor=0.2).limits == (0.2, None)
    assert Mamba2Spec(step_ceiling=0.5).limits == (0.0, 0.5)
    assert Mamba2Spec().limits is None
