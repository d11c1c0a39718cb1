"""The full state: exact, and it can be cropped without a convolution."""

import pytest
import torch
from small_teds import LENGTH, WIDTH, build, build_all, empty, feed, inputs, kinds

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL
from linnet.layers.mixers.ted.full import FullState
from linnet.layers.passes import run


@torch.no_grad()
@kinds
def test_stateful_passes_match_the_pass_without_a_state(build):
    mixer, x = build(), inputs()
    torch.testing.assert_close(feed(mixer, x, empty(mixer, FULL), [0, 3, LENGTH]), mixer(x))


@torch.no_grad()
@pytest.mark.parametrize("key_width", [None, 3])
def test_state_can_be_cropped(key_width):
    """Cropped tokens have no effect."""
    mixer, x = build(key_width=key_width), inputs()
    state, other = empty(mixer, FULL), inputs() + 1
    whole = feed(mixer, x, empty(mixer, FULL), [0, LENGTH])
    feed(mixer, x, state, [0, 11])
    run(mixer, other[:, 11:20], state, BatchLayout(11))
    state.crop(11)
    torch.testing.assert_close(feed(mixer, x, state, [11, 12, LENGTH]), whole[:, 11:])


def test_states_with_a_convolution_cannot_be_cropped():
    state = empty(build_all(), FULL)
    with pytest.raises(NotImplementedError):
        state.crop(3)
    state.crop(0)


def test_state_stores_every_token_at_its_position():
    mixer = build(key_width=3)
    state = empty(mixer, FULL)
    assert isinstance(state, FullState) and state.cache_policy == FULL
    a_token = 8 * (WIDTH + 2 + 2 * 4)  # of each head a rate, and a key with one number more
    assert state.nbytes == 2 * LENGTH * a_token
    assert state.sizes(6).tolist() == [6, 6]
    assert state.mean_nbytes(5).tolist() == [3 * a_token] * 2  # of 1, 2, 3, 4 and 5 tokens
