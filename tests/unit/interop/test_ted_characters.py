"""A vocabulary of characters becomes a tokenizer with the published ids."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.interop.ted import tokenizer_from_characters

CHARACTERS = ["\n", " ", '"', "<", "A", "a", "d", "e", "n", "|", "é", "🛑", ">"]
END = "🛑"
OTHERS = "bX\t\x00ë東😀\u0301\r\u2028"
texts = st.text(st.sampled_from([*CHARACTERS, *OTHERS]), max_size=40) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=40
)


def published(characters: list[Any], **changes: Any) -> dict[str, Any]:
    return {"int_to_char": characters, "char_to_int": {c: n for n, c in enumerate(characters)}, **changes}


def written(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("vocabulary")
    tokenizer_from_characters(written(folder / "vocab.json", published(CHARACTERS)), END).save(
        folder / "tokenizer.json"
    )
    return Tokenizer.load(folder / "tokenizer.json")


@given(text=texts)
def test_characters_keep_their_ids_and_others_become_a_space(tokenizer: Tokenizer, text: str):
    known = {character: n for n, character in enumerate(CHARACTERS) if character != END}
    ids = tokenizer.encode(text)
    assert ids == [known.get(character, known[" "]) for character in text]
    assert tokenizer.decode(ids) == "".join(character if character in known else " " for character in text)
    assert tokenizer.token_bytes()[ids].sum() == len(tokenizer.decode(ids).encode())


def test_the_end_character_is_the_end_token_and_prints_nothing(tokenizer: Tokenizer):
    assert (tokenizer.end_id, tokenizer.vocab_size) == (CHARACTERS.index(END), len(CHARACTERS))
    assert tokenizer.decode([5, tokenizer.end_id, 6]) == "ad"
    assert tokenizer.token_bytes()[tokenizer.end_id] == 0
    assert tokenizer.decode(tokenizer.encode("<|end|>")) == "<|end|>"
    assert tokenizer.encode(END) == [CHARACTERS.index(" ")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (["a"], "must be a mapping"),
        ({"int_to_char": ["a"]}, "char_to_int: missing, a value is required"),
        (published([]), "int_to_char: []: must not be empty"),
        (published(["a", " ", 3, END]), "int_to_char[2]: 3: must be a valid string"),
        (published(CHARACTERS, merges=[]), "merges: unknown key (value []); accepted: int_to_char, char_to_int"),
        (published(["a", " ", "ab", END]), "int_to_char[2]: 'ab': expected one character"),
        (published(["a", " ", "", END]), "int_to_char[2]: '': expected one character"),
        (published(["a", " ", "\ud83d", END]), "'\\ud83d': half of a surrogate pair, which is not Unicode text"),
        (
            published(["a", " ", "a", END]),
            "int_to_char[2]: 'a': is int_to_char[0] already; expected each character once",
        ),
        (
            published(["a", " ", END], char_to_int={"a": 1, " ": 1, END: 2}),
            "char_to_int: 'a': 1: expected its index in int_to_char, which is 0",
        ),
        (
            published(["a", " ", END], char_to_int={"a": 0, " ": 1, END: 2, "b": 3}),
            "char_to_int: 'b': 3: expected its index in int_to_char, which is not there",
        ),
        (
            published(["a", " ", END], char_to_int={"a": 0, " ": 1}),
            "char_to_int: '🛑': missing; expected 2, its index in int_to_char",
        ),
        (published(["a", END]), "int_to_char: no space; expected one, for unknown characters"),
    ],
)
def test_a_vocabulary_that_is_wrong_is_refused(tmp_path: Path, content: Any, message: str):
    path = written(tmp_path / "vocab.json", content)
    with pytest.raises(UserError) as refused:
        tokenizer_from_characters(path, END)
    assert str(refused.value) == f"{path}: {message}"


@pytest.mark.parametrize("end", ["b", " ", "", "aé"])
def test_an_end_that_is_no_character_of_it_is_refused(tmp_path: Path, end: str):
    path = written(tmp_path / "vocab.json", published(CHARACTERS))
    with pytest.raises(UserError) as refused:
        tokenizer_from_characters(path, end)
    wanted = f"expected one of the characters in {path}, no space: the one that stands between documents"
    assert str(refused.value) == f"end: {end!r}: {wanted}"
