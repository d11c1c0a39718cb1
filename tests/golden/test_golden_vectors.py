"""Word vectors as gensim reads them: the files of `writers/write_vectors.py`."""

import gzip
import shutil

import pytest

from golden_file import FOLDER, read
from linnet.data.word_vectors import read_vectors

FORMS = ["txt", "bin", "glove.txt"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compressed", [False, True])
def test_every_vector_is_gensims_bit_for_bit(tmp_path, form, compressed):
    arrays, config = read("vectors_small.safetensors")
    words, expected_WE = config["words"][form], arrays[form].numpy()
    path = FOLDER / f"vectors_small.{form}"
    if compressed:
        with path.open("rb") as whole, gzip.open(tmp_path / "packed.gz", "wb") as packed:
            shutil.copyfileobj(whole, packed)
        path = tmp_path / "packed.gz"
    found = read_vectors(path, words, 8)
    assert list(found) == words and len(words) == 15
    for word, expected_E in zip(words, expected_WE, strict=True):
        assert found[word].tobytes() == expected_E.tobytes(), word
