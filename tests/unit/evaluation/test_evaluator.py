"""What a model in few bits loses by what its state rounds is part of what is measured."""

import pytest
import torch
from small_models import small_decoder

from linnet.evaluation.documents import WindowBatch
from linnet.evaluation.evaluator import WindowEvaluator
from linnet.inference.weights import convert_weights
from linnet.layers.mixers.attention import AttentionSpec
from linnet.layers.mixers.mamba import MambaSpec

TOKENS = torch.randint(23, (2, 13), generator=torch.Generator().manual_seed(0))
BATCH = WindowBatch(TOKENS[:, :-1], TOKENS[:, 1:], torch.zeros(2, 12, dtype=torch.int64))


@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_windows_are_read_as_a_stream_is(weights: str):
    decoder = small_decoder(AttentionSpec(heads=2))
    convert_weights(decoder, weights)
    found = WindowEvaluator.create(decoder, None, 12, 100).losses(BATCH).nats
    with torch.no_grad():
        hidden = [decoder.hidden(BATCH.inputs_BT, state) for state in (decoder.initial_state(2, 12), None)]
        by_stream, at_once = (decoder.each_loss(each, BATCH.targets_BT).nats for each in hidden)
    torch.testing.assert_close(found, by_stream)
    difference = (found - at_once).abs().max()
    assert difference > 1e-4 if weights == "int8" else difference < 1e-4


@pytest.mark.parametrize(("mixer", "rounds"), [(AttentionSpec(heads=2), True), (MambaSpec(), False)])
def test_windows_are_read_without_a_state_that_does_not_round(mixer: AttentionSpec | MambaSpec, rounds: bool):
    decoder = small_decoder(mixer)
    assert not WindowEvaluator.create(decoder, None, 12, 100).rounds
    convert_weights(decoder, "int4")
    assert WindowEvaluator.create(decoder, None, 12, 100).rounds == rounds
