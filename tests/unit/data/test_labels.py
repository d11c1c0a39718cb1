"""Rows with answers, from a folder as they were written, and in training batches."""

from pathlib import Path

import numpy as np
import pytest
import torch

from linnet.core.checksum import MANIFEST, read_checked_json, write_checked_json
from linnet.core.errors import UserError
from linnet.data.labels import LabeledRow, LabeledRows, prepare_labels, rows_of
from linnet.data.pairs import PairBatches
from linnet.data.shards import Shard, TokenData, TokenSequence
from linnet.data.tokenizer import Tokenizer
from linnet.ops.cross_entropy import IGNORE_INDEX

END, NO = 256, IGNORE_INDEX
TRAIN = [
    LabeledRow([END, 1, 2, 3], [NO, NO, 7, 2]),
    LabeledRow([END, 4], [NO, 5]),
    LabeledRow([END, 9, 9, 9, 9, 9], [6, NO, NO, NO, NO, 8]),
]


@pytest.fixture
def data(tmp_path: Path) -> TokenData:
    prepare_labels(TRAIN, TRAIN[:1], tmp_path / "data", Tokenizer.train("bytes", []), "rows")
    return TokenData.open(tmp_path / "data")


def test_rows_come_back_as_they_were(data: TokenData):
    rows = rows_of(data, "train")
    assert len(rows) == 3 and data.holds_rows and not data.holds_pairs
    tokens, targets = rows.rows([1, 0])
    assert tokens.tolist() == [[END, 4, END, END], [END, 1, 2, 3]]
    assert targets.tolist() == [[NO, 5, NO, NO], [NO, NO, 7, 2]]
    assert rows.target_lengths.tolist() == [2, 1, 2] and rows.input_lengths.tolist() == [2, 1, 4]
    assert len(rows_of(data, "validation")) == 1


def test_the_manifest_counts_documents_and_bytes(data: TokenData):
    info = data.manifest.splits["train"]
    assert (info.documents, info.tokens) == (6, (4 + 2 + 6) + (5 + 3 + 7) + 1)
    assert data.manifest.sources[0].file == "rows"
    assert info.bytes == 3 + 4 + 1 + 2 + 5 + 6, "what is read, and an answer or blank behind each"


def test_batches_hold_every_row_once_in_an_epoch(data: TokenData):
    batches = PairBatches(rows_of(data, "train"), batch_size=3, seed=0)
    assert sorted((targets != NO).sum().item() for targets in batches.batch(0)[1]) == [1, 2, 2]
    assert all(torch.equal(one, other) for one, other in zip(batches.batch(5), batches.batch(5), strict=True))
    assert batches.mean_lengths == (7 / 3, 5 / 3)


def test_a_row_that_is_too_long_is_named(data: TokenData):
    rows_of(data, "train").check_lengths(6, apart=False)
    with pytest.raises(UserError, match=r"train: row 3: 6 tokens: more than the context of 5; .*context_length=6"):
        rows_of(data, "train").check_lengths(5, apart=False)


@pytest.mark.parametrize("tokens", [[END], [END, 1, END, 2, END], [END, 1, END, 0, 2, END, 3, END]])
def test_documents_that_are_no_rows_are_refused(tokens: list[int]):
    with pytest.raises(UserError, match="here: its documents are not rows, each with as many answers or blanks"):
        LabeledRows(TokenSequence("here", [Shard(np.array(tokens))]), END, 0)


def test_a_blank_that_is_no_number_is_refused(data: TokenData):
    path = data.folder / MANIFEST
    plain = read_checked_json(path)
    plain["settings"]["labels"] = "none"
    write_checked_json(path, plain)
    with pytest.raises(UserError, match="settings: labels: 'none': expected a token's number"):
        rows_of(TokenData.open(data.folder), "train")


def test_a_tokenizer_without_a_blank_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tokenizer = Tokenizer.train("bytes", [])
    monkeypatch.setattr(tokenizer, "encode", lambda text: [])
    with pytest.raises(UserError, match=r"tokenizer: has no token for the character U\+0000"):
        prepare_labels(TRAIN, TRAIN, tmp_path / "data", tokenizer, "rows")
    assert not (tmp_path / "data").exists()
