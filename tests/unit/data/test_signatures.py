"""Files of signatures are complete, unchanged and of the same settings, or refused."""

import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.data.minhash import MinHashSpec
from linnet.data.signatures import HEADER_BYTES, SignatureWriter, read_signatures, record_type

SPEC = MinHashSpec(bands=3, rows=2)


@pytest.fixture
def written(tmp_path):
    records = np.zeros(10, record_type(SPEC))
    records["shingles"] = np.arange(10)
    records["bands"] = np.arange(30).reshape(10, 3)
    with SignatureWriter(tmp_path / "signatures", SPEC) as writer:
        writer.write(records[:4])
        writer.write(records[4:])
    return tmp_path / "signatures", records


def test_records_are_read_as_they_were_written(written):
    path, records = written
    assert np.array_equal(read_signatures(path, SPEC), records)
    assert path.stat().st_size == HEADER_BYTES + 10 * (16 + 4 + 4 + 3 * 8)


def test_a_file_without_documents_is_complete(tmp_path):
    with SignatureWriter(tmp_path / "none", SPEC):
        pass
    assert len(read_signatures(tmp_path / "none", SPEC)) == 0


@pytest.mark.parametrize("lost", [1, 48, 480])
def test_truncated_files_are_refused(written, lost):
    path, _ = written
    path.write_bytes(path.read_bytes()[:-lost])
    with pytest.raises(UserError, match=r"signatures: cut off: [\d,]+ bytes; expected 1,504 for 10 documents"):
        read_signatures(path, SPEC)


@pytest.mark.parametrize("size", [0, 100, HEADER_BYTES - 1000])
def test_files_without_a_header_are_refused(written, size):
    path, _ = written
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UserError, match="not a complete file of signatures"):
        read_signatures(path, SPEC)


def test_a_file_whose_writing_was_broken_off_is_refused(tmp_path):
    with pytest.raises(KeyboardInterrupt), SignatureWriter(tmp_path / "signatures", SPEC) as writer:
        writer.write(np.zeros(3, record_type(SPEC)))
        raise KeyboardInterrupt
    with pytest.raises(UserError, match="not a complete file of signatures"):
        read_signatures(tmp_path / "signatures", SPEC)


def test_changed_records_are_refused(written):
    path, _ = written
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="not those that were written"):
        read_signatures(path, SPEC)


def test_swapped_bands_and_rows_are_refused(written):
    with pytest.raises(UserError, match="made with bands 3; expected 2"):
        read_signatures(written[0], MinHashSpec(bands=2, rows=3))
    with pytest.raises(UserError, match="made with shingle_words 5; expected 4"):
        read_signatures(written[0], MinHashSpec(bands=3, rows=2, shingle_words=4))
