"""SentencePiece models (`.model`): converted to tokenizers that produce the same ids for any text, and trained."""

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from linnet.core.errors import UserError, first_line
from linnet.core.files import read_bytes
from linnet.data.sentencepiece import SentencePieceDefinition, load_processor, protobuf_classes
from linnet.data.tokenizer import Tokenizer
from linnet.data.tokenizer_training import DEFAULT_VOCAB_SIZE, MAX_TRAINED_VOCABULARY

_LIKE_PLDR: dict[str, Any] = {
    "model_type": "unigram", "byte_fallback": True, "user_defined_symbols": ["[SEP]", "[CLS]"],
    "pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3,
    "pad_piece": "[PAD]", "unk_piece": "[UNK]", "bos_piece": "[START]", "eos_piece": "[END]",
}  # fmt: skip
_FEWEST_TOKENS, _THREADS = 263, 16

_KINDS: dict[str, Literal["Unigram", "BPE"]] = {"UNIGRAM": "Unigram", "BPE": "BPE"}


def tokenizer_from_sentencepiece(path: str | Path) -> Tokenizer:
    """Convert a SentencePiece model (unigram or byte-pair encoding) to a tokenizer of kind imported.

    `encode` returns the ids of `sentencepiece` and `decode` its text, for any input. The end token is the model's own
    (`eos_piece`). `UserError` for a file that is no SentencePiece model or cannot be converted.
    """
    try:
        return tokenizer_from_bytes(read_bytes(path), path)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a SentencePiece model ({error})") from None


def train_sentencepiece(texts: Iterable[str], vocab_size: int | None, split_digits: str | None) -> Tokenizer:
    """Train a unigram as PLDR-LLM's tokenizer is one: byte fallback, NFKC, spaces collapsed, its special pieces.

    texts: their lines are the sentences. split_digits: `one`, or None. Texts too small for `vocab_size` (None: 2048)
    give a smaller model. The package sums in a fixed number of threads, so the same texts give the same model.
    """
    return sentencepiece_trainer(vocab_size, split_digits)(texts)


def sentencepiece_trainer(vocab_size: int | None, split_digits: str | None) -> Callable[[Iterable[str]], Tokenizer]:
    """`train_sentencepiece` for texts that come later; `UserError` now for what it cannot do, or lacks."""
    if split_digits not in (None, "one"):
        raise UserError(field="split_digits", value=split_digits, accepted="one: SentencePiece has no groups")
    size = DEFAULT_VOCAB_SIZE if vocab_size is None else vocab_size
    if not _FEWEST_TOKENS <= size <= MAX_TRAINED_VOCABULARY:
        accepted = f"{_FEWEST_TOKENS} to {MAX_TRAINED_VOCABULARY:,} (256 bytes and the special pieces)"
        raise UserError(field="vocab_size", value=size, accepted=accepted)
    protobuf_classes("sentencepiece")
    return partial(_trained, size, split_digits == "one")


def _trained(size: int, split_digits: bool, texts: Iterable[str]) -> Tokenizer:
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    sentences = (line for text in texts for line in text.splitlines() if line.strip())
    try:
        SentencePieceTrainer.train(
            sentence_iterator=sentences, model_writer=model, vocab_size=size, split_digits=split_digits,
            hard_vocab_limit=False, num_threads=_THREADS, max_sentence_length=1 << 20, minloglevel=3, **_LIKE_PLDR,
        )  # fmt: skip
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise UserError(f"sentencepiece cannot train on this text ({reason})") from None
    return tokenizer_from_bytes(model.getvalue(), "sentencepiece")


def tokenizer_from_bytes(data: bytes, path: str | Path) -> Tokenizer:
    """`tokenizer_from_sentencepiece` of a file's content; path: what errors call it."""
    classes = protobuf_classes(str(path))
    from google.protobuf.message import DecodeError

    try:
        model = classes.ModelProto.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a SentencePiece model ({first_line(error)})") from None
    load_processor(data, str(path))  # the package's own check of the model
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    type_name = str(trainer.ModelType.Name(trainer.model_type))
    for fault in _faults(model, type_name):
        raise UserError(f"{path}: {fault}")
    kind = _KINDS[type_name]
    pieces = [piece.piece for piece in model.pieces]
    definition = SentencePieceDefinition(
        kind=kind,
        pieces=pieces,
        scores=_scores(model, kind),
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
    return Tokenizer(definition.to_dict(), str(path))


def _faults(model: Any, type_name: str) -> Iterator[str]:
    """Yield features that a tokenizer.json cannot express or that are not supported: field, value, what is accepted."""
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    if not _of_type(model, "NORMAL"):
        yield "not a SentencePiece model (no pieces)"
    if type_name not in _KINDS:
        yield f"trainer_spec.model_type: {type_name}: expected UNIGRAM or BPE"
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
            yield f"pieces: {piece!r}: occurs {count} times, expected once"


def _of_type(model: Any, *names: str) -> list[int]:
    types = [model.SentencePiece.Type.Value(name) for name in names]
    return [token for token, piece in enumerate(model.pieces) if piece.type in types]


def _scores(model: Any, kind: Literal["Unigram", "BPE"]) -> list[float]:
    """Return the score of each piece.

    BPE: the negative merge order (0 first); pieces of equal score have equal ranks. Unigram: SentencePiece scores
    user-defined pieces by their bytes (`GetUserDefinedScore`). Pieces that no text produces get a score so low that the
    tokenizers library, which does not know these types, always prefers another segmentation.
    """
    if kind == "BPE":
        distinct = sorted({piece.score for piece in model.pieces}, reverse=True)
        rank = {score: -float(place) for place, score in enumerate(distinct)}
        return [rank[piece.score] for piece in model.pieces]
    normal = _of_type(model, "NORMAL")
    lowest = min(model.pieces[token].score for token in normal)
    never = (lowest - 10) * max(len(piece.piece) for piece in model.pieces)
    scores = [float(never)] * len(model.pieces)
    for token in normal:
        scores[token] = model.pieces[token].score
    for token in _of_type(model, "USER_DEFINED"):
        scores[token] = float(np.float32(0.1 * (len(model.pieces[token].piece.encode()) - 1)))
    return scores
