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


def test_room_is_a_power_of_two_or_what_the_policy_keeps():
    for tokens, places in ((1, 2), (2, 2), (4, 4), (5, 8)):
        state = empty(build(), KEEP_ALL)
        state.reserve(tokens)
        assert state.ages.shape[1] == places
    limited = empty(build(), EvictionCache(3, -1.0))
    limited.reserve(4)
    assert limited.ages.shape[1] == 3
    roomy = empty(build(), EvictionCache(10**12, -1.0))
    roomy.reserve(5)
    assert roomy.ages.shape[1] == 8  # and not what the policy would keep of a long text


def test_policies_say_what_limits_them():
    both, alone, threshold = EvictionCache(4, 0.0), EvictionCache(4, -1.0), EvictionCache(0, 0.5)
    assert both.series == ("top_k 4 and threshold", "0") and alone.series == ("top_k", "4")
    assert threshold.series == ("threshold", "0.5") and KEEP_ALL.series == ("threshold", "off")
    labels = [policy.label for policy in (both, alone, threshold, KEEP_ALL)]
    assert labels == ["top_k 4, threshold 0", "top_k 4", "threshold 0.5", "no eviction"]
