"""The cache: what goes back, what is chosen, and that it then goes on as if nothing had been."""

import pytest
import torch
from linnet_models import few_fast, model_of, tokens

from linnet.core.errors import UserError
from linnet.interop.transformers import StateCache

kinds = few_fast("attention", "plga", "mamba", "hybrid")


def read(model, cache, tokens_BT, mask_BT=None):
    with torch.no_grad():
        return model(tokens_BT, attention_mask=mask_BT, past_key_values=cache).logits


@kinds
@pytest.mark.parametrize("removed", [0, 1, 3, 4, 6, 9])
def test_recorded_places_are_taken_back(kind, removed):
    """Chunks of 4, 2 and 3 places; what was taken back is another text."""
    model, text_BT, other_BT = model_of(kind), tokens(2, 15), tokens(2, 9, seed=1)
    cache = StateCache()
    read(model, cache, text_BT[:, :5])
    cache.activate_past_recording()
    kept = 9 - removed
    chunks_BT = torch.cat([text_BT[:, 5 : 5 + kept], other_BT[:, kept:]], dim=1)
    for chunk_BT in chunks_BT.split([4, 2, 3], dim=1):
        read(model, cache, chunk_BT)
    cache.crop(-removed)
    assert cache.get_seq_length() == 5 + kept
    straight = StateCache()
    read(model, straight, text_BT[:, :5])
    expected_BTV = read(model, straight, text_BT[:, 5:])[:, kept:]
    torch.testing.assert_close(read(model, cache, text_BT[:, 5 + kept :]), expected_BTV)


def test_rows_with_padding_go_back_too():
    model, text_BT = model_of("attention"), tokens(2, 9)
    mask_BT = torch.tensor([[1] * 9, [0, 0] + [1] * 7])
    cache, straight = StateCache(), StateCache()
    cache.activate_past_recording()
    read(model, cache, text_BT[:, :5], mask_BT[:, :5])
    read(model, cache, tokens(2, 3, seed=1), mask_BT[:, :8])
    cache.crop(-4)
    read(model, straight, text_BT[:, :4], mask_BT[:, :4])
    found_BTV = read(model, cache, text_BT[:, 4:], mask_BT)
    torch.testing.assert_close(found_BTV, read(model, straight, text_BT[:, 4:], mask_BT))


def test_keys_and_values_go_back_without_a_record():
    model, text_BT = model_of("attention"), tokens(2, 8)
    cache = StateCache()
    read(model, cache, text_BT[:, :5])
    read(model, cache, tokens(2, 3, seed=1))
    cache.crop(-3)
    with torch.no_grad():
        torch.testing.assert_close(read(model, cache, text_BT[:, 5:]), model.decoder(text_BT)[:, 5:])


def test_a_state_that_cannot_go_back_is_refused():
    cache = StateCache()
    model = model_of("mamba")
    read(model, cache, tokens(1, 5))
    with pytest.raises(UserError, match="cannot go back by itself; call `activate_past_recording`"):
        cache.crop(-1)
    for wrong in (1, -6):
        with pytest.raises(UserError, match=f"crop: {wrong}: expected 0 to -5"):
            cache.crop(wrong)
    cache.activate_past_recording()
    read(model, cache, tokens(1, 2))
    with pytest.raises(UserError, match="more than were recorded"):
        cache.crop(-3)


@kinds
def test_rows_are_chosen_repeated_and_reordered(kind):
    model, text_BT, next_BT = model_of(kind), tokens(3, 5), tokens(3, 4, seed=1)
    changes = {
        (2, 0): lambda cache: cache.batch_select_indices(torch.tensor([2, 0])),
        (0, 2): lambda cache: cache.batch_select_indices(torch.tensor([True, False, True])),
        (1, 1, 0): lambda cache: cache.reorder_cache(torch.tensor([1, 1, 0])),
        (0, 0, 1, 1, 2, 2): lambda cache: cache.batch_repeat_interleave(2),
    }
    for rows, change in changes.items():
        cache, straight = StateCache(), StateCache()
        read(model, cache, text_BT[:, :4])
        cache.activate_past_recording()
        read(model, cache, torch.cat([text_BT[:, 4:], tokens(3, 2, seed=2)], dim=1))
        cache.crop(-2)
        change(cache)
        assert cache.batch_size == len(rows)
        read(model, straight, text_BT[list(rows), :4])
        read(model, straight, text_BT[list(rows), 4:])
        chosen_BT = next_BT[torch.tensor(rows) % 3]
        torch.testing.assert_close(read(model, cache, chosen_BT), read(model, straight, chosen_BT))


def test_a_state_grows_and_is_measured():
    model, cache = model_of("attention"), StateCache(capacity=4)
    assert (cache.batch_size, cache.nbytes, cache.is_initialized) == (-1, 0, False)
    read(model, cache, tokens(1, 4))
    small = cache.nbytes
    read(model, cache, tokens(1, 30))
    assert cache.is_initialized and cache.nbytes > 7 * small
    cache.reset()
    assert (cache.get_seq_length(), cache.batch_size) == (0, -1)


def test_rows_that_do_not_fit_are_refused():
    model, cache = model_of("attention"), StateCache()
    read(model, cache, tokens(2, 4))
    with pytest.raises(UserError, match="past_key_values: 2 rows: expected 3"):
        read(model, cache, tokens(3, 1))
    with pytest.raises(UserError, match="holds states"):
        cache.update(torch.zeros(1), torch.zeros(1), 0)
