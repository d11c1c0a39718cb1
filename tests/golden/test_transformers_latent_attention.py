"""The same weights in Transformers' DeepSeek-V2 and DeepSeek-V3 and in our latent attention give the same outputs,
gradients and decoding.
"""

from itertools import pairwise

import pytest
import torch
from torch import nn

from linnet.layers.mixers.latent_attention import LatentAttention, LatentAttentionSpec
from linnet.layers.view import View

transformers = pytest.importorskip("transformers")
from same_weights.latent_attention import twins  # noqa: E402
from same_weights.twins import Names  # noqa: E402

WIDTH, HEADS, CONTENT, ROTARY, VALUE, RANK = 32, 4, 6, 4, 5, 12
WAYS = [("v2", 9, True), ("v2", None, True), ("v3", 9, True), ("v3", None, True), ("v3", 9, False)]
"""Which, the rank of the queries, whether adjacent elements are pairs."""


def pair(version: str, q_rank: int | None, adjacent: bool) -> tuple[nn.Module, LatentAttention, Names]:
    spec = LatentAttentionSpec(
        heads=HEADS, head_dim=CONTENT, rotary_dim=ROTARY, value_dim=VALUE, kv_rank=RANK, q_rank=q_rank,
        rotary={"pairing": "adjacent" if adjacent else "halves"},
    )  # fmt: skip
    both = twins(spec, WIDTH, version)
    return both.theirs, both.ours, both.names


@pytest.mark.parametrize("length", [1, 63, 65, 130])
@pytest.mark.parametrize("way", WAYS)
def test_outputs_and_all_gradients(way: tuple[str, int | None, bool], length: int):
    theirs, ours, ours_of = pair(*way)
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
    torch.testing.assert_close(of_ours, ours_of(of_theirs), **tolerances)


@torch.no_grad()
@pytest.mark.parametrize("way", WAYS)
def test_decoding_with_a_cache(way: tuple[str, int | None, bool]):
    """They expand what is cached for each token, we read it as it is; what is cached is of the same size."""
    theirs, ours, _ = pair(*way)
    x_BTD, cache = torch.randn(2, 76, WIDTH), transformers.DynamicCache()
    state = ours.initial_state(2, 76, torch.device("cpu"), torch.float32)
    expected, found = [], []
    for begin, end in pairwise([0, 60, 67, *range(68, 77)]):
        expected.append(theirs(x_BTD[:, begin:end], cache, begin))
        found.append(ours(x_BTD[:, begin:end], state, View(begin)))
    torch.testing.assert_close(torch.cat(found, 1), torch.cat(expected, 1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat(found, 1), theirs(x_BTD), rtol=1e-4, atol=1e-5)
    assert state.nbytes == cache.layers[0].keys.nbytes + cache.layers[0].values.nbytes
