"""Properties of all three states of TED: chunks, padding, forks, documents, rows."""

import pytest
import torch
from examples import padded_view
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from small_teds import CONTEXTS, LENGTH, build, build_all, contexts, empty, feed, inputs, kinds

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.mixers.ted import BankCache
from linnet.layers.passes import run


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(list(CONTEXTS)), st.lists(st.integers(1, LENGTH - 1), max_size=6), st.sampled_from([1, 4, None]))
def test_every_split_gives_the_same_outputs(name, cuts, heads):
    mixer, x = build(heads) if heads else build_all(), inputs()
    whole = feed(mixer, x, empty(mixer, CONTEXTS[name]), [0, LENGTH])
    torch.testing.assert_close(feed(mixer, x, empty(mixer, CONTEXTS[name]), [0, *sorted(cuts), LENGTH]), whole)


@contexts
@kinds
def test_left_padding_changes_nothing_for_the_real_tokens(build, context):
    mixer, x = build(), inputs(3)
    paddings = (5, 0, 2)
    padded = feed(mixer, x, empty(mixer, context, 3), [0, 9, 17, LENGTH], paddings)
    for row, padding in enumerate(paddings):
        bounds = [0, *(bound - padding for bound in (9, 17, LENGTH))]
        alone = feed(mixer, x[row : row + 1, padding:], empty(mixer, context, 1), bounds)
        torch.testing.assert_close(padded[row : row + 1, padding:], alone)


@contexts
@kinds
def test_a_fork_a_copy_from_a_file_and_chosen_rows_go_on_as_the_state_itself(build, context):
    mixer, x = build(), inputs()
    state = empty(mixer, context)
    feed(mixer, x, state, [0, 11])
    fork, loaded = state.fork(), empty(mixer, context).with_tensors(load(save(state.tensors())))
    rows = torch.tensor([1, 0, 1])
    chosen = state.select(rows)
    rest = feed(mixer, x, state, [11, 12, LENGTH])
    for other in (fork, loaded):
        torch.testing.assert_close(feed(mixer, x, other, [11, 12, LENGTH]), rest)
    torch.testing.assert_close(feed(mixer, x[rows], chosen, [11, LENGTH]), rest[rows])


@contexts
@kinds
def test_a_forgotten_state_is_like_a_new_one(build, context):
    mixer, x = build(), inputs()
    state = empty(mixer, context)
    feed(mixer, x, state, [0, LENGTH])
    torch.testing.assert_close(
        feed(mixer, x, state.forget(), [0, 7, LENGTH]), feed(mixer, x, empty(mixer, context), [0, LENGTH])
    )


@contexts
@kinds
def test_all_rows_of_a_chunk_can_have_padding(build, context):
    mixer, x = build(), inputs()
    padded = run(mixer, x[:, :9], empty(mixer, context), padded_view(0, 9, [3, 2]))
    for row, padding in enumerate((3, 2)):
        alone = run(mixer, x[row : row + 1, padding:9], empty(mixer, context, 1), BatchLayout())
        torch.testing.assert_close(padded[row : row + 1, padding:], alone)


@contexts
def test_gradients_reach_keys_and_convolution_from_the_first_chunk(context):
    if isinstance(context, BankCache):
        pytest.skip("no gradients flow through the bank")
    mixer = build_all()
    mixer(inputs(), empty(mixer, context)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in mixer.parameters())


@torch.no_grad()
@contexts
@kinds
def test_documents_in_one_row_start_with_an_empty_state(build, context):
    mixer, x = build(), inputs()
    state = empty(mixer, context)
    together = run(mixer, x[:, :30], state, BatchLayout(documents=((7, 20), ())))
    later = run(mixer, x[:, 30:], state, BatchLayout((10, 30)))
    for row, begin in ((0, 20), (1, 0)):
        alone = empty(mixer, context, 1)
        own = x[row : row + 1]
        expected = [
            run(mixer, own[:, begin:30], alone, BatchLayout(0)),
            run(mixer, own[:, 30:], alone, BatchLayout(30 - begin)),
        ]
        found = torch.cat([together[row : row + 1, begin:], later[row : row + 1]], dim=1)
        torch.testing.assert_close(found, torch.cat(expected, dim=1))


@torch.no_grad()
@contexts
@kinds
def test_rows_read_pieces_of_different_lengths(build, context):
    mixer, x = build(), inputs()
    together, alone = empty(mixer, context), [empty(mixer, context, 1) for _ in range(2)]
    run(mixer, x[:, :9], together, BatchLayout(0))
    joint = torch.stack([torch.cat([x[0, :4], x[0, 9:12]]), x[1, 9:16]])
    out = run(mixer, joint, together, BatchLayout(9, (4, 0)))
    for row, length in ((0, 3), (1, 7)):
        run(mixer, x[row : row + 1, :9], alone[row], BatchLayout(0))
        expected = run(mixer, x[row : row + 1, 9 : 9 + length], alone[row], BatchLayout(9))
        torch.testing.assert_close(out[row : row + 1, 7 - length :], expected)
