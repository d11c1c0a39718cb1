"""The overhead of passes that are split."""

import pytest
import torch

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
    from linnet.layers import passes

    counts, of = [], passes.SegmentIndices.of
    monkeypatch.setattr(passes.SegmentIndices, "of", lambda parts, *rest: counts.append(len(parts)) or of(parts, *rest))
    Decoder(spec_of(MIXERS[0]))(torch.zeros(2, 64, dtype=torch.int64), documents=[[5, 9, 40], [1]])
    assert sum(counts) == 4 + 2, "each document once, for two layers"
