"""The same weights in Transformers' RecurrentGemma and in ours give the same outputs, gradients and decoding."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import Place
from linnet.layers.mixers.rglru import Rglru, RglruSpec
from linnet.ops.linear_scan import rglru

transformers = pytest.importorskip("transformers")
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru  # noqa: E402

from same_weights.rglru import config_of, drawn, run_theirs, twins  # noqa: E402
from same_weights.twins import Twins, assert_same_passes  # noqa: E402

WIDTH = 24


def of(**changes: object) -> Twins[Rglru]:
    return twins(RglruSpec(**{"heads": 4, "channels": WIDTH, **changes}), WIDTH)


@pytest.mark.parametrize("length", [1, 3, 63, 65])
@pytest.mark.parametrize("changes", [{}, {"heads": 1}, {"heads": 8, "channels": 32, "conv": 2}])
def test_outputs_and_all_gradients(length: int, changes: dict):
    assert_same_passes(of(**changes), WIDTH, length)


@pytest.mark.parametrize("begun", [False, True])
def test_the_unit_alone_from_a_state_and_at_the_beginning(begun: bool):
    """Inputs, states and gradients of the recurrence itself, without the branches."""
    spec = RglruSpec(heads=4, channels=WIDTH)
    theirs = drawn(RecurrentGemmaRglru(config_of(spec, WIDTH)), 0.4)
    gates = spec.build(Place(WIDTH, 128)).rg_lru
    gates.load_state_dict(theirs.state_dict())
    x_BTE, upstream = torch.randn(2, 40, WIDTH), torch.randn(2, 40, WIDTH)
    h_BE = torch.randn(2, WIDTH) if begun else torch.zeros(2, WIDTH)
    theirs.recurrent_states = h_BE
    positions_BT = torch.arange(7 * begun, 40 + 7 * begun).expand(2, 40)
    results = []
    for unit in (theirs, gates):
        x = x_BTE.clone().requires_grad_()
        if unit is theirs:
            out = theirs(x, positions_BT)
            last_BE = theirs.recurrent_states
        else:
            input_BTE, recurrent_BTE = (logits.sigmoid() for logits in gates(x))
            begins_B1 = positions_BT[:, :1] == 0
            out, last_BE = rglru(x, input_BTE, recurrent_BTE, gates.rates(torch.float32), begins_B1, h_BE)
        named = dict(sorted(unit.named_parameters()))
        results.append((out, last_BE, *torch.autograd.grad(out, (x, *named.values()), upstream)))
    for found, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_decoding_with_a_cache():
    both = of()
    theirs, ours = both.theirs, both.ours
    x_BTD = torch.randn(2, 20, WIDTH)
    bounds = [0, 11, *range(12, 21)]
    state = ours.initial_state(2, 20, torch.device("cpu"), torch.float32)
    expected, found = ([], [])
    for begin, end in pairwise(bounds):
        expected.append(run_theirs(theirs, x_BTD[:, begin:end], begin, use_cache=True))
        found.append(ours(x_BTD[:, begin:end], state, BatchLayout(begin)))
    torch.testing.assert_close(torch.cat(found, 1), torch.cat(expected, 1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat(found, 1), run_theirs(theirs, x_BTD), rtol=1e-4, atol=1e-5)


def test_decays_start_as_published():
    """Squares of `exp(-softplus)` even between those of 0.9 and 0.999; biases of 0."""
    spec = RglruSpec(heads=4, channels=4096)
    theirs, ours = RecurrentGemmaRglru(config_of(spec, WIDTH)), spec.build(Place(WIDTH, 128))
    transformers.models.recurrent_gemma.RecurrentGemmaPreTrainedModel(config_of(spec, WIDTH))._init_weights(theirs)
    for unit in (theirs, ours.rg_lru):
        squares_E = (-2 * nn.functional.softplus(unit.recurrent_param)).exp()
        assert squares_E.min() >= 0.9**2 - 1e-5 and squares_E.max() <= 0.999**2 + 1e-5
        assert squares_E.mean().item() == pytest.approx((0.9**2 + 0.999**2) / 2, abs=0.005)
        assert squares_E.std().item() == pytest.approx((0.999**2 - 0.9**2) / 12**0.5, rel=0.05)
        assert not unit.input_gate_bias.any() and not unit.recurrent_gate_bias.any()
