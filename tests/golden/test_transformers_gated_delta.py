"""The same weights in Transformers' gated delta nets (Qwen3-Next, Kimi Linear) and in ours give the same outputs,
gradients and decoding.
"""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn

from linnet.layers.mixers.gated_delta import GatedDelta, GatedDeltaSpec
from linnet.layers.view import View

transformers = pytest.importorskip("transformers")
from same_weights.gated_delta import kimi, qwen  # noqa: E402
from same_weights.twins import Names, Twins  # noqa: E402

WIDTH = 32
KEY_HEADS, HEADS, KEY, VALUE = 2, 6, 8, 5

OF_HEAD = GatedDeltaSpec(heads=HEADS, key_heads=KEY_HEADS, head_dim=KEY, value_dim=VALUE, conv=3, eps=1e-3)
OF_CHANNEL = GatedDeltaSpec(heads=3, head_dim=KEY, decay="channel", gate="sigmoid", gate_rank=KEY, eps=1e-5)
WAYS = [lambda: qwen(OF_HEAD, WIDTH), lambda: kimi(OF_CHANNEL, WIDTH)]


def pair(which: Callable[[], Twins[GatedDelta]]) -> tuple[nn.Module, GatedDelta, Names]:
    both = which()
    return both.theirs, both.ours, both.names


@pytest.mark.parametrize("length", [1, 3, 63, 64, 65, 130])
@pytest.mark.parametrize("which", WAYS, ids=["qwen", "kimi"])
def test_outputs_and_all_gradients(which, length: int):
    theirs, ours, names = pair(which)
    x_BTD, upstream = torch.randn(2, length, WIDTH), torch.randn(2, length, WIDTH)
    found = []
    for mixer in (theirs, ours):
        x = x_BTD.clone().requires_grad_()
        out = mixer(x)
        out.backward(upstream)
        found.append((out, x.grad, {name: weight.grad for name, weight in mixer.named_parameters()}))
    (expected, of_x, of_theirs), (out, of_own_x, of_ours) = found
    tolerances = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(out, expected, **tolerances)
    torch.testing.assert_close(of_own_x, of_x, **tolerances)
    torch.testing.assert_close(of_ours, names(of_theirs), **tolerances)


@torch.no_grad()
@pytest.mark.parametrize("which", WAYS, ids=["qwen", "kimi"])
def test_decoding_with_a_cache(which):
    theirs, ours, _ = pair(which)
    x_BTD = torch.randn(2, 76, WIDTH)
    cache = transformers.DynamicCache(
        config=transformers.Qwen3NextConfig(num_hidden_layers=1, layer_types=["linear_attention"])
    )
    state = ours.initial_state(2, 76, torch.device("cpu"), torch.float32)
    expected, found = ([], [])
    for begin, end in pairwise([0, 67, *range(68, 77)]):
        expected.append(theirs(x_BTD[:, begin:end], cache_params=cache))
        found.append(ours(x_BTD[:, begin:end], state, View(begin)))
    torch.testing.assert_close(torch.cat(found, 1), torch.cat(expected, 1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat(found, 1), theirs(x_BTD), rtol=1e-4, atol=1e-5)
