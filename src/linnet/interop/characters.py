"""A vocabulary of single characters as a tokenizer, as TED's published code reads it (github.com/biuq/ted)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from pydantic import Field
from tokenizers import AddedToken, decoders, models

from linnet.core.errors import UserError
from linnet.core.files import read_json
from linnet.core.spec import Spec
from linnet.data.tokenizer import Tokenizer
from linnet.data.tokenizer_training import END

UNKNOWN = " "
"""What a character becomes that is not in the vocabulary."""


class CharacterVocabulary(Spec):
    """The published `vocab.json`: the characters in the order of their ids, and the ids again by character."""

    int_to_char: list[str] = Field(min_length=1)
    char_to_int: dict[str, int]


def tokenizer_from_characters(path: str | Path, end: str) -> Tokenizer:
    """Read a `vocab.json` as a tokenizer of kind imported, with the same ids.

    A character that is not in it becomes a space. `end` is the character that stands between documents: it becomes
    the end token, which prints nothing and which no text can contain, so in a text it too becomes a space. `UserError`
    names the entry that is wrong.
    """
    vocabulary = CharacterVocabulary.parse(read_json(path), str(path))
    for fault in _faults(vocabulary):
        raise UserError(f"{path}: {fault}")
    if end == UNKNOWN or end not in vocabulary.int_to_char:
        raise UserError(
            field="end",
            value=repr(end),
            accepted=f"one of the characters in {path}, no space: the one that stands between documents",
        )
    return Tokenizer(_definition(vocabulary.int_to_char, end), str(path))


def _faults(vocabulary: CharacterVocabulary) -> Iterator[str]:
    """What is wrong: field, value, what would do."""
    places: dict[str, int] = {}
    for place, character in enumerate(vocabulary.int_to_char):
        field = f"int_to_char[{place}]: {character!r}"
        if len(character) != 1 or "\ud800" <= character <= "\udfff":
            yield f"{field}: expected one character"
        if character in places:
            yield f"{field}: is int_to_char[{places[character]}] already; expected each character once"
        places[character] = place
    for character, token in vocabulary.char_to_int.items():
        if places.get(character) != token:
            found = places.get(character, "not there")
            yield f"char_to_int: {character!r}: {token}: expected its place in int_to_char, which is {found}"
    for character in places.keys() - vocabulary.char_to_int.keys():
        yield f"char_to_int: {character!r}: missing; expected {places[character]}, its place in int_to_char"
    if UNKNOWN not in places:
        yield "int_to_char: no space; expected one, for unknown characters"


def _definition(characters: list[str], end: str) -> dict[str, Any]:
    """The data of a tokenizer.json: no merges, so every character is a token."""
    names = [END if character == end else character for character in characters]
    model = models.BPE(vocab={name: n for n, name in enumerate(names)}, merges=[], unk_token=UNKNOWN, fuse_unk=False)
    library = tokenizers.Tokenizer(model)
    library.decoder = decoders.Fuse()
    library.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    definition: dict[str, Any] = json.loads(library.to_str())
    return definition
