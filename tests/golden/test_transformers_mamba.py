"""The same weights in Transformers' Mamba and in ours give the same outputs, gradients and decoding."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import Place
from linnet.layers.mixers.mamba import Mamba, MambaSpec

transformers = pytest.importorskip("transformers")
from transformers.models.mamba.modeling_mamba import MambaMixer  # noqa: E402

from same_weights.mamba import twins  # noqa: E402
from same_weights.twins import assert_same_passes  # noqa: E402

WIDTH = 32


def pair(**changes: object) -> tuple[nn.Module, Mamba]:
    both = twins(MambaSpec(state=5, **changes), WIDTH)
    return both.theirs, both.ours


@pytest.mark.parametrize("length", [1, 3, 63, 65])
@pytest.mark.parametrize("changes", [{}, {"bias": True, "conv_bias": False, "expand": 3, "conv": 2, "step_rank": 7}])
def test_outputs_and_all_gradients(length: int, changes: dict):
    assert_same_passes(twins(MambaSpec(state=5, **changes), WIDTH), WIDTH, length)


@torch.no_grad()
def test_decoding_with_a_cache():
    theirs, ours = pair()
    x_BTD = torch.randn(2, 20, WIDTH)
    bounds = [0, 11, *range(12, 21)]
    cache = transformers.DynamicCache(config=theirs.config)
    state = ours.initial_state(2, 20, torch.device("cpu"), torch.float32)
    expected, found = ([], [])
    for begin, end in pairwise(bounds):
        expected.append(theirs(x_BTD[:, begin:end], cache_params=cache))
        found.append(ours(x_BTD[:, begin:end], state, BatchLayout(begin)))
    torch.testing.assert_close(torch.cat(found, 1), torch.cat(expected, 1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat(found, 1), theirs(x_BTD), rtol=1e-4, atol=1e-5)


def test_steps_start_as_published():
    """Rates and skips alike, and steps between a thousandth and a tenth: softplus of biases from -6.9 to -2.3."""
    config = transformers.MambaConfig(hidden_size=64, num_hidden_layers=1)
    theirs, ours = MambaMixer(config, layer_idx=0), MambaSpec().build(Place(64, 128))
    for name in ("A_log", "D"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name))
    for mixer in (theirs, ours):
        steps: Tensor = nn.functional.softplus(mixer.dt_proj.bias)
        assert steps.min() >= 0.001 * (1 - 1e-4) and steps.max() <= 0.1 * (1 + 1e-4)
        assert mixer.dt_proj.bias.mean().item() == pytest.approx(-4.6, abs=0.5)
        assert mixer.dt_proj.weight.abs().max() <= mixer.dt_proj.in_features**-0.5
