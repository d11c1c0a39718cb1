import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from same_gradients import assert_same_with_gradients, double

from linnet.ops import blocked_attention as blocks
from linnet.ops.attention import KeyRange, attention, attention_mask, attention_reference
from linnet.ops.relative import Relative, distances, gathered_attention

WHICH = st.sampled_from([(True, False, False), (False, True, False), (False, False, True), (True, True, True)])


def tables(heads: int, entries: int, which: tuple[bool, bool, bool]) -> Relative:
    shapes = (heads, entries), (entries, 4), (entries, 4)
    return Relative(*(double(*shape) if wanted else None for shape, wanted in zip(shapes, which, strict=True)))


@given(
    batch=st.integers(1, 3),
    tokens=st.integers(1, 13),
    heads=st.sampled_from([(4, 4), (4, 2), (3, 1)]),
    entries=st.integers(1, 15),
    which=WHICH,
    window=st.sampled_from([None, 1, 3, 20]),
    padded=st.booleans(),
    of_a_block=st.sampled_from([(3, 1), (4, 60), (16, 1 << 19)]),
)
def test_blocks_equal_the_definition_with_all_gradients(
    batch, tokens, heads, entries, which, window, padded, of_a_block
):
    q, k, v = (double(batch, count, tokens, 4) for count in (heads[0], heads[1], heads[1]))
    relative = tables(heads[0], entries, which)
    padding_B = torch.arange(batch).clamp(max=tokens - 1) if padded else None
    given = (q, k, v, KeyRange(padding_B, window), 0.3, relative)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "OTHERWISE", of_a_block[0])
        patch.setattr(blocks, "SCORES_OF_A_BLOCK", of_a_block[1])
        fast = attention(*given)
        wanted = (q, k, v, *(table for table in relative if table is not None))
        assert_same_with_gradients(fast, attention_reference(*given), wanted)


@given(
    queries=st.integers(1, 6),
    past=st.integers(0, 9),
    entries=st.integers(1, 12),
    which=WHICH,
    apart=st.booleans(),
    window=st.sampled_from([None, 3]),
)
def test_behind_a_past_it_is_the_definition_with_all_gradients(queries, past, entries, which, apart, window):
    """In rows at different positions too."""
    keys = past + queries
    q, k, v = double(2, 4, queries, 4), double(2, 2, keys, 4), double(2, 2, keys, 4)
    relative, device = tables(4, entries, which), q.device
    last_BT = torch.arange(past, keys) - torch.tensor([[0], [past]]) if apart else None
    key_range = KeyRange(None, window, last_BT=last_BT)
    mask, at = attention_mask(queries, keys, device, key_range), distances(queries, keys, device, last_BT)
    fast = gathered_attention(q, k, v, mask, at, 0.3, relative)
    slow = attention_reference(q, k, v, key_range, 0.3, relative)
    assert_same_with_gradients(fast, slow, (q, k, v, *(table for table in relative if table is not None)))


@pytest.mark.parametrize("tokens", [63, 64, 65, 200])
def test_blocks_of_full_size(tokens: int):
    q, k, v = double(2, 4, tokens, 4), double(2, 2, tokens, 4), double(2, 2, tokens, 4)
    relative = tables(4, 70, (True, True, True))
    given = (q, k, v, KeyRange(), None, relative)
    assert_same_with_gradients(attention(*given), attention_reference(*given), (q, k, v, *relative))


def test_what_all_far_keys_share_can_be_taken_from_all():
    """The ground on which tables end somewhere: weights sum to 1."""
    q, k, v, bias = double(1, 2, 9, 4), double(1, 2, 9, 4), double(1, 2, 9, 4), double(2, 12)
    whole, less = (attention_reference(q, k, v, relative=Relative(bias - shift)) for shift in (0.0, 3.0))
    torch.testing.assert_close(whole, less)


def test_no_table_has_an_entry_for_each_pair():
    """Of 4,096 tokens: the largest tensor of a pass is a block's scores, or a table of 64 rows."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                self.elements = max(self.elements, out.numel())
            return out

    tokens = 4096
    q, k, v = torch.randn(3, 1, 2, tokens, 8, requires_grad=True)
    bias = -torch.arange(tokens).float() * torch.tensor([[0.5], [0.1]])
    relative = Relative(bias.requires_grad_(), torch.randn(16, 8, requires_grad=True), torch.randn(16, 8))
    with Largest() as largest:
        attention(q, k, v, relative=relative).sum().backward()
    assert largest.elements <= 2 * 64 * (tokens + 63) < 2 * tokens**2 / 32


def test_extreme_tables_stay_finite():
    q, k, v = (1e4 * torch.randn(3, 1, 2, 70, 8)).requires_grad_()
    relative = Relative(1e4 * torch.randn(2, 70), 1e2 * torch.randn(9, 8), torch.randn(9, 8))
    out = attention(q, k, v, relative=relative)
    assert out.isfinite().all() and torch.autograd.grad(out.sum(), q)[0].isfinite().all()
