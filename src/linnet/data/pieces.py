"""What each token id stands for, in bytes: the one table behind decoding, streaming and bytes per token.

Two ways of spelling bytes as pieces are understood: byte-level (every byte is one printable character, as in
GPT-2) and SentencePiece's (a mark in place of the space, `<0x0A>` for a single byte). A tokenizer that puts a space in
front of a text drops it again, so tokens can stand for other bytes at the start of a text.
"""

import codecs
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from linnet.core.errors import UserError
from linnet.data.sentencepiece import BYTES, SPACE, SentencePieceDefinition

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_LEVEL = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(_HIDDEN)}
"""GPT-2's table: printable Latin-1 characters stand for themselves, the other bytes follow from U+0100 on."""


@dataclass(frozen=True)
class TokenBytes:
    """The bytes of every token id.

    `opening`: the bytes while nothing has been printed yet. `opens_once`: a token whose bytes differ there ends the
    opening, even if nothing of it is left. `unknown`: the token that stands for text that is lost, if there is one.
    """

    table: list[bytes]
    opening: list[bytes]
    opens_once: bool = True
    unknown: int | None = None

    @classmethod
    def from_definition(cls, definition: dict[str, Any], vocabulary: dict[str, int], origin: str) -> "TokenBytes":
        """Read the table from the data of a tokenizer.json and its vocabulary (added tokens included).

        Special tokens and unused ids stand for no bytes. `UserError` for a decoder that is neither byte-level nor
        SentencePiece's: its tokens do not stand for fixed bytes.
        """
        steps = _decoder_steps(definition.get("decoder"))
        spell = _spelling(steps, origin)
        added = {token["content"]: token["special"] for token in definition.get("added_tokens") or []}
        table = [b""] * (max(vocabulary.values()) + 1)
        for piece, token in vocabulary.items():
            if piece not in added:
                table[token] = spell(piece)
            elif not added[piece]:
                table[token] = piece.encode()
        strips = (step["type"] == "Strip" and step["content"] == " " and step["start"] > 0 for step in steps)
        marks = (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never" for step in steps)
        drops = any(strips) or any(marks)  # a leading space
        return cls(table, [piece.removeprefix(b" ") for piece in table] if drops else table)

    @classmethod
    def from_sentencepiece(cls, model: SentencePieceDefinition) -> "TokenBytes":
        """The table with which `decode` gives what SentencePiece gives."""
        table = [piece.replace(SPACE, " ").encode() for piece in model.pieces]
        for token in model.reserved:
            table[token] = bytes([BYTES[model.pieces[token]]]) if model.is_byte(token) else b""
        opening = list(table)
        for token, piece in enumerate(model.pieces):
            if piece.startswith(SPACE) and (model.dummy_prefix or model.collapse):
                opening[token] = table[token][1:]
        table[model.unknown] = opening[model.unknown] = model.unknown_text.encode()
        return cls(table, opening, opens_once=not model.collapse, unknown=model.unknown)

    def decode(self, tokens: list[int], behind: Iterable[int] = ()) -> str:
        """The text of token ids behind others; bytes that are not UTF-8 become U+FFFD."""
        reader = _ByteReader(self, behind)
        return b"".join([reader.bytes_of(token) for token in tokens]).decode("utf-8", "replace")


class _ByteReader:
    """The bytes of tokens that come one after the other. behind: the tokens of their text so far."""

    def __init__(self, pieces: TokenBytes, behind: Iterable[int] = ()) -> None:
        self._pieces = pieces
        self.is_opening = True
        for token in behind:
            if not self.is_opening:
                break
            self.bytes_of(token)

    def bytes_of(self, token: int) -> bytes:
        piece = self._pieces.table[token]
        if self.is_opening:
            opening = self._pieces.opening[token]
            self.is_opening = not opening and (not piece or not self._pieces.opens_once)
            return opening
        return piece


class TextStream:
    """Decodes one token at a time: an incomplete character is held back until its last byte has arrived.

    behind: the tokens of its text so far, which are not printed again.
    """

    def __init__(self, pieces: TokenBytes, behind: Iterable[int] = ()) -> None:
        self._reader = _ByteReader(pieces, behind)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that this token completes, perhaps none."""
        return self._decoder.decode(self._reader.bytes_of(token))

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


def _spelling(steps: list[dict[str, Any]], origin: str) -> Callable[[str], bytes]:
    """How one piece spells its bytes, from the steps of the decoder."""
    names = {step["type"] for step in steps}
    is_byte_level = names == {"ByteLevel"}
    if not is_byte_level and not (names and names <= {"ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"}):
        raise UserError(
            f"{origin}: decoder: {', '.join(sorted(names)) or 'none'}: "
            "only byte-level and SentencePiece tokenizers can be read"
        )
    marks = {step["replacement"]: " " for step in steps if step["type"] == "Metaspace"}
    for step in steps:
        if step["type"] == "Replace" and "String" in step["pattern"]:
            marks[step["pattern"]["String"]] = step["content"]
    has_bytes = "ByteFallback" in names

    def spell(piece: str) -> bytes:
        if is_byte_level and all(character in BYTE_LEVEL for character in piece):
            return bytes(BYTE_LEVEL[character] for character in piece)
        if has_bytes and piece in BYTES:
            return bytes([BYTES[piece]])
        for mark, text in marks.items():
            piece = piece.replace(mark, text)
        return piece.encode()

    return spell
