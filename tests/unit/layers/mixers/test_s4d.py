"""S4D against the recurrence of the published block in float64 with complex numbers."""

import math

import pytest
import torch
import torch.nn.functional as F

from linnet.core.errors import UserError
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import Place
from linnet.layers.mixers.s4d import S4d, S4dSpec
from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec

WIDTH, LENGTH = 16, 70


def built(**changes: object) -> S4d:
    torch.manual_seed(0)
    return S4dSpec(**{"state": 6, **changes}).build(Place(WIDTH, 128))


def discrete(kernel, discretization: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The factors of the state and of the input in a step (equation 3 of the paper)."""
    step_D1 = kernel.log_dt.exp()[:, None]
    rate_DN = -kernel.log_A_real.exp() + 1j * kernel.A_imag
    if discretization == "zoh":
        return (step_D1 * rate_DN).exp(), ((step_D1 * rate_DN).exp() - 1) / rate_DN
    left_DN = 1 / (1 - step_D1 / 2 * rate_DN)
    return left_DN * (1 + step_D1 / 2 * rate_DN), left_DN * step_D1


@pytest.mark.parametrize("discretization", ["zoh", "bilinear"])
@pytest.mark.parametrize("frequencies", ["lin", "inv"])
def test_matches_the_published_block(discretization: str, frequencies: str):
    """Outputs and all gradients; pairs of conjugates are explicit, so no factor of two is needed."""
    mixer = built(discretization=discretization, frequencies=frequencies, longest_step=0.5).double()
    x_BTD = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64, requires_grad=True)
    kept_DN, taken_DN = discrete(mixer.kernel, discretization)
    c_DN = torch.view_as_complex(mixer.kernel.C)
    kept_DM, taken_DM, c_DM = (torch.cat([part, part.conj()], dim=1) for part in (kept_DN, taken_DN, c_DN))
    h_BDM, outs = torch.zeros(2, WIDTH, 6, dtype=torch.complex128), []
    for x_BD in x_BTD.unbind(1):
        h_BDM = kept_DM * h_BDM + taken_DM * x_BD[..., None]
        y_BD = F.gelu((c_DM * h_BDM).sum(-1).real + mixer.D * x_BD)
        value_BD, gate_BD = (y_BD @ part.weight.T + part.bias for part in (mixer.value_linear, mixer.gate_linear))
        outs.append(value_BD * gate_BD.sigmoid())
    expected_BTD, upstream = torch.stack(outs, dim=1), torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    wanted = (x_BTD, *mixer.parameters())
    pairs = [(out, *torch.autograd.grad(out, wanted, upstream)) for out in (mixer(x_BTD), expected_BTD)]
    for found, expected in zip(*pairs, strict=True):
        torch.testing.assert_close(found, expected)


def test_initialization_matches_the_paper():
    """Equations 8 and 9, rates of a half, and steps within the bounds."""
    lin, inv = built(state=8), built(state=8, frequencies="inv", shortest_step=0.01, longest_step=0.02)
    torch.testing.assert_close(lin.kernel.A_imag[3], math.pi * torch.arange(4.0))
    expected = [8 / math.pi * (8 / (2 * n + 1) - 1) for n in range(4)]
    torch.testing.assert_close(inv.kernel.A_imag[3], torch.tensor(expected))
    torch.testing.assert_close(lin.kernel.log_A_real.exp(), torch.full((WIDTH, 4), 0.5))
    assert ((inv.kernel.log_dt.exp() >= 0.0099) & (inv.kernel.log_dt.exp() <= 0.0201)).all()
    assert inv.kernel.log_dt.std() > 0.1


def test_random_initial_values_have_the_published_scale():
    """Complex C and D have variance 1."""
    torch.manual_seed(0)
    mixer = S4dSpec(state=16).build(Place(512, 128))
    assert mixer.kernel.C.std().item() == pytest.approx(0.5**0.5, rel=0.03)
    assert mixer.D.std().item() == pytest.approx(1, rel=0.1)


def test_state_has_no_autograd_graph():
    mixer = built()
    state = mixer.initial_state(1, 9, torch.device("cpu"), torch.float32)
    mixer(torch.randn(1, 5, WIDTH), state)
    assert not state.hidden.requires_grad


def test_short_steps_are_accurate():
    """`exp(z) - 1` has no correct digits in float32 for a step of a millionth."""
    kernel = built(shortest_step=1e-7, longest_step=1e-7).kernel
    _, rough = kernel(torch.float32)
    _, exact = kernel.double()(torch.float64)
    torch.testing.assert_close(rough, exact.to(torch.complex64), rtol=1e-5, atol=0)


@torch.no_grad()
def test_state_is_float32_in_any_precision():
    mixer = built().bfloat16()
    state = mixer.initial_state(3, 1000, torch.device("cpu"), torch.bfloat16)
    for start, length in ((0, 4), (4, 1)):
        mixer(torch.randn(3, length, WIDTH).bfloat16(), state, BatchLayout(start))
        assert (state.hidden.shape, state.hidden.dtype) == ((3, WIDTH, 3, 2), torch.float32)
        assert state.hidden.untyped_storage().nbytes() == state.nbytes


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("state", 5, "state: 5: must be even"), ("longest_step", 1e-4, "longest_step: 0.0001: must not be below")],
)
def test_invalid_fields_are_refused(field: str, value: object, said: str):
    block = {"mixer": {"kind": "s4d", field: value}}
    with pytest.raises(UserError, match=said):
        ModelSpec.parse({"vocab_size": 9, "d_model": WIDTH, "context_length": 8, "blocks": [block]}, "test")


@pytest.mark.parametrize("name", ["tiny-s4d", "tiny-h3"])
def test_a_preset_is_as_large_as_that_of_attention(name: str):
    sizes = [model_cost(ModelSpec.load(each)).parameters for each in (name, "tiny-attention")]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)
