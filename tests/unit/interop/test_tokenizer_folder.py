import json
from pathlib import Path
from typing import Any

import pytest
from small_sentencepieces import NASTY, SENTENCES, trained
from small_tokenizers import byte_level, write_slow_folder

from linnet.core.errors import UserError
from linnet.interop.tiktoken import ENCODINGS
from linnet.interop.tokenizer_import import import_tokenizer


def write(folder: Path, name: str, plain: Any) -> None:
    (folder / name).write_text(json.dumps(plain))


def test_vocabulary_and_merges_give_the_ids_that_they_were_made_with(tmp_path: Path):
    library = byte_level(ENCODINGS["gpt2"].pattern, special=("<|endoftext|>",))
    library.encode_special_tokens = True
    found = import_tokenizer(write_slow_folder(tmp_path / "slow")).tokenizer
    for text in [*SENTENCES, *NASTY]:
        assert found.encode(text) == library.encode(text).ids
    assert found.token_name(found.end_id) == "<|endoftext|>" and found.kind == "bpe"


def test_added_and_special_tokens_come_from_all_files(tmp_path: Path):
    folder = write_slow_folder(tmp_path / "slow", add_bos_token=True, pad_token="<pad>", chat_template="{{ 1 }}")
    write(folder, "added_tokens.json", {"<|im_start|>": 400, "<tool>": 402})
    write(folder, "special_tokens_map.json", {"additional_special_tokens": ["<|im_start|>"]})
    found = import_tokenizer(folder)
    assert found.tokenizer.added_tokens.items() >= {
        "<|endoftext|>": True, "<|im_start|>": True, "<tool>": False
    }.items()  # fmt: skip
    assert found.tokenizer.encode("<tool>")[-1] == 402 and 400 not in found.tokenizer.encode("<|im_start|>")
    bos, template, pad = found.notes
    assert "add_bos_token: left out" in bos and "its chat template is not part" in template
    assert pad.startswith("<pad> is named as a special token and has no id")


def test_tokens_that_a_tokenizer_json_does_not_have_are_added(tmp_path: Path):
    byte_level(ENCODINGS["gpt2"].pattern, special=("<|endoftext|>",)).save(str(tmp_path / "tokenizer.json"))
    token = {"content": "<|im_end|>", "special": True, "lstrip": False, "rstrip": False, "normalized": False}
    write(tmp_path, "tokenizer_config.json", {"added_tokens_decoder": {"400": token}, "eos_token": "<|im_end|>"})
    found = import_tokenizer(tmp_path).tokenizer
    assert found.special_ids == {"<|endoftext|>": 0, "<|im_end|>": 400} and found.end_id == 400


def test_qwen2_normalizes_and_takes_digits_one_by_one(tmp_path: Path):
    found = import_tokenizer(write_slow_folder(tmp_path / "slow", tokenizer_class="Qwen2TokenizerFast")).tokenizer
    assert found.encode("e\u0301") == found.encode("é") and found.decode(found.encode("e\u0301")) == "é"
    assert len(found.encode("1234567")) == 7 and found.kind == "imported"


def test_pieces_of_a_slow_folder(tmp_path: Path):
    (tmp_path / "spiece.model").write_bytes(trained())
    config = {"tokenizer_class": "T5Tokenizer", "extra_special_tokens": ["<extra_id_0>", "<extra_id_1>"]}
    write(tmp_path, "tokenizer_config.json", config)
    found = import_tokenizer(tmp_path)
    assert found.tokenizer.vocab_size == 94
    assert found.notes == ("added tokens that the SentencePiece model does not have: <extra_id_0>, <extra_id_1>",)
    write(tmp_path, "tokenizer_config.json", {"tokenizer_class": "XLMRobertaTokenizer"})
    with pytest.raises(UserError, match="tokenizer_class: XLMRobertaTokenizer; expected LlamaTokenizer, "):
        import_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (
            "tokenizer_config.json",
            '{"tokenizer_class": "CLIPTokenizer"}',
            "tokenizer_class: CLIPTokenizer; expected G",
        ),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: expected a JSON object"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {}}}', "added_tokens_decoder: x: expected an id"),
        ("added_tokens.json", '{"a": "b"}', "added_tokens.json: a: 'b': expected an id"),
        ("vocab.json", '{"a": "b"}', "vocab.json: expected an id for each token"),
        ("merges.txt", "#version: 0.2\na b c\n", "merges.txt, line 2: 'a b c': expected two tokens"),
        ("merges.txt", "a \u4e00\n", "merges.txt, line 1: 'a \u4e00': expected two tokens"),
    ],
    ids=range(7),
)
def test_errors_name_the_file(name: str, content: str, problem: str, tmp_path: Path):
    folder = write_slow_folder(tmp_path / "slow")
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=problem):
        import_tokenizer(folder)
