"""Folders that linnet 0.1 wrote: tiny ones, and the batches that 0.1 read from them (`v01/expected.json`)."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from linnet.core.checksum import with_checksum
from linnet.core.errors import UserError
from linnet.core.migration import CHECKSUM
from linnet.data.loader import Batch, Batches, document_windows, validation_batches
from linnet.data.token_data import TokenData, read_manifest

FOLDERS = Path(__file__).parent / "v01"
EXPECTED = json.loads((FOLDERS / "expected.json").read_text())


def plain(batch: Batch) -> list[Any]:
    return [batch.tokens.tolist(), batch.labels.tolist()]


def test_text_gives_the_same_batches():
    data = TokenData.open(FOLDERS / "text")
    sequence, held_out = data.split("train"), data.split("validation")
    assert sequence.document_starts.tolist() == [0, 19, 35, 72, 76]
    windows = document_windows(sequence, 16).whole_windows(sequence, 16)
    for spans, name in ((None, "batches"), (windows, "document_batches")):
        batches = Batches(sequence, 2, 16, 3, spans)
        assert [plain(batches.batch(number)) for number in range(3)] == EXPECTED["text"][name]
    found = validation_batches(held_out, data.spans(held_out, 16), 2)
    assert [plain(batch) for batch in found] == EXPECTED["text"]["validation"]
    assert data.sources("train").tolist() == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("kind", ["pairs", "labels"])
def test_rows_give_the_same_batches(kind: str):
    data = TokenData.open(FOLDERS / kind)
    sequence, held_out = data.split("train"), data.split("validation")
    batches = Batches(sequence, 2, 64, 3, data.spans(sequence, 64))
    assert [plain(batches.batch(number)) for number in range(3)] == EXPECTED[kind]["batches"]
    found = validation_batches(held_out, data.spans(held_out, 64), 2)
    assert [plain(batch) for batch in found] == EXPECTED[kind]["validation"]
    info = data.manifest.splits["train"]
    assert (info.documents, info.tokens) == (len(sequence.document_starts), len(sequence))


@pytest.mark.parametrize("kind", ["text", "pairs", "labels"])
def test_folders_of_0_1_keep_their_hash(kind: str):
    assert TokenData.open(FOLDERS / kind).hash == EXPECTED[kind]["hash"]


def changed(folder: Path, tmp_path: Path, **settings: Any) -> Path:
    shutil.copytree(folder, tmp_path / "data")
    path = tmp_path / "data" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["settings"] |= settings
    path.write_text(json.dumps(with_checksum(manifest, CHECKSUM)))
    return tmp_path / "data"


def test_a_changed_manifest_is_found(tmp_path: Path):
    path = changed(FOLDERS / "text", tmp_path) / "manifest.json"
    path.write_text(path.read_text().replace("bytes", "char"))
    with pytest.raises(UserError, match=r"manifest\.json: is not what linnet wrote"):
        read_manifest(path.parent)


def test_documents_of_unequal_length_are_refused(tmp_path: Path):
    data = TokenData.open(changed(FOLDERS / "text", tmp_path, labels=0))
    with pytest.raises(UserError, match=r"train: its documents are not rows|documents; expected pairs"):
        data.split("train")


def test_a_blank_that_is_not_a_number_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="settings: labels: 'none': expected a token's number"):
        TokenData.open(changed(FOLDERS / "labels", tmp_path, labels="none"))
