"""Tokenizers as llama.cpp has them, and those that it has not."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.interop.gguf.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    PRE_TOKENIZERS,
    UNUSED,
    USER_DEFINED,
    vocabulary_of,
)

TokenizerOf = Callable[[str], Tokenizer]


def written(tokenizer: Tokenizer, tmp_path: Any) -> dict[str, Any]:
    tokenizer.save(tmp_path / "tokenizer.json")
    return json.loads((tmp_path / "tokenizer.json").read_text())


def test_bytes_have_a_merge_that_never_happens(tokenizer_of: TokenizerOf, tmp_path: Any):
    tokenizer = tokenizer_of("bytes")
    found = vocabulary_of(tokenizer, written(tokenizer, tmp_path), 260, "tokenizer.json")
    assert (found.model, found.pre, found.merges, found.end) == ("gpt2", "gpt-2", [], 256)
    assert found.metadata["tokenizer.ggml.merges"] == ["ĀĀ ĀĀ"]
    assert found.tokens[65] == "A" and found.tokens[256:] == ["<|end|>", "[UNUSED_257]", "[UNUSED_258]", "[UNUSED_259]"]
    assert found.kinds[255:] == [NORMAL, CONTROL, UNUSED, UNUSED, UNUSED]
    assert found.metadata["tokenizer.ggml.bos_token_id"] == found.metadata["tokenizer.ggml.eos_token_id"] == 256


def test_characters_are_marked_as_llama_cpp_marks_them(tokenizer_of: TokenizerOf, tmp_path: Any):
    tokenizer = tokenizer_of("char")
    found = vocabulary_of(tokenizer, written(tokenizer, tmp_path), tokenizer.vocab_size, "tokenizer.json")
    assert (found.model, found.space_first) == ("llama", False)
    assert found.tokens[65] == "<0x41>" and found.kinds[65] == BYTE
    space = tokenizer.encode(" ")[0]
    assert found.tokens[space] == "▁" and found.kinds[space] == NORMAL and " " not in found.tokens


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_a_pre_tokenizer_is_found_by_what_it_does(tokenizer_of: TokenizerOf, tmp_path: Any, pre: str):
    tokenizer = tokenizer_of(pre)
    found = vocabulary_of(tokenizer, written(tokenizer, tmp_path), tokenizer.vocab_size, "tokenizer.json")
    assert found.pre == pre and found.merges
    assert found.kinds[found.tokens.index("<b>")] == USER_DEFINED
    assert found.kinds[found.tokens.index("<|endoftext|>")] == CONTROL


def test_ids_in_another_form_are_noted(tokenizer_of: TokenizerOf, tmp_path: Any, caplog: pytest.LogCaptureFixture):
    definition = written(tokenizer_of("bpe"), tmp_path) | {"normalizer": {"type": "NFC"}}
    vocabulary_of(Tokenizer(definition, "nfc"), definition, 300, str(tmp_path))
    assert "normalizer: NFC: llama.cpp has none" in caplog.text


def changed(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda definition: definition.update(fields)


def without_a_byte(definition: dict[str, Any]) -> None:
    del definition["model"]["vocab"]["A"]


def greedy_words(definition: dict[str, Any]) -> None:
    definition["model"]["ignore_merges"] = True


def with_stripping(definition: dict[str, Any]) -> None:
    flags = {"lstrip": True, "rstrip": False, "single_word": False, "normalized": False, "special": False}
    definition["added_tokens"].append({"id": 299, "content": "<b>", **flags})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed(normalizer={"type": "Lowercase"}), "normalizer: Lowercase: llama.cpp changes no text; expected none"),
        (changed(pre_tokenizer={"type": "Whitespace"}), "pre_tokenizer.type: Whitespace: llama.cpp has no such step"),
        (changed(pre_tokenizer=None), "pre_tokenizer: none, ignore_merges false: unknown to llama.cpp; expected"),
        (greedy_words, "pre_tokenizer: 's|'t|'re|'ve|'m|'ll|'d| ?"),
        (without_a_byte, "model.vocab: has no 'A'; expected every byte as GPT-2 writes it"),
        (
            lambda definition: definition.update(decoder={"type": "Fuse"}),
            "decoder: Fuse: llama.cpp prints pieces as GPT",
        ),
        (with_stripping, "added_tokens: '<b>': lstrip: true: expected false"),
    ],
)
def test_what_llama_cpp_does_not_do(tokenizer_of: TokenizerOf, tmp_path: Any, change: Any, said: str):
    tokenizer = tokenizer_of("bpe")
    definition = written(tokenizer, tmp_path)
    change(definition)
    with pytest.raises(UserError) as refused:
        vocabulary_of(tokenizer, definition, 300, "tokenizer.json")
    assert str(refused.value).startswith(f"tokenizer.json: {said}")


def test_a_space_put_first_is_refused(tmp_path: Any):
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    definition = json.loads(library.to_str())
    definition["model"]["vocab"] = {name: n for n, name in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    definition["model"]["vocab"]["</s>"] = 256
    definition["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    with pytest.raises(UserError, match=r"t\.json: pre_tokenizer\.type: ByteLevel: llama\.cpp has no such step"):
        vocabulary_of(Tokenizer(definition, "t.json"), definition, 300, "t.json")


def test_unigrams_over_bytes_are_refused(tokenizer_of: TokenizerOf, tmp_path: Any):
    tokenizer = tokenizer_of("unigram")
    with pytest.raises(UserError, match=r"t\.json: model\.type: unigram: llama\.cpp has none over bytes; expected"):
        vocabulary_of(tokenizer, written(tokenizer, tmp_path), 300, "t.json")


def test_the_mark_of_a_space_cannot_be_a_character(tmp_path: Any):
    tokenizer = Tokenizer.train("char", ["a ▁ b"])
    with pytest.raises(UserError, match=r"t\.json: model\.vocab: has '▁', which llama\.cpp takes for a space"):
        vocabulary_of(tokenizer, written(tokenizer, tmp_path), 300, "t.json")
