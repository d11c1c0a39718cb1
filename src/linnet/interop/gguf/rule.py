"""Text to ids by what a GGUF file says, after the rule of llama.cpp's `src/llama-vocab.cpp`: the slow, obvious form.

Its queue of pairs comes to this: the best pair that is there merges, the leftmost of equals, until there is none.
"""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from tokenizers import Regex, pre_tokenizers

from linnet.data.pieces import BYTE_LEVEL
from linnet.data.sentencepiece import SPACE
from linnet.interop.gguf.architecture import Metadata
from linnet.interop.gguf.unigram import UnigramRule
from linnet.interop.gguf.vocabulary import PRE_TOKENIZERS, USER_DEFINED

Price = Callable[[str, str], float | None]
"""Of merging two pieces; the lowest is paid first, and None says that they never merge."""

_SPELLING = {byte: character for character, byte in BYTE_LEVEL.items()}


class GgufTokenizer:
    """The tokenizer of a file's metadata; names of control tokens in a text are ordinary text."""

    def __init__(self, metadata: Metadata) -> None:
        said: dict[str, Any] = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
        tokens = said["tokens"]
        self._ids: dict[str, int] = {name: token for token, name in enumerate(tokens)}
        kept = [name for name, kind in zip(tokens, said["token_type"], strict=True) if kind == USER_DEFINED]
        longest_first = sorted(kept, key=lambda name: -len(name.encode()))
        self._whole = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if kept else None
        self._unigrams = UnigramRule(said) if said["model"] == "t5" else None
        self._is_byte_level = said["model"] == "gpt2"
        self._space_first: bool = said["add_space_prefix"]
        if self._is_byte_level:
            cuts, self._whole_words = PRE_TOKENIZERS[said["pre"]]
            self._split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(cut), "isolated") for cut in cuts])
            self._ranks = {tuple(merge.split(" ")): float(rank) for rank, merge in enumerate(said["merges"])}
        else:
            self._prices = {name: -score for name, score in zip(tokens, said["scores"], strict=True)}

    def encode(self, text: str) -> list[int]:
        """Token ids, none added."""
        if self._unigrams is not None:
            return self._unigrams.encode(text)
        parts = [text] if self._whole is None else self._whole.split(text)
        ids: list[int] = []
        for place, part in enumerate(parts):
            if place % 2:
                ids.append(self._ids[part])
            elif part:
                ids += self._byte_level(part) if self._is_byte_level else self._marked(part)
        return ids

    def _byte_level(self, text: str) -> Iterator[int]:
        for piece, _ in self._split.pre_tokenize_str(text):
            word = "".join(_SPELLING[byte] for byte in piece.encode())
            if self._whole_words and word in self._ids:
                yield self._ids[word]
            else:
                yield from (self._ids[part] for part in _merged(word, lambda *pair: self._ranks.get(pair)))

    def _marked(self, text: str) -> Iterator[int]:
        """A part between whole tokens, or a text's first, begins with a space where the file says so."""
        marked = (" " * self._space_first + text).replace(" ", SPACE)
        for part in _merged(marked, lambda left, right: self._prices.get(left + right)):
            if part in self._ids:
                yield self._ids[part]
            else:
                yield from (self._ids[f"<0x{byte:02X}>"] for byte in part.encode())


def _merged(text: str, price: Price) -> list[str]:
    parts = list(text)
    while True:
        offers = [(cost, place) for place, pair in enumerate(pairwise(parts)) if (cost := price(*pair)) is not None]
        if not offers:
            return parts
        _, place = min(offers)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
