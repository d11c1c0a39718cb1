"""H3 against the recurrences of the published block in float64, with each state as a vector."""

import pytest
import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import Place
from linnet.layers.mixers.h3 import H3, H3Spec
from linnet.model.spec import ModelSpec

WIDTH, LENGTH, SHIFT = 16, 70, 5


def built(**changes: object) -> H3:
    torch.manual_seed(0)
    return H3Spec(**{"state": 6, "shift": SHIFT, **changes}).build(Place(WIDTH, 128))


def shifted(k_BTD: Tensor, b_DW: Tensor, c_DW: Tensor, d_D: Tensor) -> Tensor:
    """A state that is shifted by one place with each token."""
    state_BDW, outs = torch.zeros(len(k_BTD), *b_DW.shape, dtype=torch.float64), []
    for k_BD in k_BTD.unbind(1):
        moved_BDW = torch.cat([torch.zeros_like(state_BDW[..., :1]), state_BDW[..., :-1]], dim=-1)
        state_BDW = moved_BDW + b_DW * k_BD[..., None]
        outs.append((c_DW * state_BDW).sum(-1) + d_D * k_BD)
    return torch.stack(outs, dim=1)


def published(mixer: H3, x_BTD: Tensor, k_BTD: Tensor, bilinear: bool) -> Tensor:
    """The block with separate heads: queries, shifted keys, values, and the diagonal model."""
    kernel, size = mixer.kernel, mixer.head_dim
    q_BTHI, k_BTHI, v_BTHJ = (
        part.unflatten(2, (-1, size))
        for part in (x_BTD @ query(mixer).T + query_bias(mixer), k_BTD, x_BTD @ value(mixer).T + value_bias(mixer))
    )
    step_H1, rate_HN = kernel.log_dt.exp()[:, None], -kernel.log_A_real.exp() + 1j * kernel.A_imag
    near_HN = 1 / (1 - step_H1 / 2 * rate_HN)
    kept_HN = near_HN * (1 + step_H1 / 2 * rate_HN) if bilinear else (step_H1 * rate_HN).exp()
    taken_HN = near_HN * step_H1 if bilinear else (kept_HN - 1) / rate_HN
    state, outs = torch.zeros(len(x_BTD), WIDTH // size, size, size, 3, dtype=torch.complex128), []
    for q_BHI, k_BHI, v_BHJ in zip(q_BTHI.unbind(1), k_BTHI.unbind(1), v_BTHJ.unbind(1), strict=True):
        product_BHIJ = k_BHI[..., None] * v_BHJ[:, :, None]
        state = kept_HN[:, None, None] * state + taken_HN[:, None, None] * product_BHIJ[..., None]
        seen_BHIJ = 2 * (torch.view_as_complex(kernel.C)[:, None, None] * state).sum(-1).real
        seen_BHIJ = seen_BHIJ + mixer.D[:, None, None] * product_BHIJ
        outs.append((q_BHI[..., None] * seen_BHIJ).sum(2).flatten(1))
    return torch.stack(outs, dim=1) @ mixer.output_linear.weight.T + mixer.output_linear.bias


def query(mixer: H3) -> Tensor:
    return mixer.query_key_value.weight[:WIDTH]


def query_bias(mixer: H3) -> Tensor:
    return mixer.query_key_value.bias[:WIDTH]


def value(mixer: H3) -> Tensor:
    return mixer.query_key_value.weight[2 * WIDTH :]


def value_bias(mixer: H3) -> Tensor:
    return mixer.query_key_value.bias[2 * WIDTH :]


@pytest.mark.parametrize(("size", "bilinear", "frequencies"), [(1, True, "lin"), (4, False, "inv")])
def test_matches_the_published_block(size: int, bilinear: bool, frequencies: str):
    """Outputs and all gradients; the shift model's input vector is any, as in the published weights.

    Input and output vectors and the direct way of the published shift model give the weights of a convolution, whose
    gradient is that of the direct way at the last weight, and gives that of the output vector by the chain rule.
    """
    discretization = "bilinear" if bilinear else "zoh"
    mixer = built(head_dim=size, discretization=discretization, frequencies=frequencies, longest_step=0.5).double()
    b_DW, c_DW = (torch.randn(WIDTH, SHIFT, dtype=torch.float64, requires_grad=True) for _ in range(2))
    d_D = torch.randn(WIDTH, dtype=torch.float64, requires_grad=True)
    lags = [(b_DW[:, : SHIFT - lag] * c_DW[:, lag:]).sum(1) + (d_D if lag == 0 else 0) for lag in range(SHIFT)]
    weight_D1W = torch.stack(lags[::-1], dim=1)[:, None]
    with torch.no_grad():
        mixer.shift.weight.copy_(weight_D1W)
    x_BTD = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn_like(x_BTD)
    shared = [parameter for name, parameter in mixer.named_parameters() if name != "shift.weight"]
    of_shift, *found = torch.autograd.grad(mixer(x_BTD), [mixer.shift.weight, x_BTD, *shared], upstream)
    found += torch.autograd.grad(weight_D1W, (b_DW, c_DW, d_D), of_shift)
    key_weight, key_bias = (part[WIDTH : 2 * WIDTH] for part in mixer.query_key_value.parameters())
    k_BTD = shifted(x_BTD @ key_weight.T + key_bias, b_DW, c_DW, d_D)
    expected_BTD = published(mixer, x_BTD, k_BTD, bilinear)
    torch.testing.assert_close(mixer(x_BTD), expected_BTD)
    expected = torch.autograd.grad(expected_BTD, [x_BTD, *shared, b_DW, c_DW, d_D], upstream)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@torch.no_grad()
def test_state_is_float32_except_for_the_keys():
    mixer = built(head_dim=2).bfloat16()
    state = mixer.initial_state(3, 1000, torch.device("cpu"), torch.bfloat16)
    for start, length in ((0, 4), (4, 1)):
        mixer(torch.randn(3, length, WIDTH).bfloat16(), state, BatchLayout(start))
        assert (state.hidden.shape, state.hidden.dtype) == ((3, 2, 2, WIDTH // 2, 3, 2), torch.float32)
        assert (state.inputs.shape, state.inputs.dtype) == ((3, WIDTH, SHIFT - 1), torch.bfloat16)
        assert state.hidden.untyped_storage().nbytes() == state.hidden.nbytes


def test_random_initial_values_have_the_published_scale():
    """D of both models has variance 1; that of the shift is in the weight of the current token."""
    torch.manual_seed(0)
    mixer = H3Spec(shift=4).build(Place(512, 128))
    own_D, before_D = mixer.shift.weight[:, 0, -1], mixer.shift.weight[:, 0, 0]
    assert (own_D.var() - before_D.var()).item() == pytest.approx(1, rel=0.2)
    assert mixer.D.std().item() == pytest.approx(1, rel=0.1)


def test_state_has_no_autograd_graph():
    mixer = built()
    state = mixer.initial_state(1, 9, torch.device("cpu"), torch.float32)
    mixer(torch.randn(1, 5, WIDTH), state)
    assert not any(tensor.requires_grad for tensor in state.tensors().values())


def test_heads_that_do_not_divide_the_width_are_refused():
    block = {"mixer": {"kind": "h3", "head_dim": 5}}
    with pytest.raises(UserError, match=r"head_dim: 5: must divide the width 16"):
        ModelSpec.parse({"vocab_size": 9, "d_model": WIDTH, "context_length": 8, "blocks": [block]}, "test")
