"""Behavior of states that does not depend on the sublayer."""

import pytest
import torch

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.state import NoState, State, write_chunk
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec


@pytest.mark.parametrize("starts", [2, (2, 5)])
@pytest.mark.parametrize("places", [1, 2])
def test_a_chunk_is_written_in_a_graph_as_in_place(
    starts: int | tuple[int, int], places: int, monkeypatch: pytest.MonkeyPatch
):
    kept, new = torch.randn(2, 9, 9, 3), torch.randn(2, 9, 9, 3).narrow(places, 0, 3)
    layout = BatchLayout((starts, starts) if isinstance(starts, int) else starts)
    before = kept.clone()
    assert write_chunk(kept, new, layout, places) is kept
    assert not torch.equal(before, kept)
    monkeypatch.setattr("torch.compiler.is_exporting", lambda: True)
    assert torch.equal(write_chunk(before, new, layout, places), kept)


def test_an_empty_state_can_be_cropped_to_any_length_and_sums_only_to_0():
    NoState().crop(3)
    with pytest.raises(NotImplementedError, match="sums over all tokens"):
        State().crop(3)
    State().crop(0)


def test_a_decoder_of_attention_can_be_cropped():
    decoder = Decoder(ModelSpec.load("tiny-attention"))
    tokens_BT = torch.arange(8)[None]
    with torch.no_grad():
        state = decoder.initial_state(1, 8)
        decoder(torch.cat([tokens_BT[:, :5], tokens_BT[:, :3]], dim=1), state)
        state.crop(5)
        torch.testing.assert_close(decoder(tokens_BT[:, 5:], state), decoder(tokens_BT)[:, 5:], atol=1e-4, rtol=1e-4)
