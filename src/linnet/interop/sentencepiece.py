"""SentencePiece models (`.model`) to tokenizers that give the same ids for any text."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from linnet.core.errors import UserError
from linnet.core.files import read_bytes
from linnet.data.sentencepiece import SentencePieceDefinition, load_processor, protobuf_classes
from linnet.data.tokenizer import Tokenizer

_KINDS: dict[str, Literal["Unigram", "BPE"]] = {"UNIGRAM": "Unigram", "BPE": "BPE"}


def tokenizer_from_sentencepiece(path: str | Path) -> Tokenizer:
    """Read a SentencePiece model (unigram or byte-pair encoding) as a tokenizer of kind imported.

    `encode` gives the ids that `sentencepiece` gives for the model, for any text, and `decode` the text that it gives.
    The end token is the model's own (`eos_piece`), whatever its name. `UserError` for a file that is no such model, and
    for one that cannot be converted.
    """
    model = _read(path)
    for fault in _faults(model):
        raise UserError(f"{path}: {fault}")
    return Tokenizer(_description(model).to_dict(), str(path))


def _read(path: str | Path) -> Any:
    """The protocol buffer of a model, checked by the package itself."""
    classes = protobuf_classes(str(path))
    from google.protobuf.message import DecodeError

    try:
        data = read_bytes(path)
        model = classes.ModelProto.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a SentencePiece model ({str(error).strip().splitlines()[0]})") from None
    load_processor(data, str(path))
    return model


def _faults(model: Any) -> Iterator[str]:
    """What has no place in a tokenizer.json, or so little use that it is not given one: field, value, what would do."""
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    if not _of_type(model, "NORMAL"):
        yield "not a SentencePiece model (no pieces)"
    if _kind(model) not in _KINDS:
        yield f"trainer_spec.model_type: {_kind(model)}: expected UNIGRAM or BPE"
    if not _of_type(model, "UNKNOWN"):
        yield "pieces: none of type UNKNOWN: expected one"
    if trainer.eos_piece not in [model.pieces[token].piece for token in _of_type(model, "CONTROL")]:
        yield f"trainer_spec.eos_piece: {trainer.eos_piece!r}: expected a control piece, to end documents with"
    if trainer.treat_whitespace_as_suffix:
        yield "trainer_spec.treat_whitespace_as_suffix: true: expected false"
    if not normalizer.escape_whitespaces:
        yield "normalizer_spec.escape_whitespaces: false: expected true"
    if model.denormalizer_spec.precompiled_charsmap:
        yield "denormalizer_spec.precompiled_charsmap: has rules: expected none"
    for piece, count in Counter(piece.piece for piece in model.pieces).items():
        if count > 1:
            yield f"pieces: {piece!r}: there {count} times, expected once"


def _description(model: Any) -> SentencePieceDefinition:
    trainer, normalizer, kind = model.trainer_spec, model.normalizer_spec, _KINDS[_kind(model)]
    pieces = [piece.piece for piece in model.pieces]
    return SentencePieceDefinition(
        kind=kind,
        pieces=pieces,
        scores=_scores(model) if kind == "Unigram" else _ranks(model),
        reserved=_of_type(model, "UNKNOWN", "CONTROL", "BYTE"),
        user_defined=_of_type(model, "USER_DEFINED"),
        unused=_of_type(model, "UNUSED"),
        unknown=_of_type(model, "UNKNOWN")[0],
        unknown_text=trainer.unk_surface,
        end=pieces.index(trainer.eos_piece),
        byte_fallback=trainer.byte_fallback,
        charsmap=normalizer.precompiled_charsmap or None,
        dummy_prefix=normalizer.add_dummy_prefix,
        collapse=normalizer.remove_extra_whitespaces,
    )


def _of_type(model: Any, *names: str) -> list[int]:
    types = [model.SentencePiece.Type.Value(name) for name in names]
    return [token for token, piece in enumerate(model.pieces) if piece.type in types]


def _kind(model: Any) -> str:
    """The name of the algorithm in the format."""
    return str(model.trainer_spec.ModelType.Name(model.trainer_spec.model_type))


def _scores(model: Any) -> list[float]:
    """What each piece adds to the sum.

    SentencePiece pays for user-defined pieces by the byte (`GetUserDefinedScore`). Pieces that no text becomes get a
    score so low that the tokenizers library, which does not know of them, takes any other way.
    """
    normal = _of_type(model, "NORMAL")
    lowest = min(model.pieces[token].score for token in normal)
    never = (lowest - 10) * max(len(piece.piece) for piece in model.pieces)
    scores = [float(never)] * len(model.pieces)
    for token in normal:
        scores[token] = model.pieces[token].score
    for token in _of_type(model, "USER_DEFINED"):
        scores[token] = float(np.float32(0.1 * (len(model.pieces[token].piece.encode()) - 1)))
    return scores


def _ranks(model: Any) -> list[float]:
    """The order in which pieces merge, 0 first, as a score: minus it. Pieces of equal score have equal ranks."""
    scores = sorted({piece.score for piece in model.pieces}, reverse=True)
    rank = {score: -float(place) for place, score in enumerate(scores)}
    return [rank[piece.score] for piece in model.pieces]
