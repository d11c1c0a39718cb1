import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.training.ngram.interface import COUNTS, DESCRIPTION, load_ngram, write_ngram
from linnet.training.ngram.model import NGram, count_ngrams

TEXT = "the bird sang to the tree and the tree was glad. " * 3


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    tokenizer = Tokenizer.train("bytes", [])
    tokens = np.array([tokenizer.end_id, *tokenizer.encode(TEXT), tokenizer.end_id])
    model = NGram(count_ngrams(tokens, tokenizer.end_id, tokenizer.vocab_size, 3), tokenizer.end_id)
    folder = tmp_path_factory.mktemp("ngram") / "model"
    write_ngram(folder, model, tokenizer, {})
    return folder


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "model")


def without_checksum(folder):
    (folder / "manifest.json").unlink()
    return folder


def refused(folder):
    with pytest.raises(UserError) as error:
        load_ngram(folder)
    return str(error.value).replace(f"{folder}/", "")


def test_a_stored_model_is_read_back(written):
    read = load_ngram(written)
    tokens = np.array([256, *read.tokenizer.encode(TEXT)])
    again = NGram(count_ngrams(np.append(tokens, 256), 256, 257, 3), 256)
    np.testing.assert_array_equal(read.model.token_probabilities(tokens), again.token_probabilities(tokens))


def test_a_folder_of_another_kind_is_refused(tmp_path):
    assert "not an n-gram model (no ngram.json); `linnet ngram train` makes one" in refused(tmp_path)
    assert "not an n-gram model" in refused(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["counts.safetensors", "ngram.json", "tokenizer.json"])
def test_a_changed_byte_is_named(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    assert refused(folder).startswith(f"{name}: is not what linnet wrote")


def test_another_tokenizer_is_named(folder):
    without_checksum(folder)
    Tokenizer.train("bpe", [TEXT], 300).save(folder / "tokenizer.json")
    assert refused(folder).startswith("tokenizer.json: not the tokenizer whose tokens were counted (hash ")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("order", 4, "counts.safetensors: 4.keys: expected a row of whole numbers"),
        ("order", 0, "ngram.json: order: 0: must be greater than or equal to 1"),
        ("vocab_size", 300, "ngram.json: expected vocab_size 257 and end_id 256"),
        ("end_id", 3, "ngram.json: expected vocab_size 257 and end_id 256"),
        ("version", 2, "ngram.json: version: 2: must be 1"),
        ("smoothing", "Katz", "ngram.json: smoothing: 'Katz': must be 'modified Kneser-Ney'"),
    ],
)
def test_a_description_that_does_not_match_is_refused(folder, field, value, said):
    description = json.loads((without_checksum(folder) / DESCRIPTION).read_text())
    (folder / DESCRIPTION).write_text(json.dumps(description | {field: value}))
    assert refused(folder).startswith(said)


def changed(folder, name, change):
    tensors = load_file(without_checksum(folder) / COUNTS)
    tensors[name] = change(tensors[name].clone())
    save_file(tensors, folder / COUNTS)
    return refused(folder)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("1.keys", lambda keys: keys.flip(0).contiguous()),
        ("1.counts", lambda counts: counts - 1),
        ("1.suffixes", lambda suffixes: suffixes + 1),
        ("2.keys", lambda keys: keys.flip(0).contiguous()),
        ("2.keys", lambda keys: keys + 257 * 257),
        ("3.keys", lambda keys: keys - keys.max()),
        ("2.counts", lambda counts: counts * 0),
        ("3.suffixes", lambda suffixes: suffixes + 1000),
        ("3.suffixes", lambda suffixes: suffixes[1:].contiguous()),
    ],
)
def test_dangling_references_are_refused(folder, name, change):
    assert f"n-grams of length {name[0]}: expected" in changed(folder, name, change)


def test_tensors_of_another_dtype_are_refused(folder):
    assert changed(folder, "2.counts", lambda counts: counts.to(torch.float32)).startswith(
        "counts.safetensors: 2.counts: expected a row of whole numbers"
    )


def test_a_folder_without_counts(folder):
    (without_checksum(folder) / COUNTS).unlink()
    assert refused(folder) == "counts.safetensors: no such file"
