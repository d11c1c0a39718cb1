"""Import of published TED models (github.com/biuq/ted).

A model is a folder with `model.json` (sizes), `vocab.json` (characters) and its weights under the names of the
published code: `weights.json` (base64 of float32) or `weights.pth` (pickled tensors).
"""

import base64
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from tokenizers import AddedToken, decoders, models
from torch import Tensor

from linnet.core.bounds import MAX_JSON_WEIGHTS_BYTES
from linnet.core.errors import UserError
from linnet.core.files import parse_json, read_json, read_text, sha256_of
from linnet.core.spec import Spec
from linnet.data import tokenizer_training
from linnet.data.tokenizer import Tokenizer
from linnet.interop.tensor_names import TED, check_one_precision, read_pth
from linnet.model.decoder import Decoder, decoder_with_weights
from linnet.model.folder import read_description
from linnet.model.spec import ModelSpec
from linnet.model.store import check_new_folder, check_tensors, write_model

SIZES, VOCABULARY, JSON_WEIGHTS, PICKLED_WEIGHTS = "model.json", "vocab.json", "weights.json", "weights.pth"
PRESET = "ted-tinystories"
"""The published model, from whose description others differ only by their sizes."""
END = "\N{OCTAGONAL SIGN}"
CONTEXT_LENGTH = 2048
UNKNOWN = " "
"""Replacement for characters outside the vocabulary."""


class PublishedSizes(Spec):
    """The published `model.json`."""

    num_layers: PositiveInt
    dim: PositiveInt
    hidden_dim: PositiveInt
    norm_eps: PositiveFloat
    vocab_size: PositiveInt


class PublishedTensor(Spec):
    """A tensor in the published `weights.json`: its numbers row by row, little-endian float32 in base64."""

    size: list[NonNegativeInt]
    data: str


class CharacterVocabulary(Spec):
    """The published `vocab.json`: the characters in the order of their ids, and the ids by character."""

    int_to_char: list[str] = Field(min_length=1)
    char_to_int: dict[str, int]


def import_ted(
    source: str | Path,
    out: str | Path,
    end: str = END,
    context_length: int = CONTEXT_LENGTH,
    command: str | None = None,
) -> Decoder:
    """Make the model folder `out` from a folder in the published layout.

    end: the character between documents in training; it becomes the end token. context_length: tokens of a training
    sequence, which the layout does not contain. `UserError` names the file and the wrong field, character or tensor. If
    both files of weights exist, `weights.json` is read. The tensors keep their precision.
    """
    check_new_folder(out)
    source = Path(source)
    weights = _weights_file(source)
    model = _description(source / SIZES, context_length)
    tokenizer = tokenizer_from_characters(source / VOCABULARY, end)
    if tokenizer.vocab_size != model.vocab_size:
        accepted = f"expected {model.vocab_size}, the vocab_size of {source / SIZES}"
        raise UserError(f"{source / VOCABULARY}: {tokenizer.vocab_size} characters: {accepted}")
    named = read_json_weights(weights) if weights.name == JSON_WEIGHTS else read_pth(weights)
    check_tensors(named, TED.shapes(model), weights, f"the model in {SIZES}")
    check_one_precision(named, weights)
    decoder = decoder_with_weights(model, TED.from_published(named, model))
    made = {"imported_from": str(weights), "sha256": sha256_of(weights), "end_character": end, "command": command}
    write_model(out, decoder, tokenizer, made)
    return decoder


def _weights_file(source: Path) -> Path:
    """Return the file of weights in a complete folder."""
    accepted = f"expected {SIZES}, {VOCABULARY}, and {JSON_WEIGHTS} or {PICKLED_WEIGHTS}"
    if not source.is_dir():
        raise UserError(f"{source}: no such folder; {accepted}")
    for name in (SIZES, VOCABULARY):
        if not (source / name).is_file():
            raise UserError(f"{source}: has no {name}; {accepted}")
    for name in (JSON_WEIGHTS, PICKLED_WEIGHTS):
        if (source / name).is_file():
            return source / name
    raise UserError(f"{source}: has no {JSON_WEIGHTS} and no {PICKLED_WEIGHTS}; {accepted}")


