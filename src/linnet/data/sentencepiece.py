"""SentencePiece models: how a tokenizer.json stores one, and the `sentencepiece` package, which encodes with it.

The `tokenizers` library reads such a file too, and mostly gives the same ids. But its `Precompiled` normalizer treats a
letter and its accents as one character, and loses some of them; its sums are not rounded to float32, which is how
SentencePiece chooses between equally good segmentations; and it has no user-defined pieces.

What the format of a tokenizer.json has no field for is stored among the special tokens of a post-processor that adds
none:

- `sentencepiece:reserved`: the pieces that no text becomes: control pieces, bytes, the unknown piece.
- `sentencepiece:user_defined`: the pieces that no rule changes in a text and that are never split.
- `sentencepiece:unused`: the pieces that byte-pair encoding merges, and splits again.
- `sentencepiece:unknown`: the unknown piece, under the text that it prints.
- `sentencepiece:end`: the piece that ends a document.
- `sentencepiece:ranks`: for byte-pair encoding only: in place of ids the order in which pieces merge.
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from linnet.core.errors import UserError, first_line

Json = dict[str, Any]

SPACE = "▁"
BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}

_PREFIX = "sentencepiece:"
_ONE_SPACE = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
_NO_FIRST_SPACE = {"type": "Replace", "pattern": {"Regex": r"\A "}, "content": ""}
_NO_LAST_SPACE = {"type": "Replace", "pattern": {"Regex": rf"{SPACE}+\z"}, "content": ""}
_DUMMY_PREFIX = {"type": "Prepend", "prepend": SPACE}
_MARK = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_UNMARK = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
_SEQUENCES = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]

# How to cut a text where no piece reaches from one part into the next: for pieces with the space in front only, for
# pieces that may have several spaces there, for pieces with spaces at the end.
_WORDS = (f"{SPACE}?[^{SPACE}]+|{SPACE}", f"{SPACE}+[^{SPACE}]*|[^{SPACE}]+", f"[^{SPACE}]*{SPACE}+|[^{SPACE}]+")
_ANYTHING = r"[\s\S]+"


@dataclass(frozen=True)
class SentencePieceDefinition:
    """All that decides what a SentencePiece model makes of a text; tokens are ids, that is, indices of `pieces`.

    `scores`: what a piece adds to the sum (Unigram), or minus the order in which it merges (BPE).
    """

    kind: Literal["Unigram", "BPE"]
    pieces: list[str]
    scores: list[float]
    reserved: list[int]
    user_defined: list[int]
    unused: list[int]
    unknown: int
    unknown_text: str
    end: int
    byte_fallback: bool
    charsmap: bytes | None
    dummy_prefix: bool
    collapse: bool

    @classmethod
    def read(cls, definition: Mapping[str, Any]) -> "SentencePieceDefinition | None":
        """Read a tokenizer.json; None if it was not made from a SentencePiece model.

        `ValueError` or `LookupError` for one that was changed since: the model decides alone.
        """
        after = (definition.get("post_processor") or {}).get("special_tokens") or {}
        groups = {name.removeprefix(_PREFIX): group for name, group in after.items() if name.startswith(_PREFIX)}
        if not groups:
            return None
        model = definition["model"]
        steps = definition["normalizer"]["normalizers"]
        rules = [base64.b64decode(step["precompiled_charsmap"]) for step in steps if step["type"] == "Precompiled"]
        if model["type"] == "Unigram":
            pieces, scores = map(list, zip(*model["vocab"], strict=True))
        else:
            pieces, scores = groups["ranks"]["tokens"], [-float(rank) for rank in groups["ranks"]["ids"]]
        found = cls(
            kind=model["type"],
            pieces=pieces,
            scores=scores,
            reserved=groups["reserved"]["ids"],
            user_defined=groups["user_defined"]["ids"],
            unused=groups["unused"]["ids"],
            unknown=groups["unknown"]["ids"][0],
            unknown_text=groups["unknown"]["tokens"][0],
            end=groups["end"]["ids"][0],
            byte_fallback=model["byte_fallback"],
            charsmap=rules[0] if rules else None,
            dummy_prefix=_DUMMY_PREFIX in steps,
            collapse=_ONE_SPACE in steps,
        )
        for part, own in (("normalizer", found._normalizer()), ("decoder", found._decoder())):
            if definition.get(part) != own:
                raise ValueError(f"its {part} is another")
        for token in definition.get("added_tokens") or []:
            # Special tokens behind the pieces are none of the model's: no text becomes them unless they are parsed.
            if token["content"] not in pieces and not (token["special"] and token["id"] >= len(pieces)):
                raise ValueError(f"added token {token['content']!r}")
        return found

    def to_dict(self) -> Json:
        """The data of the tokenizer.json, such as the `tokenizers` library reads it."""
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        specials = [token for token in self.reserved if not self.is_byte(token)]
        words = _word_pattern(self.pieces[token] for token in set(range(len(self.pieces))) - set(self.reserved))
        cut: Json = {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False}
        vocabulary = [list(pair) for pair in zip(self.pieces, self.scores, strict=True)]
        unigram: Json = {
            "type": "Unigram",
            "unk_id": self.unknown,
            "vocab": vocabulary,
            "byte_fallback": self.byte_fallback,
        }
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": token, "content": self.pieces[token], **flags} for token in specials],
            "normalizer": self._normalizer(),
            "pre_tokenizer": None if words == _ANYTHING else cut,
            "post_processor": self._groups(),
            "decoder": self._decoder(),
            "model": unigram if self.kind == "Unigram" else self._bpe(),
        }

    def _normalizer(self) -> Json:
        rules: list[Json] = []
        if self.charsmap:
            rules = [{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(self.charsmap).decode()}]
        rules += [_ONE_SPACE, _NO_FIRST_SPACE] * self.collapse + [_DUMMY_PREFIX] * self.dummy_prefix + [_MARK]
        return {"type": "Sequence", "normalizers": rules + [_NO_LAST_SPACE] * self.collapse}

    def _decoder(self) -> Json:
        strip: Json = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        strips = [strip] * (self.dummy_prefix or self.collapse)
        return {"type": "Sequence", "decoders": [_UNMARK, {"type": "ByteFallback"}, {"type": "Fuse"}, *strips]}

    def is_byte(self, token: int) -> bool:
        """True if a token stands for one byte."""
        return self.byte_fallback and self.pieces[token] in BYTES

    def _groups(self) -> Json:
        groups = {
            "reserved": (self.reserved, [self.pieces[token] for token in self.reserved]),
            "user_defined": (self.user_defined, [self.pieces[token] for token in self.user_defined]),
            "unused": (self.unused, [self.pieces[token] for token in self.unused]),
            "unknown": ([self.unknown], [self.unknown_text]),
            "end": ([self.end], [self.pieces[self.end]]),
        }
        if self.kind == "BPE":
            groups["ranks"] = [-int(score) for score in self.scores], self.pieces
        names = {_PREFIX + name: (ids, tokens) for name, (ids, tokens) in groups.items()}
        tokens = {name: {"id": name, "ids": ids, "tokens": tokens} for name, (ids, tokens) in names.items()}
        return {"type": "TemplateProcessing", "single": _SEQUENCES[:1], "pair": _SEQUENCES, "special_tokens": tokens}

    def _bpe(self) -> Json:
        return {
            "type": "BPE",
            "dropout": None,
            "unk_token": self.pieces[self.unknown],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": self.byte_fallback,
            "ignore_merges": False,
            "vocab": {piece: token for token, piece in enumerate(self.pieces)},
            "merges": self._merges(),
        }

    def _merges(self) -> list[list[str]]:
        """The pairs that make a piece, for the library, which knows only pairs."""
        merging = set(range(len(self.pieces))) - {*self.reserved, *self.user_defined}
        known = {self.pieces[token] for token in merging}
        by_rank = sorted(merging, key=lambda token: (-self.scores[token], token))
        halves = (
            (self.pieces[token][:cut], self.pieces[token][cut:])
            for token in by_rank
            for cut in range(1, len(self.pieces[token]))
        )
        return [[left, right] for left, right in halves if left in known and right in known]


def _word_pattern(pieces: Iterable[str]) -> str:
    """The expression that cuts a text into parts, as small as can be, with no piece reaching from one into the next."""
    inside = {piece[at - 1 : at + 1] for piece in pieces if SPACE in piece for at in range(1, len(piece))}
    ends = {pair for pair in inside if pair.endswith(SPACE)}
    if not ends:
        return _WORDS[0]
    if ends == {SPACE * 2}:
        return _WORDS[1]
    return _WORDS[2] if all(pair in ends for pair in inside if pair.startswith(SPACE)) else _ANYTHING


class SentencePiece:
    """Encodes with a SentencePiece model, which is built for the first text; only then the package is needed."""

    def __init__(self, description: SentencePieceDefinition, origin: str) -> None:
        self._description = description
        self._origin = origin

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, on all cores. `UserError` where the package is missing, or refuses the model."""
        ids: list[list[int]] = self._processor.encode(texts)
        return ids

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids, and for each the characters of the text, from and to before, that it stands for.

        A token that stands for none by itself, as all but the last of a character that is split into bytes and a space
        that is put in front of a text, has the places of the next that stands for some.
        """
        found = list(self._processor.encode_as_proto(text).pieces)  # places count bytes
        characters = [number for number, character in enumerate(text) for _ in character.encode()] + [len(text)]
        offsets, place = list[tuple[int, int]](), (len(text), len(text))
        for piece in reversed(found):
            if piece.begin < piece.end:
                place = characters[piece.begin], characters[piece.end]
            offsets.append(place)
        return [piece.id for piece in found], offsets[::-1]

    @cached_property
    def _processor(self) -> Any:
        model = _model(self._description, protobuf_classes(self._origin))
        return load_processor(model.SerializeToString(), self._origin)


def protobuf_classes(origin: str) -> Any:
    """The module with the classes of the format, `ModelProto` above all; they are made as it is imported."""
    try:
        from sentencepiece import sentencepiece_model_pb2
    except Exception as error:  # a protobuf that does not fit has errors of its own
        raise UserError(f"{origin}: needs sentencepiece: pip install 'linnet[sentencepiece]' ({error})") from None
    return sentencepiece_model_pb2


def load_processor(model: bytes, origin: str) -> Any:
    """The package's `SentencePieceProcessor` of a serialized model, which it checks; `UserError` for one it refuses."""
    from sentencepiece import SentencePieceProcessor

    try:
        return SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise UserError(f"{origin}: not a SentencePiece model ({first_line(error)})") from None


def _model(definition: SentencePieceDefinition, classes: Any) -> Any:
    """The protocol buffer with all that decides how a text is encoded.

    Scores differ from the original's where only their order matters (of byte-pair encoding), or nothing (of pieces that
    SentencePiece scores by a rule of its own, or never takes).
    """
    types = dict.fromkeys(range(len(definition.pieces)), "NORMAL")
    types |= {token: "BYTE" if definition.is_byte(token) else "CONTROL" for token in definition.reserved}
    types |= dict.fromkeys(definition.user_defined, "USER_DEFINED") | dict.fromkeys(definition.unused, "UNUSED")
    types[definition.unknown] = "UNKNOWN"
    pieces = zip(definition.pieces, definition.scores, types.values(), strict=True)
    return classes.ModelProto(
        pieces=[{"piece": piece, "score": score, "type": kind} for piece, score, kind in pieces],
        trainer_spec={"model_type": definition.kind.upper(), "byte_fallback": definition.byte_fallback},
        normalizer_spec={
            "precompiled_charsmap": definition.charsmap or b"",
            "add_dummy_prefix": definition.dummy_prefix,
            "remove_extra_whitespaces": definition.collapse,
        },
    )
