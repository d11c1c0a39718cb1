"""The bank: within its error bound, of constant size, and without cropping."""

import pytest
import torch
from small_teds import LENGTH, WIDTH, build, build_all, empty, feed, inputs, kinds

from linnet.layers.mixers.ted import BankCache
from linnet.layers.mixers.ted.bank import BankState


@torch.no_grad()
@kinds
def test_stateful_passes_match_the_pass_without_a_state(build):
    mixer, x = build(), inputs()
    torch.testing.assert_close(feed(mixer, x, empty(mixer, BankCache()), [0, 3, LENGTH]), mixer(x))


def test_the_size_of_the_bank_does_not_depend_on_the_number_of_tokens():
    mixer, x = build(), inputs()
    state = empty(mixer, BankCache(), 2)
    assert isinstance(state, BankState)
    before, fixed = state.nbytes, len(state.bank.rates_R)
    feed(mixer, x, state, [0, LENGTH])
    per_head = 8 * ((fixed + 8) * (WIDTH // 2 + 1) + fixed * WIDTH // 2)
    assert state.nbytes == before == 2 * (2 * per_head + 8)  # and each row's clock
    keyed = empty(build_all(), BankCache())
    fixed_bytes, tokens_bytes = fixed * 4 * 2 * WIDTH, 8 * (WIDTH + 2 * 4)
    assert keyed.nbytes == 2 * (8 * (fixed_bytes + tokens_bytes + 2 * (fixed + 8) + 2 * WIDTH) + 8)
    assert state.sizes(LENGTH).tolist() == [fixed + 4] * 2 and state.sizes(6).tolist() == [fixed + 6] * 2


def test_a_bank_is_as_long_as_it_is_asked_to_be():
    short, long = (empty(build(), BankCache(length)) for length in (64, 100_000))
    assert short.bank.length == 64 and long.bank.length == 131_072
    for length in (0, 2.5, 10**30):
        with pytest.raises(ValueError, match=f"length: {length}: expected 1 to".replace("+", ".")):
            BankCache(length)


def test_state_cannot_be_cropped():
    with pytest.raises(NotImplementedError):
        empty(build(), BankCache()).crop(3)
