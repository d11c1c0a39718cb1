"""Ids are those of the tiktoken package, for every known encoding and for an expression."""

import base64
from dataclasses import replace
from pathlib import Path

import pytest
import tiktoken
from small_sentencepieces import NASTY, SENTENCES
from small_tokenizers import write_ranks

from linnet.core.errors import UserError
from linnet.interop.tiktoken import ENCODINGS, find_encoding, read_ranks, tokenizer_from_tiktoken

WORDS = r"\w+|\s+|[^\w\s]+"


@pytest.mark.parametrize("pattern", [*ENCODINGS, WORDS])
def test_ids_are_those_of_tiktoken(pattern: str, tmp_path: Path):
    path = write_ranks(tmp_path / "ranks")
    tokenizer, ranks = tokenizer_from_tiktoken(path, pattern), read_ranks(path)
    end = len(ranks)
    library = tiktoken.Encoding(
        "here", pat_str=find_encoding(pattern, ranks, path).pattern, mergeable_ranks=ranks, special_tokens={}
    )
    for text in [*SENTENCES, *NASTY, "DON'T they'Ve 'ſ 12345 x\r\n\r\n  y"]:
        assert tokenizer.encode(text) == library.encode_ordinary(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.end_id, tokenizer.token_name(end), tokenizer.vocab_size) == (end, "<|endoftext|>", end + 1)
    assert end not in tokenizer.encode("<|endoftext|>")


def test_a_word_that_is_a_token_is_taken_whole_and_every_way_of_merging_counts(tmp_path: Path):
    """No merges lead to "abcd"; "xyz" is made of "x" and "yz", whose id is lower than that of "xy"."""
    path = write_ranks(tmp_path / "ranks")
    tokens = {b"abcd": 400, b"yz": 401, b"xy": 402, b"xyz": 403}
    ranks = {token: rank for token, rank in read_ranks(path).items() if len(token) == 1} | tokens
    path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))
    tokenizer = tokenizer_from_tiktoken(path, WORDS)
    assert tokenizer.encode("abcd") == [400] and len(tokenizer.encode("abcde")) == 5
    assert tokenizer.encode("xyz xyzxy")[0] == 403 and tokenizer.encode("xyz xyzxy")[2:] == [403, 402]


def test_special_tokens_of_an_encoding_belong_to_its_own_ranks(tmp_path: Path):
    whole = {n.to_bytes(3, "big"): n for n in range(100_256)}
    assert find_encoding("cl100k", whole, "here").special["<|fim_prefix|>"] == 100_258
    assert find_encoding("cl100k", {b"a": 0, b"b": 7}, "here").special == {"<|endoftext|>": 8}
    assert len(ENCODINGS["llama3"].special) == 256
    assert ENCODINGS["llama3"].special["<|eot_id|>"] == 128_009


def test_special_tokens_keep_their_ids_among_and_behind_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_ranks(tmp_path / "ranks")
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.endswith(" 300")))
    encoding = replace(ENCODINGS["gpt2"], ranks=len(lines) - 1, special={"<|endoftext|>": 300, "<|x|>": 500})
    monkeypatch.setitem(ENCODINGS, "gpt2", encoding)
    tokenizer = tokenizer_from_tiktoken(path, "gpt2")
    assert (tokenizer.end_id, tokenizer.token_name(500), tokenizer.vocab_size) == (300, "<|x|>", 501)
    assert 300 not in tokenizer.encode("<|endoftext|>")


@pytest.mark.parametrize(
    ("content", "pattern", "problem"),
    [
        (None, None, "pattern: .*ranks: ranks of tiktoken do not say how a text is split; expected gpt2, p50k"),
        (None, "gpt3", "pattern: gpt3: expected gpt2, p50k, cl100k"),
        (None, "[a", r"pattern: \[a: not a regular expression"),
        ("IQ== 0\nIg==\n", "gpt2", "ranks, line 2: expected a token in base64"),
        ("IQ== 0\nIQ= 1\n", "gpt2", "ranks, line 2: expected a token in base64"),
        ("IQ== 0\nIg== 0\n", "gpt2", "ranks, line 2: id 0 is that of line 1 too"),
        ("IQ== 0\nIQ== 1\n", "gpt2", "ranks, line 2: b'!' has an id before"),
        ("IQ== 99999999999\n", "gpt2", "ranks, line 1: id 99999999999: expected 0 to"),
        ("IQ== 0\n", "gpt2", "ranks: no token for byte 0, of 255 missing; expected all 256 bytes"),
    ],
)
def test_errors_name_the_line(content: str | None, pattern: str | None, problem: str, tmp_path: Path):
    path = write_ranks(tmp_path / "ranks")
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=problem):
        tokenizer_from_tiktoken(path, pattern)
