"""The same weights in Transformers' gated delta nets (Qwen3-Next, Kimi Linear) and in ours give the same outputs,
gradients and decoding.
"""

from itertools import pairwise

import pytest
import torch

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.mixers.gated_delta import GatedDeltaSpec

transformers = pytest.importorskip("transformers")
from same_weights.gated_delta import kimi, qwen  # noqa: E402
from same_weights.twins import assert_same_passes  # noqa: E402

WIDTH = 32
KEY_HEADS, HEADS, KEY, VALUE = 2, 6, 8, 5

OF_HEAD = GatedDeltaSpec(heads=HEADS, key_heads=KEY_HEADS, head_dim=KEY, value_dim=VALUE, conv=3, eps=1e-3)
OF_CHANNEL = GatedDeltaSpec(heads=3, head_dim=KEY, decay="channel", gate="sigmoid", gate_rank=KEY, eps=1e-5)
EXPORTERS = [lambda: qwen(OF_HEAD, WIDTH), lambda: kimi(OF_CHANNEL, WIDTH)]


@pytest.mark.parametrize("length", [1, 3, 63, 64, 65, 130])
@pytest.mark.parametrize("which", EXPORTERS, ids=["qwen", "kimi"])
def test_outputs_and_all_gradients(which, length: int):
    assert_same_passes(which(), WIDTH, length)


@torch.no_grad()
@pytest.mark.parametrize("which", EXPORTERS, ids=["qwen", "kimi"])
def test_decoding_with_a_cache(which):
    both = which()
    theirs, ours = both.theirs, both.ours
    x_BTD = torch.randn(2, 76, WIDTH)
    cache = transformers.DynamicCache(
        config=transformers.Qwen3NextConfig(num_hidden_layers=1, layer_types=["linear_attention"])
    )
    state = ours.initial_state(2, 76, torch.device("cpu"), torch.float32)
    expected, found = ([], [])
    for begin, end in pairwise([0, 67, *range(68, 77)]):
        expected.append(theirs(x_BTD[:, begin:end], cache_params=cache))
        found.append(ours(x_BTD[:, begin:end], state, BatchLayout(begin)))
    torch.testing.assert_close(torch.cat(found, 1), torch.cat(expected, 1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat(found, 1), theirs(x_BTD), rtol=1e-4, atol=1e-5)
