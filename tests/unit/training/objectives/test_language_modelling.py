import json
import math

import pytest
import torch
import torch.nn.functional as F

from linnet.data.loader import Batch
from linnet.model.decoder import Decoder
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.run import train_run


@pytest.fixture
def setup(tiny_model):
    def make(mixer="attention"):
        torch.manual_seed(0)
        return Decoder(tiny_model(mixer)), *torch.randint(257, (2, 3, 16)).unbind()

    return make


@pytest.mark.parametrize("mixer", ["attention", "ted", "plga"])
def test_it_is_the_summed_cross_entropy(mixer, setup):
    decoder, inputs, targets = setup(mixer)
    loss = next_token_loss(decoder, Batch(inputs, targets))
    expected = F.cross_entropy(decoder(inputs).flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(loss.total, expected, check_dtype=False)
    assert loss.nats.item() == loss.total.item() and not loss.nats.requires_grad


def test_logits_of_low_precision_are_summed_in_float64(setup):
    decoder, inputs, targets = setup()
    with torch.autocast("cpu", torch.bfloat16):
        assert decoder(inputs).dtype == torch.bfloat16
        assert next_token_loss(decoder, Batch(inputs, targets)).total.dtype == torch.float64


@pytest.mark.parametrize("mixer", ["attention", "ted", "plga"])
def test_with_document_mask_documents_are_independent(mixer, setup):
    decoder, inputs, targets = setup(mixer)
    apart = next_token_loss(decoder, Batch(inputs, targets, document_starts=((5,), (), (0, 9))))
    pieces = [(0, 0, 5), (0, 5, 16), (1, 0, 16), (2, 0, 9), (2, 9, 16)]
    alone = sum(
        next_token_loss(decoder, Batch(inputs[b : b + 1, i:j], targets[b : b + 1, i:j])).total for b, i, j in pieces
    )
    torch.testing.assert_close(apart.total, alone, rtol=1e-5, atol=1e-5)
    assert abs(apart.nats - next_token_loss(decoder, Batch(inputs, targets)).nats) > 1e-3


def test_z_loss_is_minimized_and_logged_but_not_part_of_the_likelihood(setup, tmp_path, tiny_run):
    decoder, inputs, targets = setup()
    plain, found = (
        next_token_loss(decoder, Batch(inputs, targets)),
        next_token_loss(decoder, Batch(inputs, targets), z_loss=0.1),
    )
    squares = decoder(inputs).logsumexp(-1).square().sum()
    torch.testing.assert_close(found.total, plain.total + 0.1 * squares, check_dtype=False)
    torch.testing.assert_close(found.nats, plain.nats)
    torch.testing.assert_close(found.terms["z_loss"], squares, check_dtype=False)
    train_run(tiny_run(z_loss=1.0), tmp_path)
    terms = [json.loads(line)["terms"]["z_loss"] for line in (tmp_path / "metrics.jsonl").open()]
    assert terms[0] == pytest.approx(math.log(257) ** 2, rel=0.2) and terms[-1] < terms[0]


def test_document_mask_changes_training(tmp_path, tiny_run):
    nats = {}
    for document_mask in (False, True):
        run = tiny_run("ted", document_mask=document_mask, context_length=16, windows="stream")
        nats[document_mask] = train_run(run, tmp_path / str(document_mask)).summary["validation"]["nats_per_token"]
    assert nats[False] != nats[True]
