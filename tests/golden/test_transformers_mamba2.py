"""The same weights in Transformers' Mamba-2 and in ours give the same outputs, gradients and decoding."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.mixers.mamba2 import Mamba2, Mamba2Spec

transformers = pytest.importorskip("transformers")
from same_weights.mamba2 import config_of, twins  # noqa: E402
from same_weights.twins import assert_same_passes  # noqa: E402

WIDTH = 32
CHUNK = 16
"""Of theirs, another than ours."""
SPECS = [
    Mamba2Spec(state=5, head_dim=8),
    Mamba2Spec(state=5, head_dim=8, groups=2, bias=True, conv_bias=False, expand=3, conv=2, eps=1e-3),
    Mamba2Spec(state=5, head_dim=8, groups=8, step_floor=0.4, step_ceiling=1.1),
]


def pair(spec: Mamba2Spec) -> tuple[nn.Module, Mamba2]:
    both = twins(spec, WIDTH, chunk=CHUNK)
    return both.theirs, both.ours


@pytest.mark.parametrize("length", [1, 63, 64, 65, 150])
@pytest.mark.parametrize("spec", SPECS)
def test_outputs_and_all_gradients(length: int, spec: Mamba2Spec):
    assert_same_passes(twins(spec, WIDTH, chunk=CHUNK), WIDTH, length)


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS[:2])
def test_decoding_with_a_cache(spec: Mamba2Spec):
    """Without limits of the steps, which Transformers leaves out of a step."""
    theirs, ours = pair(spec)
    x_BTD = torch.randn(2, 20, WIDTH)
    cache = transformers.DynamicCache(config=config_of(spec, WIDTH, CHUNK))
    state = ours.initial_state(2, 20, torch.device("cpu"), torch.float32)
    expected, found = ([], [])
    for begin, end in pairwise([0, 11, *range(12, 21)]):
        expected.append(theirs(x_BTD[:, begin:end], cache_params=cache))
        found.append(ours(x_BTD[:, begin:end], state, BatchLayout(begin)))
    torch.testing.assert_close(torch.cat(found, 1), torch.cat(expected, 1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat(found, 1), theirs(x_BTD), rtol=1e-4, atol=1e-5)
