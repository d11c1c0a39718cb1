"""What each token id stands for, in bytes: the one table behind decoding, streaming and bytes per token.

Two ways of spelling bytes as pieces are understood: byte-level (every byte is one printable character, as in
GPT-2) and SentencePiece's (a mark in place of the space, `<0x0A>` for a single byte). A tokenizer that puts a space in
front of a text drops it again, so tokens can stand for other bytes at the start of a text.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models

from linnet.core.errors import UserError
from linnet.data.sentencepiece import BYTES, SPACE, SentencePieceDefinition

if TYPE_CHECKING:
    import torch

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_LEVEL = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(_HIDDEN)}
"""GPT-2's table: printable Latin-1 characters stand for themselves, the other bytes follow from U+0100 on."""


@dataclass(frozen=True, eq=False)
class TokenBytes:
    """The bytes of every token id.

    `opening`: the bytes while nothing has been printed yet. `opens_once`: a token whose bytes differ there ends the
    opening, even if nothing of it is left. `unknown`: the token that only stands for text that is lost, if any.
    """

    table: list[bytes]
    opening: list[bytes]
    opens_once: bool = True
    unknown: int | None = None

    @classmethod
    def from_library(cls, library: tokenizers.Tokenizer, definition: dict[str, Any], origin: str) -> "TokenBytes":
        """Read the table from the library's reading of a tokenizer.json, and that file's data.

        Special tokens and unused ids stand for no bytes; ordinary added tokens for their text, as the tokenizer's
        normalizer writes it. `UserError` for a decoder whose tokens do not stand for fixed bytes.
        """
        spell = _spelling(_decoder_steps(definition.get("decoder")), origin)
        vocabulary, added = library.get_vocab(with_added_tokens=True), library.get_added_tokens_decoder()
        written = {token["content"] for token in definition.get("added_tokens") or []}
        table = [b""] * (max([*vocabulary.values(), *added]) + 1)
        opening = list(table)
        for piece, token in vocabulary.items():
            if token not in added:
                opening[token], table[token] = spell(piece)
        for token, content in added.items():
            name = library.id_to_token(token)
            if name is not None and not content.special:
                # What a normalizer made of a name is spelled as the pieces of normalized text are.
                opening[token], table[token] = (name.encode(),) * 2 if name in written else spell(name)
        model = definition["model"]
        name = model.get("unk_token") or ""
        unknown = model.get("unk_id") if model["type"] == "Unigram" else library.token_to_id(name)
        # A character may stand for itself and for all unknown ones: it counts as itself.
        return cls(table, opening, unknown=None if len(name) == 1 else unknown)

    @classmethod
    def from_sentencepiece(cls, model: SentencePieceDefinition, added: int = 0) -> "TokenBytes":
        """The table with which `decode` gives what SentencePiece gives. added: special tokens behind the pieces."""
        table = [piece.replace(SPACE, " ").encode() for piece in model.pieces]
        for token in model.reserved:
            table[token] = bytes([BYTES[model.pieces[token]]]) if model.is_byte(token) else b""
        opening = list(table)
        for token, piece in enumerate(model.pieces):
            if piece.startswith(SPACE) and (model.dummy_prefix or model.collapse):
                opening[token] = table[token][1:]
        table[model.unknown] = opening[model.unknown] = model.unknown_text.encode()
        table, opening = table + [b""] * added, opening + [b""] * added
        return cls(table, opening, opens_once=not model.collapse, unknown=model.unknown)

    def decode(self, tokens: list[int], behind: Iterable[int] = ()) -> str:
        """The text of token ids behind others; bytes that are not UTF-8 become U+FFFD."""
        reader = ByteReader(self, behind)
        return b"".join([reader.bytes_of(token) for token in tokens]).decode("utf-8", "replace")


Ids = TypeVar("Ids", NDArray[np.int64], "torch.Tensor")


@dataclass(frozen=True, eq=False)
class ByteCounts(Generic[Ids]):
    """How many bytes of text a token stands for behind another, as arrays of NumPy or of PyTorch.

    table_2V: bytes of each token within a text, and right behind an end token, where the space that a tokenizer puts
    in front of a text is not printed. is_end_V: 1 for end tokens, 0 for others.
    """

    table_2V: Ids
    is_end_V: Ids

    @classmethod
    def create(
        cls, within: Sequence[int], behind_end: Sequence[int] | None = None, ends: Sequence[int] = ()
    ) -> "ByteCounts[NDArray[np.int64]]":
        """The counts of each token; `behind_end`: None for the same as within a text."""
        within_V = np.array(within, dtype=np.int64)
        behind_V = within_V if behind_end is None else np.array(behind_end, dtype=np.int64)
        is_end_V = np.zeros_like(within_V)
        is_end_V[list(ends)] = 1
        return ByteCounts(np.stack([within_V, behind_V]), is_end_V)

    def of(self, tokens: Ids, previous: Ids) -> Ids:
        """The bytes of tokens, each behind the previous one: arrays of one shape, with ids of the vocabulary."""
        counts: Ids = self.table_2V[self.is_end_V[previous], tokens]
        return counts

    def to(self, device: "torch.device | str") -> "ByteCounts[torch.Tensor]":
        """The same as tensors on a device."""
        import torch

        table_2V, is_end_V = (torch.as_tensor(array, device=device) for array in (self.table_2V, self.is_end_V))
        return ByteCounts(table_2V, is_end_V)


