"""The results of an evaluation do not depend on the batch size, for all kinds of layers."""

import numpy as np
import pytest
import torch
from examples import EXAMPLES as MIXER_EXAMPLES
from examples import FEED_FORWARD_EXAMPLES, WIDTH, first_of_its_kind, randomized

from linnet.data.pieces import ByteCounts
from linnet.evaluation.documents import batches, sliding
from linnet.evaluation.evaluator import WindowEvaluator
from linnet.evaluation.likelihood import LossSums
from linnet.layers.registry import MIXERS
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

VOCABULARY, CONTEXT = 13, 24
BYTES = np.array([0, *range(1, VOCABULARY)])
LENGTHS = (40, 1, 7, 24, 25, 3, 60, 7)
MIXERS_OF_KINDS = [spec for spec in MIXER_EXAMPLES if first_of_its_kind(spec)]
FEED_FORWARDS_OF_KINDS = [spec for spec in FEED_FORWARD_EXAMPLES if first_of_its_kind(spec)]
KINDS = [
    *(pytest.param(spec, FEED_FORWARD_EXAMPLES[0], id=spec.kind) for spec in MIXERS_OF_KINDS),
    *(pytest.param(MIXER_EXAMPLES[0], spec, id=spec.kind) for spec in FEED_FORWARDS_OF_KINDS),
]


def _decoder(mixer, feed_forward):
    block = {"mixer": mixer, "feed_forward": feed_forward, "repeat": 2}
    plain = {"vocab_size": VOCABULARY, "d_model": WIDTH, "context_length": CONTEXT, "blocks": [block]}
    return randomized(Decoder(ModelSpec.parse({**plain, "head": {"norm": {"kind": "rms"}}}, "test"))).eval()


def _documents():
    random = np.random.default_rng(0)
    return [np.array([0, *random.integers(1, VOCABULARY, length), 0]) for length in LENGTHS]


def _losses(decoder, tokens_at_once, stride):
    calibration = torch.arange(1, 9)[None] % VOCABULARY
    reader, sums = (
        WindowEvaluator.create(decoder, calibration, CONTEXT, tokens_at_once),
        LossSums(len(LENGTHS), ByteCounts.create(BYTES), CONTEXT),
    )
    for batch in batches(sliding(enumerate(_documents()), CONTEXT, stride), tokens_at_once):
        on_device = batch.to(decoder.device)
        sums.add(reader.losses(on_device), on_device.inputs_BT, on_device.targets_BT, batch.documents_BT)
    return sums


@pytest.mark.parametrize(("mixer", "feed_forward"), KINDS)
def test_experts_used_do_not_depend_on_batches_or_chunks(mixer, feed_forward):
    """One batch, single windows, and windows in chunks of 5 tokens agree in float32 to 1e-6."""
    decoder = _decoder(mixer, feed_forward)
    whole, single, chunks = (_losses(decoder, tokens, stride=10) for tokens in (10_000, CONTEXT, 5))
    expected = whole.documents()
    assert expected.tokens_N.tolist() == [length + 1 for length in LENGTHS]
    for found in (single, chunks):
        np.testing.assert_allclose(found.documents().nats_N.sum(), expected.nats_N.sum(), rtol=1e-6)
        np.testing.assert_allclose(found.documents().nats_N, expected.nats_N, rtol=1e-5)
        assert np.array_equal(found.documents().correct_N, expected.correct_N)
        for one, other in zip(found.positions(), whole.positions(), strict=True):
            assert one.nats_per_token == pytest.approx(other.nats_per_token, rel=1e-5)


def test_examples_cover_every_kind():
    assert {spec.kind for spec in MIXERS_OF_KINDS} == set(MIXERS)
