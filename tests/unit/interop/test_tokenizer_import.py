import json
from pathlib import Path

import pytest
import tokenizers
from small_sentencepieces import OPTIONS, trained
from small_tokenizers import write_ranks, write_slow_folder
from tokenizers import processors

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.interop.tokenizer_import import find_source, import_tokenizer


def test_the_content_of_a_file_decides_what_it_is(tmp_path: Path):
    ranks, pieces, plain = (tmp_path / name for name in ("a.json", "b.tiktoken", "c.model"))
    write_ranks(ranks)
    pieces.write_bytes(trained())
    Tokenizer.train("bytes", []).save(plain)
    assert find_source(ranks) == ("tiktoken ranks", ranks)
    assert find_source(pieces) == ("SentencePiece model", pieces)
    assert find_source(plain) == ("tokenizer.json", plain)
    assert import_tokenizer(ranks, "cl100k").tokenizer.encode("a") != import_tokenizer(plain).tokenizer.encode("a")
    assert import_tokenizer(pieces).tokenizer.vocab_size == 94


def test_of_a_folder_the_first_file_that_it_has(tmp_path: Path):
    folder = write_slow_folder(tmp_path / "model")
    assert find_source(folder) == ("Transformers folder", folder / "vocab.json")
    (folder / "spiece.model").write_bytes(trained())
    assert find_source(folder)[1].name == "spiece.model"
    Tokenizer.train("bytes", []).save(folder / "tokenizer.json")
    assert find_source(folder)[1].name == "tokenizer.json"


@pytest.mark.parametrize("name", ["unigram like PLDR-LLM's", "bpe with bytes"])
def test_end_tokens_are_those_of_the_source_or_as_given(name: str, tmp_path: Path):
    path = tmp_path / "any"
    path.write_bytes(trained(**OPTIONS[name]))
    own, other = import_tokenizer(path).tokenizer, import_tokenizer(path, ends=["<s>"] if "bpe" in name else ["[PAD]"])
    assert own.token_name(own.end_id) == ("</s>" if "bpe" in name else "[END]")
    assert other.tokenizer.token_name(other.tokenizer.end_id) == ("<s>" if "bpe" in name else "[PAD]")
    other.tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path)
    assert again.end_id == other.tokenizer.end_id and again.encode("a  é1") == own.encode("a  é1")


def test_what_a_tokenizer_json_asks_for_and_is_left_out_is_told(tmp_path: Path):
    trained_here = Tokenizer.train("bpe", ["the bird sang to the bird"])
    library = tokenizers.Tokenizer.from_str(json.dumps(dict(trained_here.definition)))
    library.add_special_tokens(["<s>"])
    library.post_processor = processors.TemplateProcessing("<s> $A", "$A $B", [("<s>", library.token_to_id("<s>"))])
    library.enable_truncation(8)
    library.enable_padding(pad_token="<s>", pad_id=0)
    definition = json.loads(library.to_str())
    definition["model"]["dropout"] = 0.1
    (tmp_path / "any.json").write_text(json.dumps(definition))
    found = import_tokenizer(tmp_path / "any.json")
    assert [note.split(":")[0].split()[0] for note in found.notes] == [
        "truncation", "padding", "model.dropout", "post_processor"
    ]  # fmt: skip
    assert "post_processor: <s> around a text" in found.notes[-1]
    assert found.tokenizer.encode("the bird " * 9) == trained_here.encode("the bird " * 9)
    trained_here.save(tmp_path / "plain.json")
    assert import_tokenizer(tmp_path / "plain.json").notes == ()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "an empty file; expected a tokenizer.json, a SentencePiece model"),
        (b"the bird sang", "no tokenizer; expected a tokenizer.json, a SentencePiece model"),
        (b"{}", "not a tokenizer.json"),
        (b'{"a": 1}', "not a tokenizer.json"),
        (b"\n\x05\xff\xff\xff\xff\xff", "not a SentencePiece model"),
    ],
    ids=range(5),
)
def test_other_files_are_refused(content: bytes, problem: str, tmp_path: Path):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError, match=f"file: {problem}"):
        import_tokenizer(tmp_path / "file")


def test_other_folders_and_options_are_refused(tmp_path: Path):
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(UserError, match=r"a folder without a tokenizer; expected tokenizer\.json; .*and merges.txt"):
        find_source(tmp_path)
    Tokenizer.train("bytes", []).save(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match=r"pattern: gpt2: .*a Transformers folder says how a text is split"):
        import_tokenizer(tmp_path, "gpt2")
