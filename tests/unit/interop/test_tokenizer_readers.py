import json
import sys
from pathlib import Path

import pytest
from small_sentencepieces import trained
from small_tokenizers import byte_level, write_ranks, write_slow_folder

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.interop.tiktoken import ENCODINGS
from linnet.interop.tokenizer_import import import_tokenizer
from linnet.interop.tokenizer_readers import LibraryReader, hold_to, open_reader, proof_texts, prove


def make(kind: str, folder: Path) -> tuple[Path, str | None]:
    """A source of a kind, and how its ranks split a text."""
    if kind == "tiktoken":
        return write_ranks(folder / "ranks"), "cl100k"
    if kind == "transformers":
        path = write_slow_folder(folder / "slow", bos_token=None, unk_token=None)
    elif kind == "sentencepiece":
        path = folder / "model"
        path.write_bytes(trained())
    else:
        path = folder / "tokenizer.json"
        byte_level(ENCODINGS["gpt2"].pattern, special=("<|endoftext|>",)).save(str(path))
    return path, None


@pytest.mark.parametrize("kind", ["tiktoken", "transformers", "sentencepiece", "tokenizers"])
def test_an_import_has_the_ids_of_its_own_library(kind: str, tmp_path: Path):
    path, pattern = make(kind, tmp_path)
    proof = prove(import_tokenizer(path, pattern).tokenizer, path, pattern)
    assert proof.by is not None and proof.by.startswith(f"{kind} ")
    assert proof.differences == () and proof.texts >= 70


def test_another_tokenizer_is_told_apart(tmp_path: Path):
    """Its merges are the same; only how it splits a text differs."""
    path = write_ranks(tmp_path / "ranks")
    proof = prove(import_tokenizer(path, "cl100k").tokenizer, path, "gpt2")
    assert 0 < len(proof.differences) <= proof.differing < proof.texts
    assert proof.differences[0].name == "bytes as characters"


def test_the_first_place_is_shown_with_what_is_before_it():
    tokenizer = Tokenizer.train("bytes", [])
    reader = LibraryReader("here", lambda text: [*b"the ", 300, 5] if "bird" in text else list(text.encode()))
    proof = hold_to(reader, tokenizer, [("one", "a tree"), ("two", "the bird"), ("three", "a bird")], most=1)
    assert (proof.texts, proof.differing, len(proof.differences)) == (3, 2, 1)
    found = proof.differences[0]
    assert (found.name, found.place, found.before) == ("two", 4, "the ")
    assert found.ours == ("98='b'", "105='i'", "114='r'", "100='d'") and found.theirs == ("300", "5='\\x05'")
    shorter = hold_to(LibraryReader("here", lambda text: [97]), tokenizer, [("one", "ab")]).differences[0]
    assert (shorter.place, shorter.theirs) == (1, ()) and str(shorter).endswith("98='b'; there: the end")


def test_a_model_in_a_folder_is_read_by_sentencepiece(tmp_path: Path):
    (tmp_path / "tokenizer.model").write_bytes(trained())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    assert open_reader(tmp_path).name.startswith("sentencepiece ")


@pytest.mark.parametrize("kind", ["tiktoken", "transformers", "sentencepiece"])
def test_without_the_library_nothing_is_compared_and_it_is_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, pattern = make(kind, tmp_path)
    tokenizer = import_tokenizer(path, pattern).tokenizer
    monkeypatch.setitem(sys.modules, kind, None)
    proof = prove(tokenizer, path, pattern)
    assert (proof.by, proof.texts) == (None, 0) and f"needs {kind}: pip install 'linnet[{kind}]'" in str(proof.missing)
    with pytest.raises(UserError, match=f"needs {kind}"):
        open_reader(path, pattern)


def test_texts_of_a_proof_are_the_same_every_time_and_hold_all_pieces():
    tokenizer = Tokenizer.train("bpe", ["the bird sang to the tree, and the tree was glad. " * 20], 300)
    texts = dict(proof_texts(tokenizer))
    assert texts == dict(proof_texts(tokenizer))
    used = {token for text in texts.values() for token in tokenizer.encode(text)}
    whole = {token for token, text in enumerate(tokenizer.texts()) if text and len(text) == 1 and text.isascii()}
    assert whole <= used and "<|end|>" in texts["its special tokens"]