def _description(path: Path, context_length: int) -> ModelSpec:
    """Return the preset's description with the sizes of a `model.json` and the name of its folder."""
    if context_length < 1:
        raise UserError(field="context_length", value=context_length, accepted="at least 1")
    sizes = PublishedSizes.parse(read_json(path), str(path))
    plain = read_description(PRESET)
    (block,) = plain["blocks"]
    plain |= {"name": path.resolve().parent.name, "context_length": context_length}
    plain |= {"vocab_size": sizes.vocab_size, "d_model": sizes.dim}
    block["repeat"], block["feed_forward"]["hidden"] = sizes.num_layers, sizes.hidden_dim
    block["norm"]["eps"] = plain["head"]["norm"]["eps"] = sizes.norm_eps
    return ModelSpec.parse(plain, str(path))


def read_json_weights(path: Path) -> dict[str, Tensor]:
    """Read the float32 tensors of a published `weights.json`; `UserError` names the tensor that cannot be read."""
    content = parse_json(read_text(path, MAX_JSON_WEIGHTS_BYTES), str(path))
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a mapping of tensors, found {type(content).__name__}")
    tensors: dict[str, Tensor] = {}
    for name, value in content.items():
        origin = f"{path}: tensor {name}"
        published = PublishedTensor.parse(value, origin)
        try:
            numbers = base64.b64decode(published.data, validate=True)
        except ValueError as error:
            raise UserError(f"{origin}: data: not base64 ({error}); expected that of float32 numbers") from None
        expected = 4 * math.prod(published.size)
        if len(numbers) != expected:
            accepted = f"expected {expected}, float32 numbers of size {published.size}"
            raise UserError(f"{origin}: data: {len(numbers)} bytes: {accepted}")
        array = np.frombuffer(numbers, dtype="<f4").astype(np.float32).reshape(published.size)
        tensors[name] = torch.from_numpy(array)
    return tensors


def tokenizer_from_characters(path: str | Path, end: str) -> Tokenizer:
    """Convert a `vocab.json` to a tokenizer of kind imported with the same ids.

    A character outside the vocabulary becomes a space. `end` is the character between documents: it becomes the end
    token, which decodes to nothing and which no text can contain, so in a text it becomes a space too. `UserError`
    names the entry that is wrong.
    """
    vocabulary = CharacterVocabulary.parse(read_json(path), str(path))
    for fault in _faults(vocabulary):
        raise UserError(f"{path}: {fault}")
    characters = vocabulary.int_to_char
    if end == UNKNOWN or end not in characters:
        accepted = f"one of the characters in {path}, no space: the one that stands between documents"
        raise UserError(field="end", value=repr(end), accepted=accepted)
    names = [tokenizer_training.END if character == end else character for character in characters]
    vocab = {name: token for token, name in enumerate(names)}
    # Without merges every character is a token.
    library = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token=UNKNOWN, fuse_unk=False))
    library.decoder = decoders.Fuse()
    library.add_special_tokens([AddedToken(tokenizer_training.END, special=True, normalized=False)])
    definition: dict[str, Any] = json.loads(library.to_str())
    return Tokenizer(definition, str(path))


def _faults(vocabulary: CharacterVocabulary) -> Iterator[str]:
    """Yield what is wrong: field, value, what is accepted."""
    places: dict[str, int] = {}
    for place, character in enumerate(vocabulary.int_to_char):
        field = f"int_to_char[{place}]: {character!r}"
        if len(character) != 1:
            yield f"{field}: expected one character"
        if character in places:
            yield f"{field}: is int_to_char[{places[character]}] already; expected each character once"
        places[character] = place
    for character, token in vocabulary.char_to_int.items():
        if places.get(character) != token:
            index = places.get(character, "not there")
            yield f"char_to_int: {character!r}: {token}: expected its index in int_to_char, which is {index}"
    for character in places.keys() - vocabulary.char_to_int.keys():
        yield f"char_to_int: {character!r}: missing; expected {places[character]}, its index in int_to_char"
    if UNKNOWN not in places:
        yield "int_to_char: no space; expected one, for unknown characters"
