"""Text to ids by unigrams, after `llm_tokenizer_ugm` of llama.cpp's `src/llama-vocab.cpp`: the slow, obvious form."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from linnet.data.sentencepiece import SPACE
from linnet.interop.gguf.vocabulary import NORMAL

UNKNOWN_PENALTY = 10.0
"""What a character without a piece scores below the worst piece."""


class UnigramRule:
    """The tokenizer of a file whose `tokenizer.ggml.model` is `t5`; said: its metadata, without how keys begin."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        listed = enumerate(zip(said["tokens"], said["token_type"], said["scores"], strict=True))
        self._pieces = {name: (token, score) for token, (name, kind, score) in listed if kind == NORMAL}
        self._longest = max(map(len, self._pieces))
        worst = min(score for _, score in self._pieces.values())
        self._unknown = said["unknown_token_id"], worst - UNKNOWN_PENALTY
        self._space_first, self._one_space = said["add_space_prefix"], said["remove_extra_whitespaces"]
        rules = said.get("precompiled_charsmap")
        self._rules = None if rules is None else Charsmap(bytes(rules))

    def encode(self, text: str) -> list[int]:
        """The pieces whose scores have the largest sum; characters without one are one unknown token together."""
        marked = self._marked(text if self._rules is None else self._rules.applied(text))
        best: list[tuple[float, int, int]] = [(0.0, 0, 0)] + [(-math.inf, 0, 0)] * len(marked)
        for start in range(len(marked)):
            for end in range(start + 1, min(len(marked), start + self._longest) + 1):
                found = self._pieces.get(marked[start:end], self._unknown if end == start + 1 else None)
                if found is not None and best[start][0] + found[1] > best[end][0]:
                    best[end] = best[start][0] + found[1], start, found[0]
        ids, end = list[int](), len(marked)
        while end > 0:
            _, start, token = best[end]
            if token != self._unknown[0] or ids[-1:] != [token]:
                ids.append(token)
            end = start
        return ids[::-1]

    def _marked(self, text: str) -> str:
        if self._one_space:  # before each word, and the first too
            return "".join(SPACE + word for word in text.split(" ") if word)
        return (" " * (self._space_first and bool(text.strip(" "))) + text).replace(" ", SPACE)


class Charsmap:
    """SentencePiece's rules: the longest beginning of a text that has a replacement gets it, and so on behind it.

    They are a tree of bytes, packed into whole numbers (Kanda 2018, XOR-compressed double array), and texts.
    """

    def __init__(self, packed: bytes) -> None:
        size = int.from_bytes(packed[:4], "little")
        self._nodes: list[int] = np.frombuffer(packed[4 : 4 + size], "<u4").tolist()
        self._texts = packed[4 + size :]

    def applied(self, text: str) -> str:
        """The text with all replacements."""
        said, out, place = text.encode(), bytearray(), 0
        while place < len(said):
            end, replacement = self._longest(said, place)
            if replacement is None:
                end = place + len(said[place : place + 4].decode(errors="ignore")[0].encode())
                replacement = said[place:end]
            out += replacement
            place = end
        return out.decode()

    def _longest(self, text: bytes, start: int) -> tuple[int, bytes | None]:
        end, found, node = start, None, self._base(0)
        for place in range(start, len(text)):
            node ^= text[place]
            if text[place] == 0 or self._nodes[node] & (1 << 31 | 0xFF) != text[place]:
                break
            is_end = self._nodes[node] >> 8 & 1
            node ^= self._base(node)
            if is_end:
                at = self._nodes[node] & (1 << 31) - 1
                end, found = place + 1, self._texts[at : self._texts.index(0, at)]
        return end, found

    def _base(self, node: int) -> int:
        packed = self._nodes[node]
        return packed >> 10 << ((packed & 1 << 9) >> 6)
