"""States with an eviction policy."""

import pytest
import torch
from small_teds import CONTEXTS, LENGTH, build, empty, feed, inputs, kinds

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.mixers.ted import EvictionCache

KEEP_ALL = EvictionCache(0, -1.0)


@torch.no_grad()
@kinds
def test_a_policy_without_eviction_matches_the_pass_without_a_state(build):
    mixer, x = build(), inputs()
    torch.testing.assert_close(feed(mixer, x, empty(mixer, KEEP_ALL), [0, 3, LENGTH]), mixer(x))


def test_gradients_flow_within_a_chunk_and_not_into_the_next():
    mixer, x = build(), inputs()
    state = empty(mixer, KEEP_ALL)
    for start, end in ((0, 5), (5, 9)):
        mixer(x[:, start:end], state, BatchLayout(start)).square().sum().backward()
    assert mixer.rate_weight.grad is not None and mixer.rate_weight.grad.abs().max() > 0


def test_state_cannot_be_cropped():
    with pytest.raises(NotImplementedError):
        empty(build(), CONTEXTS["policy"]).crop(3)
