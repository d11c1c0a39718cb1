"""What a tokenizer does to a text: bytes per token, unknown and unused tokens, and whether hard texts come back."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linnet.data.tokenizer import Tokenizer
from linnet.data.workers import batched_texts

HARD_TEXTS = {
    "empty": "",
    "spaces": "  two  spaces, then one at the end ",
    "a space": " ",
    "line ends": "a\r\nb\n\nc\rd\u2028e\u0085f",
    "tabs": "\tdef f():\n\t\treturn 0\n",
    "control characters": "a\x00b\x01c\x1bd\x7f",
    "byte order mark": "\ufeffbegins",
    "composed and combining": "é e\u0301 Å A\u030a \u212b",
    "compatibility forms": "ﬁ ２ ① ™ ½",
    "case": "ǅ İi ıI ß ẞ ΑΣ ας",
    "digits": "3.14159 1234567890 ١٢٣ 一二三",
    "several scripts": "English Ελληνικά русский עברית العربية हिन्दी ไทย 中文 日本語 한국어",
    "right to left marks": "a\u200fb\u202ec\u202cd",
    "zero-width": "a\u200bb\u200cc\u200dd\u2060e\u00a0f",
    "emoji": "🙂 👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷 👍🏽",
    "beyond the basic plane": "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 \U0010ffff",
    "private and replaced": "\ue000 \ufffd \ufffe",
    "names of special tokens": "<|endoftext|> <s> </s> <unk> [UNK] <pad> <0x41>",
    "a metaspace": "a▁b ▁ Ġ Ċ",
    "a long word": "x" * 500,
}
"""Texts that tokenizers are known to change, by what is hard about them."""

SHOWN = 10

_CONTEXT_CHARACTERS, _CONTEXT_TOKENS = 30, 5


class PieceCount(NamedTuple):
    """A token, its text as it is shown, the bytes it stands for, and how often it is in the text."""

    token: int
    text: str
    bytes: int
    uses: int


class Changed(NamedTuple):
    """A hard text that does not come back from its tokens, and what comes back."""

    name: str
    text: str
    decoded: str


class Difference(NamedTuple):
    """Where the ids of a text first differ from those of another reader.

    name: the text. place: the number of the token, from 0. before: the end of the text so far. ours, theirs: the next
    tokens, as they are shown, by id.
    """

    name: str
    place: int
    before: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]

    def __str__(self) -> str:
        ours, theirs = (" ".join(tokens) or "the end" for tokens in (self.ours, self.theirs))
        return f"{self.name}: token {self.place:,} behind {self.before!r}: {ours}; there: {theirs}"


@dataclass(frozen=True)
class TokenizerReport:
    """A tokenizer on a text.

    bytes: of the text, UTF-8. token_bytes: those that its tokens stand for; equal to `bytes` where nothing is lost.
    unknown: tokens that stand for unknown text. unused: ids that are not in the text, special and end tokens left out.
    longest, most_used: tokens of most bytes, and of most uses. unused_pieces: all unused ones, those of most bytes
    first. changed: hard texts (`HARD_TEXTS`) that do not come back.
    """

    kind: str
    vocab_size: int
    documents: int
    bytes: int
    tokens: int
    token_bytes: int
    unknown: int
    unused: int
    longest: tuple[PieceCount, ...]
    most_used: tuple[PieceCount, ...]
    unused_pieces: tuple[PieceCount, ...]
    changed: tuple[Changed, ...]

    @property
    def bytes_per_token(self) -> float:
        """Bytes of text for each token."""
        return self.bytes / max(1, self.tokens)

    def to_dict(self) -> dict[str, Any]:
        """JSON data, with the bytes per token."""
        plain = asdict(self)
        for name in ("longest", "most_used", "unused_pieces", "changed"):
            plain[name] = [each._asdict() for each in getattr(self, name)]
        return {**plain, "bytes_per_token": self.bytes_per_token}


def report_on(tokenizer: Tokenizer, texts: Iterable[str]) -> TokenizerReport:
    """Encode texts and hard texts; memory does not grow with the number of texts. Errors: of `encode_batch`."""
    counts_V = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    documents = text_bytes = token_bytes = 0
    byte_counts = tokenizer.byte_counts()
    for some in batched_texts(texts):
        for text, ids in zip(some, tokenizer.encode_batch(some), strict=True):
            ids_T = np.asarray(ids, dtype=np.int64)
            counts_V += np.bincount(ids_T, minlength=len(counts_V))
            previous_T = np.concatenate([[tokenizer.end_id], ids_T[:-1]])[: len(ids_T)]
            token_bytes += int(byte_counts.of(ids_T, previous_T).sum())
            text_bytes += len(text.encode())
            documents += 1
    unknown = tokenizer.pieces.unknown
    added = [token for token in range(len(counts_V)) if tokenizer.token_name(token) in tokenizer.added_tokens]
    lengths_V = tokenizer.token_bytes().copy()
    lengths_V[added] = 0
    idle_V = counts_V == 0
    idle_V[[*added, *tokenizer.end_ids]] = False
    return TokenizerReport(
        kind=tokenizer.kind,
        vocab_size=tokenizer.vocab_size,
        documents=documents,
        bytes=text_bytes,
        tokens=int(counts_V.sum()),
        token_bytes=token_bytes,
        unknown=0 if unknown is None else int(counts_V[unknown]),
        unused=int(idle_V.sum()),
        longest=_shown(tokenizer, lengths_V, counts_V, lengths_V),
        most_used=_shown(tokenizer, counts_V, counts_V, lengths_V),
        unused_pieces=_shown(tokenizer, np.where(idle_V, 1 + lengths_V, 0), counts_V, lengths_V, len(counts_V)),
        changed=tuple(_changed(tokenizer)),
    )


def first_difference(tokenizer: Tokenizer, name: str, text: str, theirs: Sequence[int]) -> Difference | None:
    """Compare the ids of a text with another reader's; None if they are the same. name: of the text."""
    ours = tokenizer.encode(text)
    if ours == list(theirs):
        return None
    pairs = enumerate(zip(ours, theirs, strict=False))
    place = next((at for at, (own, other) in pairs if own != other), min(len(ours), len(theirs)))
    before = tokenizer.decode(ours[:place])[-_CONTEXT_CHARACTERS:]
    shown = [
        tuple(_shown_id(tokenizer, token) for token in ids[place : place + _CONTEXT_TOKENS]) for ids in (ours, theirs)
    ]
    return Difference(name, place, before, *shown)


def _shown_id(tokenizer: Tokenizer, token: int) -> str:
    return f"{token}={tokenizer.describe_token(token)}" if 0 <= token < tokenizer.vocab_size else str(token)


def _shown(
    tokenizer: Tokenizer,
    by_V: NDArray[np.int64],
    counts_V: NDArray[np.int64],
    lengths_V: NDArray[np.int64],
    most: int = SHOWN,
) -> tuple[PieceCount, ...]:
    """The tokens with the largest numbers in `by_V`, those without any left out; of equal ones the lower id first."""
    order = np.lexsort((np.arange(len(by_V)), -by_V))[:most].tolist()
    return tuple(
        PieceCount(token, tokenizer.describe_token(token), int(lengths_V[token]), int(counts_V[token]))
        for token in order
        if by_V[token]
    )


def _changed(tokenizer: Tokenizer) -> Iterator[Changed]:
    for name, text in HARD_TEXTS.items():
        decoded = tokenizer.decode(tokenizer.encode(text))
        if decoded != text:
            yield Changed(name, text, decoded)
