"""The same weights in Transformers' DeepSeek-V2 and DeepSeek-V3 and in our latent attention give the same outputs,
gradients and decoding.
"""

from itertools import pairwise

import pytest
import torch

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.mixers.latent_attention import LatentAttention, LatentAttentionSpec

transformers = pytest.importorskip("transformers")
from same_weights.latent_attention import twins  # noqa: E402
from same_weights.twins import Twins, assert_same_passes  # noqa: E402

WIDTH, HEADS, CONTENT, ROTARY, VALUE, RANK = 32, 4, 6, 4, 5, 12
EXPORTERS = [("v2", 9, True), ("v2", None, True), ("v3", 9, True), ("v3", None, True), ("v3", 9, False)]
"""Which, the rank of the queries, whether adjacent elements are pairs."""


def of(version: str, q_rank: int | None, adjacent: bool) -> Twins[LatentAttention]:
    spec = LatentAttentionSpec(
        heads=HEADS, head_dim=CONTENT, rotary_dim=ROTARY, value_dim=VALUE, kv_rank=RANK, q_rank=q_rank,
        rotary={"pairing": "adjacent" if adjacent else "halves"},
    )  # fmt: skip
    return twins(spec, WIDTH, version)


@pytest.mark.parametrize("length", [1, 63, 65, 130])
@pytest.mark.parametrize("way", EXPORTERS)
def test_outputs_and_all_gradients(way: tuple[str, int | None, bool], length: int):
    assert_same_passes(of(*way), WIDTH, length)


@torch.no_grad()
@pytest.mark.parametrize("way", EXPORTERS)
def test_decoding_with_a_cache(way: tuple[str, int | None, bool]):
    """They expand what is cached for each token, we read it as it is; what is cached is of the same size."""
    both = of(*way)
    theirs, ours = both.theirs, both.ours
    x_BTD, cache = torch.randn(2, 76, WIDTH), transformers.DynamicCache()
    state = ours.initial_state(2, 76, torch.device("cpu"), torch.float32)
    expected, found = [], []
    for begin, end in pairwise([0, 60, 67, *range(68, 77)]):
        expected.append(theirs(x_BTD[:, begin:end], cache, begin))
        found.append(ours(x_BTD[:, begin:end], state, BatchLayout(begin)))
    torch.testing.assert_close(torch.cat(found, 1), torch.cat(expected, 1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat(found, 1), theirs(x_BTD), rtol=1e-4, atol=1e-5)
    assert state.nbytes == cache.layers[0].keys.nbytes + cache.layers[0].values.nbytes