class ByteReader:
    """The bytes of tokens that come one after the other. behind: the tokens of their text so far.

    is_opening: nothing has been printed yet, so that a token may stand for other bytes than later.
    """

    def __init__(self, pieces: TokenBytes, behind: Iterable[int] = ()) -> None:
        self._pieces = pieces
        self.is_opening = True
        for token in behind:
            if not self.is_opening:
                break
            self.bytes_of(token)

    def peek(self, token: int) -> bytes:
        """The bytes of a token if it comes next."""
        return self._pieces.opening[token] if self.is_opening else self._pieces.table[token]

    def bytes_of(self, token: int) -> bytes:
        """The bytes of the next token."""
        piece = self.peek(token)
        if self.is_opening:
            self.is_opening = not piece and (not self._pieces.table[token] or not self._pieces.opens_once)
        return piece


class TextStream:
    """Decodes one token at a time: an incomplete character is held back until its last byte has arrived.

    behind: the tokens of its text so far, which are not printed again.
    """

    def __init__(self, pieces: TokenBytes, behind: Iterable[int] = ()) -> None:
        self._reader = ByteReader(pieces, behind)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that this token completes, perhaps none."""
        return self._decoder.decode(self._reader.bytes_of(token))

    def read(self, token: int) -> tuple[bytes, str]:
        """The bytes of a token, and the text that it completes (`push`)."""
        piece = self._reader.bytes_of(token)
        return piece, self._decoder.decode(piece)

    def peek(self, token: int) -> bytes:
        """The bytes of a token if it comes next."""
        return self._reader.peek(token)

    @property
    def is_complete(self) -> bool:
        """True if no bytes of an incomplete character are held back."""
        return not self._decoder.getstate()[0]

    def state_dict(self) -> dict[str, Any]:
        """The state as plain data: the bytes that are held back, and whether nothing has been printed yet."""
        held, _ = self._decoder.getstate()
        return {"held": held.hex(), "opening": self._reader.is_opening}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the stream of a `state_dict` stopped."""
        self._decoder.setstate((bytes.fromhex(state["held"]), 0))
        self._reader.is_opening = bool(state["opening"])

    def finish(self) -> str:
        """The rest at the end: U+FFFD for a character whose last byte never arrived."""
        return self._decoder.decode(b"", final=True)


def _decoder_steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for part in decoder["decoders"] for step in _decoder_steps(part)]
    return [decoder]


_BYTE = re.compile(r"<0x([0-9a-fA-F]{2}|\+[0-9a-fA-F])>")
"""The pieces that the library's `ByteFallback` takes for a byte."""

_ORDER = re.compile("(Metaspace |(?:Replace |Strip )*)(ByteFallback )?(?:(?:Fuse )+(Strip )?)?")


def _spelling(steps: list[dict[str, Any]], origin: str) -> Callable[[str], tuple[bytes, bytes]]:
    """What one piece prints, first in a text and later, from the steps of the decoder.

    Steps that change single tokens are the library's own. After them bytes are joined, then all tokens, and then one
    leading character may be dropped. In any other order the text of a token depends on its neighbors.
    """
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return _byte_level
    order = _ORDER.fullmatch("".join(f"{step['type']} " for step in steps))
    dropped: dict[str, Any] = steps[-1] if order and order[3] else {"content": "", "start": 1, "stop": 0}
    drops_one = (dropped["start"], dropped["stop"]) == (1, 0) and dropped["content"].isascii()
    if not steps or not order or not drops_one or (order[3] and order[1] == "Metaspace "):
        raise UserError(
            f"{origin}: decoder: {', '.join(map(_describe, steps)) or 'none'}: expected ByteLevel; or Metaspace, or"
            " Replace and Strip of single tokens; then ByteFallback, Fuse, and Strip(' ', start 1, stop 0)"
        )
    change, character = _library_decoder(steps[: order[1].count(" ")]), dropped["content"]

    def spell(piece: str) -> tuple[bytes, bytes]:
        first = change([piece])
        later = change([piece, piece])[len(first) :] if order[1] == "Metaspace " else first
        byte = _BYTE.fullmatch(first) if order[2] else None
        if byte:
            one = bytes([int(byte[1], 16)])
            return one.removeprefix(character.encode()), one
        return first.removeprefix(character).encode(), later.encode()

    return spell


def _byte_level(piece: str) -> tuple[bytes, bytes]:
    is_bytes = all(character in BYTE_LEVEL for character in piece)
    spelled = bytes(BYTE_LEVEL[character] for character in piece) if is_bytes else piece.encode()
    return spelled, spelled


def _library_decoder(steps: list[dict[str, Any]]) -> Callable[[list[str]], str]:
    """The library's decoder of these steps; it has no other way to read one from data."""
    plain = json.loads(tokenizers.Tokenizer(models.BPE()).to_str())
    library = tokenizers.Tokenizer.from_str(json.dumps({**plain, "decoder": {"type": "Sequence", "decoders": steps}}))
    decode: Callable[[list[str]], str] = library.decoder.decode
    return decode


def _describe(step: dict[str, Any]) -> str:
    if step["type"] != "Strip":
        return str(step["type"])
    return f"Strip({step['content']!r}, start {step['start']}, stop {step['stop']})"
