"""Every sublayer over long sequences, behind the context length (128) and the sizes of chunks and blocks (1,024)."""

import pytest
import torch
from examples import ALL, CONTEXT, PLACE, first_of_its_kind, inputs, name_of
from torch import Tensor

from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.layers.contract import Sublayer, SublayerSpec
from linnet.layers.passes import run
from on_device import DEVICE

FIRST_QUICK = [
    pytest.param(spec, id=name_of(spec), marks=() if first_of_its_kind(spec) else pytest.mark.slow) for spec in ALL
]
"""The first example of each kind, and (slow) every one."""

OFTEN_QUICK = [
    pytest.param(spec, length, id=f"{name_of(spec)}-{length}", marks=() if is_quick else pytest.mark.slow)
    for length in (300, 1100)
    for spec in ALL
    for is_quick in [length == 300 or first_of_its_kind(spec)]
]
"""The same, but every example over 300 tokens."""

CUTS = {300: (100, 129, 257), 1100: (1000, 1023, 1025)}
"""Where streams of each length are cut; a calibration reads the first chunk."""


def stream(sublayer: Sublayer, x_BTD: Tensor, cuts: tuple[int, ...]) -> Tensor:
    state = sublayer.initial_state(len(x_BTD), x_BTD.shape[1], DEVICE, x_BTD.dtype)
    pieces = zip((0, *cuts), (*cuts, x_BTD.shape[1]), strict=True)
    return torch.cat([run(sublayer, x_BTD[:, a:b], state, BatchLayout(a)) for a, b in pieces], dim=1)


@torch.no_grad()
@pytest.mark.parametrize(("spec", "length"), OFTEN_QUICK)
def test_a_long_stream_sees_no_later_token_and_does_not_depend_on_its_cuts(sublayer: Sublayer, length: int):
    """One pass, and the same tokens in chunks, of which later ones are changed."""
    assert length > CONTEXT
    x_BTD, cuts = inputs(1, length), CUTS[length]
    changed_BTD = torch.cat([x_BTD[:, : cuts[2]], inputs(1, length - cuts[2])], dim=1)
    chunked_BTD = stream(sublayer, x_BTD, cuts)
    tolerance = {"rtol": 1e-3, "atol": 1e-5}  # sums of TED are exact to its own tolerance
    again_BTD = stream(sublayer, changed_BTD, cuts[:1])
    torch.testing.assert_close(again_BTD[:, : cuts[2]], chunked_BTD[:, : cuts[2]], **tolerance)
    if sublayer.traits.causal:
        torch.testing.assert_close(sublayer(x_BTD), chunked_BTD, **tolerance)
        assert (sublayer(changed_BTD)[:, cuts[2] :] != chunked_BTD[:, cuts[2] :]).any()


@torch.no_grad()
@pytest.mark.parametrize("spec", FIRST_QUICK)
def test_float32_is_close_to_float64_over_2048_tokens(sublayer: Sublayer):
    x_BTD = inputs(1, 2048)
    expected = sublayer(x_BTD)
    torch.testing.assert_close(sublayer.float()(x_BTD.float()).double(), expected, rtol=1e-3, atol=1e-4)


def test_training_is_the_same_over_long_sequences_if_the_traits_say_so(sublayer: Sublayer):
    """Neither chance nor another form begins with a length."""
    x_BTD = inputs(1, 300)
    outs = [run(sublayer, x_BTD, None, BatchLayout(record=AuxiliaryOutputs(training=True))) for _ in range(2)]
    assert torch.equal(outs[0], outs[1])
    with torch.no_grad():
        torch.testing.assert_close(sublayer(x_BTD), sublayer(x_BTD.requires_grad_()))
    if sublayer.traits.same_in_training:
        assert torch.equal(outs[0], sublayer(x_BTD))


@pytest.mark.parametrize("length", [140, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("spec", FIRST_QUICK)
def test_fast_form_equals_reference_form_over_long_sequences(spec: SublayerSpec, sublayer: Sublayer, length: int):
    if not sublayer.references:
        pytest.skip("it has only one form")
    slow = spec.build(PLACE).double().to(DEVICE)
    slow.load_state_dict(sublayer.state_dict())
    for attribute, reference in sublayer.references.items():
        setattr(slow, attribute, reference)
    x_BTD, outputs = inputs(1, length), []
    for form in (sublayer, slow):
        x = x_BTD.clone().requires_grad_()
        out_BTD = form(x)
        outputs.append((out_BTD, *torch.autograd.grad(out_BTD.square().sum(), x)))
    for fast, reference in zip(*outputs, strict=True):
        torch.testing.assert_close(fast, reference, rtol=1e-3, atol=1e-4)
