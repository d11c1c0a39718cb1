"""Passes that are split: their overhead, and rows without a token."""

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.layers import passes
from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout, DocumentSegment
from linnet.layers.mixers.attention import Attention, AttentionSpec
from linnet.model.decoder import Decoder, meta_decoder
from linnet.model.spec import ModelSpec

MIXERS = [{"kind": "attention", "heads": 2}]


def spec_of(mixer: dict) -> ModelSpec:
    block = {"repeat": 2, "mixer": mixer, "feed_forward": {"kind": "glu", "hidden": 24}}
    plain = {"vocab_size": 257, "d_model": 16, "context_length": 64, "blocks": [block]}
    return ModelSpec.parse(plain, "test")


@torch.no_grad()
@pytest.mark.parametrize("mixer", MIXERS, ids=[mixer["kind"] for mixer in MIXERS])
def test_documents_in_a_row_are_read_without_waiting_for_the_device(mixer: dict) -> None:
    """On the device meta every synchronization is an error."""
    decoder = meta_decoder(spec_of(mixer))
    tokens_BT = torch.zeros(3, 64, dtype=torch.int64, device="meta")
    assert decoder.hidden(tokens_BT, documents=[[5, 9, 40], [], [0, 33]]).shape == (3, 64, 16)


def test_indices_of_documents_are_computed_once_per_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, of = [], passes.SegmentIndices.of
    monkeypatch.setattr(passes.SegmentIndices, "of", lambda parts, *rest: counts.append(len(parts)) or of(parts, *rest))
    Decoder(spec_of(MIXERS[0]))(torch.zeros(2, 64, dtype=torch.int64), documents=[[5, 9, 40], [1]])
    assert sum(counts) == 4 + 2, "each document once, for two layers"


@given(st.lists(st.integers(1, 12), min_size=1, max_size=7), st.integers(0, 30))
def test_groups_of_segments_cost_least(lengths: list[int], call_tokens: int) -> None:
    parts = [DocumentSegment(row, row, row + length, True, 0) for row, length in enumerate(lengths)]
    groups = passes.similar_lengths(parts, call_tokens)
    assert sorted(part.row for group in groups for part in group) == list(range(len(parts)))

    def cost(divided: list[list[int]]) -> int:
        return sum(len(group) * max(group) + call_tokens for group in divided)

    ordered, least = sorted(lengths), []
    for cuts in product([False, True], repeat=len(lengths) - 1):
        bounds = [0, *(place for place, cut in enumerate(cuts, 1) if cut), len(lengths)]
        least.append(cost([ordered[begin:end] for begin, end in pairwise(bounds)]))
    assert cost([[part.end - part.begin for part in group] for group in groups]) == min(least)


@pytest.mark.parametrize("kind", ["attention", "plga"])
def test_causal_layers_need_no_mask_for_documents_of_other_lengths(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the padding behind them, unless it would show; layers that see a whole sequence do not."""
    layouts, decoder = [], Decoder(spec_of({"kind": kind, "heads": 2}))
    mixer = type(decoder.mixers[0])
    forward = mixer.forward
    monkeypatch.setattr(
        mixer, "forward", lambda self, x, state, layout: layouts.append(layout) or forward(self, x, state, layout)
    )
    decoder(torch.zeros(1, 64, dtype=torch.int64), documents=[[0, 20]])
    assert [layout.padding for layout in layouts] == [None if kind == "attention" else (24, 0)] * 2
    layouts.clear()
    decoder(torch.zeros(1, 64, dtype=torch.int64), documents=[[0, 20]], record=AuxiliaryOutputs(outputs=[]))
    assert [layout.padding for layout in layouts] == [(24, 0)] * 2


@torch.no_grad()
def test_a_row_that_rests_far_behind_the_others_keeps_its_place():
    """It has no token in the chunk, and its position is larger than that of any token."""
    assert BatchLayout((100, 1), padding=(3, 0)).end(3) == 100
    torch.manual_seed(0)
    mixer = Attention(AttentionSpec(heads=2), 16).double()
    x_BTD = torch.randn(2, 104, 16, dtype=torch.float64)
    states = [mixer.initial_state(1, 104, torch.device("cpu"), torch.float64) for _ in range(2)]
    for row, (state, begun) in enumerate(zip(states, (100, 1), strict=True)):
        passes.run(mixer, x_BTD[row : row + 1, :begun], state, BatchLayout())
    joined = states[0].join(states[1:])
    out_BTD = passes.run(mixer, x_BTD[:, 1:4], joined, BatchLayout((100, 1), padding=(3, 0)))
    torch.testing.assert_close(out_BTD[1], mixer(x_BTD[1:, :4])[0, 1:])
    last_BTD = passes.run(mixer, torch.stack([x_BTD[0, 100:101], x_BTD[1, 4:5]]), joined, BatchLayout((100, 4)))
    torch.testing.assert_close(last_BTD[0], mixer(x_BTD[:1, :101])[0, 100:])
