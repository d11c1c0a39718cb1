"""Batches of conversations with windows of a text among them."""

import json
from pathlib import Path

import pytest
import torch

import linnet
from linnet.core.errors import UserError
from linnet.data.chat_setup import CONTROL_TOKENS, OWN_TEMPLATE
from linnet.data.chat_template import ChatTemplate
from linnet.data.loader import Batches, document_rows
from linnet.data.packing import PackedBatches
from linnet.data.prepare_conversations import prepare_conversations
from linnet.data.replay import ReplayBatches, open_replayed
from linnet.data.target_weights import TargetWeights
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer

CONTEXT, SIZE = 40, 4


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[TokenData, TokenData]:
    """Conversations with control tokens, and a text with the tokenizer without them."""
    folder, base = tmp_path_factory.mktemp("replay"), Tokenizer.train("bytes", [])
    rows = [{"instruction": f"q{n}", "output": "yes" * (1 + n % 3)} for n in range(40)]
    (folder / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    grown = base.with_special(CONTROL_TOKENS, ("<|im_end|>",))
    names = {"bos_token": "<|end|>", "eos_token": "<|im_end|>"}
    template = ChatTemplate(OWN_TEMPLATE, "test", names)
    prepare_conversations(folder / "chat.jsonl", folder / "chat", template, grown)
    (folder / "text.txt").write_text("<|endoftext|>".join(f"The {n}th day." for n in range(300)))
    linnet.prepare([str(folder / "text.txt")], folder / "text", "bytes")
    chat = TokenData.open(folder / "chat")
    return chat, open_replayed(str(folder / "text"), chat)


def batches_of(
    folders: tuple[TokenData, TokenData], packed: bool, share: float, apart: bool = False, per_row: bool = False
) -> ReplayBatches:
    chat, text = (data.split("train") for data in folders)
    if per_row:
        chat = TargetWeights(per_row=True).applied(chat)
    if packed:
        return ReplayBatches(*(PackedBatches(each, SIZE, CONTEXT, 3, True) for each in (chat, text)), share)
    rows = Batches(chat, SIZE, CONTEXT, 3, document_rows(chat), apart)
    return ReplayBatches(rows, Batches(text, SIZE, CONTEXT, 3), share, per_row)


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
def test_a_share_of_the_sequences_is_text_and_every_conversation_comes_once_in_an_epoch(folders, packed: bool):
    mixed = batches_of(folders, packed, 0.25)
    per_epoch, text_rows, seen = mixed.rows.examples_per_epoch, 0, []
    for number in range(-(-per_epoch * 4 // 3 // SIZE)):
        batch = mixed.batch(number)
        assert batch.tokens.shape[0] == SIZE and batch.tokens.shape[1] <= CONTEXT
        assert torch.equal(batch.tokens, mixed.batch(number).tokens)
        chats = (batch.tokens > 256).any(dim=1)
        text_rows += int((~chats).sum())
        if not packed:
            seen += [bytes(row[row < 256].tolist()) for row in batch.tokens[chats]]
        assert batch.weights is not None and (batch.weights.sum(dim=1) > 0).all()
        assert (batch.document_starts is not None) == packed
    assert abs(text_rows - 0.25 * SIZE * (number + 1)) <= 1
    if not packed:
        assert len(set(seen[:per_epoch])) == per_epoch


def test_rows_are_filled_up_to_the_width_of_a_window_with_what_does_not_count(folders):
    mixed = batches_of(folders, False, 0.5, apart=True)
    batch = mixed.batch(0)
    chats = (batch.tokens > 256).any(dim=1).tolist()
    assert sorted(chats) == [False, False, True, True] and batch.tokens.shape == (SIZE, CONTEXT)
    for row, is_chat in enumerate(chats):
        counted, starts = batch.weights[row], batch.document_starts[row]
        if not is_chat:
            assert counted.all() and starts == (0,)
            assert torch.equal(batch.targets[row, :-1], batch.tokens[row, 1:])
            continue
        assert len(starts) == 2 and starts[1] == int(counted.nonzero()[-1]) + 2  # the next row's first
        assert (batch.tokens[row, starts[1] + 1 :] == mixed.rows.sequence.end_id).all()
        assert bytes(batch.targets[row][counted][:-1].tolist()) in (b"yes", b"yesyes", b"yesyesyes")


def test_a_window_counts_as_much_as_a_conversation_where_these_count_equally(folders):
    batch = batches_of(folders, False, 0.5, per_row=True).batch(1)
    torch.testing.assert_close(batch.weights.sum(dim=1), torch.ones(SIZE))
    assert batch.total_weight == pytest.approx(SIZE)


@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
def test_the_shares_that_are_told_are_those_of_the_batches(folders, packed: bool):
    mixed = batches_of(folders, packed, 0.3)
    counted, of_text = 0, 0
    for number in range(60):
        batch = mixed.batch(number)
        chats = (batch.tokens > 256).any(dim=1)
        counted += batch.count
        of_text += int(batch.weights[~chats].count_nonzero())
    assert of_text / counted == pytest.approx(mixed.share_of_targets, abs=0.03)
    per_sequence = counted / (60 * SIZE)
    expected = mixed.mean_lengths[1] if mixed.mean_lengths else mixed.counted_share * CONTEXT
    assert per_sequence == pytest.approx(expected, rel=0.05)


def test_other_data_is_refused(folders, tmp_path: Path):
    chat, text = folders
    with pytest.raises(UserError, match=r"training\.replay\.data: .*: holds rows; expected a data folder of text"):
        open_replayed(str(chat.folder), chat)
    linnet.prepare([str(text.folder.parent / "text.txt")], tmp_path / "other", "char")
    with pytest.raises(UserError, match=r"^training\.replay\.data: none: no such file or folder"):
        open_replayed("none", chat)
    with pytest.raises(UserError, match="made with another tokenizer than those of"):
        open_replayed(str(tmp_path / "other"), chat)
