"""Rows that see each other, or what fills them up, are found before the first step."""

import pytest
import torch
from steps_of_rows import LENGTHS, MIXERS, conversations, decoder_of
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.loader import Batches, document_rows
from linnet.data.packing import PackedBatches
from linnet.training.separation import check_separation

CHAT = conversations(LENGTHS)


def packed(document_starts: bool = True) -> PackedBatches:
    return PackedBatches(CHAT, 2, 24, 0, document_starts)


def rows(document_starts: bool = False) -> Batches:
    return Batches(CHAT, 2, 64, 0, document_rows(CHAT), document_starts)


@pytest.mark.parametrize("mixer", MIXERS)
def test_rows_that_are_read_apart_pass(mixer: str) -> None:
    decoder = decoder_of(mixer)
    check_separation(decoder, packed(), pytest.fail)
    check_separation(decoder, rows(document_starts=not decoder.causal), pytest.fail)


@pytest.mark.parametrize("mixer", ["attention", "recurrence"])
def test_conversations_that_see_each_other_are_refused(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_of(mixer)
    hidden = decoder.hidden

    def without_documents(tokens_BT: Tensor, *args: object, documents: object = None, **others: object) -> Tensor:
        return hidden(tokens_BT, *args, **others)

    monkeypatch.setattr(decoder, "hidden", without_documents)
    with pytest.raises(UserError, match=r"packed: the first rows have a loss of \d+.* together and \d+.* each alone"):
        check_separation(decoder, packed())


def test_what_fills_a_row_up_and_is_seen_is_told() -> None:
    notes, decoder = list[str](), decoder_of("plga")
    with torch.no_grad():  # a layer that matters
        for parameter in decoder.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    check_separation(decoder, rows(), notes.append)
    (line,) = notes
    assert line.startswith("note: the first rows have a loss of") and line.endswith("or what fills them up")


def test_it_changes_no_weights_and_no_random_numbers() -> None:
    decoder, before = decoder_of("attention"), torch.random.get_rng_state()
    weights = [parameter.detach().clone() for parameter in decoder.parameters()]
    check_separation(decoder, packed())
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(map(torch.equal, weights, decoder.parameters()))
