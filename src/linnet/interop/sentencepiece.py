"""SentencePiece models (`.model`) to tokenizers that give the same ids for any text."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from linnet.core.errors import UserError
from linnet.data.sentencepiece import Description, word_pattern
from linnet.data.sentencepiece.charsmap import Charsmap
from linnet.data.tokenizer import Tokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)  # ModelProto.SentencePiece.Type
_KINDS: dict[int, Literal["Unigram", "BPE"]] = {1: "Unigram", 2: "BPE"}  # TrainerSpec.ModelType
_OTHER_KINDS = {3: "WORD", 4: "CHAR"}


def tokenizer_from_sentencepiece(path: str | Path) -> Tokenizer:
    """Read a SentencePiece model (unigram or byte-pair encoding) as a tokenizer of kind imported.

    `encode` gives the ids that `sentencepiece` 0.2.3 gives, for any text, and `decode` the text that it gives. The end
    token is the model's own (`eos_piece`), whatever its name. `UserError` for a file that is no such model, and for one
    that cannot be converted.
    """
    model = _read(path)
    for fault in _faults(model):
        raise UserError(f"{path}: {fault}")
    return Tokenizer(_description(model).written(), str(path))


def _read(path: str | Path) -> Any:
    """The protocol buffer of a model.

    A reader of these few fields would be short. But the package also checks the tables of the model, and who has a
    model mostly has the package. So it is an extra.
    """
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
    except Exception as error:  # a protobuf that does not fit has errors of its own
        raise UserError(f"{path}: needs sentencepiece: pip install 'linnet[sentencepiece]' ({error})") from None
    messages: Any = sentencepiece_model_pb2  # its classes are made as it is imported
    try:
        data = Path(path).read_bytes()
        model = messages.ModelProto.FromString(data)
        SentencePieceProcessor(model_proto=data)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (DecodeError, UnicodeDecodeError, RuntimeError) as error:
        raise UserError(f"{path}: not a SentencePiece model ({str(error).strip().splitlines()[0]})") from None
    return model


def _faults(model: Any) -> Iterator[str]:
    """What has no place in a tokenizer.json, or so little use that it is not given one: field, value, what would do."""
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    if not _of_type(model, _NORMAL):
        yield "not a SentencePiece model (no pieces)"
    if trainer.model_type not in _KINDS:
        yield f"trainer_spec.model_type: {_OTHER_KINDS[trainer.model_type]}: expected UNIGRAM or BPE"
    if not _of_type(model, _UNKNOWN):
        yield "pieces: none of type UNKNOWN: expected one"
    if trainer.eos_piece not in [model.pieces[token].piece for token in _of_type(model, _CONTROL)]:
        yield f"trainer_spec.eos_piece: {trainer.eos_piece!r}: expected a control piece, to end documents with"
    if trainer.treat_whitespace_as_suffix:
        yield "trainer_spec.treat_whitespace_as_suffix: true: expected false"
    if not normalizer.escape_whitespaces:
        yield "normalizer_spec.escape_whitespaces: false: expected true"
    if model.denormalizer_spec.precompiled_charsmap:
        yield "denormalizer_spec.precompiled_charsmap: has rules: expected none"
    if normalizer.precompiled_charsmap and Charsmap(normalizer.precompiled_charsmap).has_double_space:
        yield "normalizer_spec.precompiled_charsmap: a rule gives two spaces in a row: expected none that does"
    for piece, count in Counter(piece.piece for piece in model.pieces).items():
        if count > 1:
            yield f"pieces: {piece!r}: there {count} times, expected once"
    for token in _of_type(model, _USER_DEFINED):
        if "  " in model.pieces[token].piece:
            yield f"pieces: {model.pieces[token].piece!r}: user-defined with two spaces in a row, expected none"


def _description(model: Any) -> Description:
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    pieces = [piece.piece for piece in model.pieces]
    return Description(
        kind=_KINDS[trainer.model_type],
        pieces=pieces,
        scores=_scores(model) if _KINDS[trainer.model_type] == "Unigram" else _ranks(model),
        reserved=_of_type(model, _UNKNOWN, _CONTROL, _BYTE),
        user_defined=_of_type(model, _USER_DEFINED),
        unused=_of_type(model, _UNUSED),
        unknown=_of_type(model, _UNKNOWN)[0],
        unknown_text=trainer.unk_surface,
        end=pieces.index(trainer.eos_piece),
        byte_fallback=trainer.byte_fallback,
        charsmap=normalizer.precompiled_charsmap or None,
        dummy_prefix=normalizer.add_dummy_prefix,
        collapse=normalizer.remove_extra_whitespaces,
        words=word_pattern(pieces[token] for token in _of_type(model, _NORMAL, _USER_DEFINED, _UNUSED)),
    )


def _of_type(model: Any, *types: int) -> list[int]:
    return [token for token, piece in enumerate(model.pieces) if piece.type in types]


def _scores(model: Any) -> list[float]:
    """What each piece adds to the sum.

    SentencePiece pays for user-defined pieces by the byte (`GetUserDefinedScore`). Pieces that no text becomes get a
    score so low that the tokenizers library, which does not know of them, takes any other way.
    """
    normal = _of_type(model, _NORMAL)
    lowest = min(model.pieces[token].score for token in normal)
    never = (lowest - 10) * max(len(piece.piece) for piece in model.pieces)
    scores = [float(never)] * len(model.pieces)
    for token in normal:
        scores[token] = model.pieces[token].score
    for token in _of_type(model, _USER_DEFINED):
        scores[token] = float(np.float32(0.1 * (len(model.pieces[token].piece.encode()) - 1)))
    return scores


def _ranks(model: Any) -> list[float]:
    """The order in which pieces merge, 0 first, as a score: minus it. Pieces of equal score have equal ranks."""
    scores = sorted({piece.score for piece in model.pieces}, reverse=True)
    rank = {score: -float(place) for place, score in enumerate(scores)}
    return [rank[piece.score] for piece in model.pieces]
