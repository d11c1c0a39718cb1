"""Text to tokens exactly as the `sentencepiece` package has them."""

import re
from functools import cached_property
from itertools import groupby

from linnet.data.sentencepiece.bpe import Bpe
from linnet.data.sentencepiece.charsmap import Charsmap
from linnet.data.sentencepiece.description import BYTES, Description
from linnet.data.sentencepiece.normalizer import Normalizer
from linnet.data.sentencepiece.unigram import Unigram


class SentencePiece:
    """A SentencePiece model at work. Its tables are built when the first text comes."""

    def __init__(self, description: Description) -> None:
        self.description = description

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, those of `sentencepiece` 0.2.3."""
        ids = self._model.encode(self._words.findall(self.normalizer.normalize(text)))
        return ids if self.description.byte_fallback else self._fused(ids)

    def _fused(self, ids: list[int]) -> list[int]:
        """Several unknown characters in a row are one unknown token."""
        unknown = self.description.unknown
        if unknown not in ids:
            return ids
        return [token for key, run in groupby(ids) for token in ([key] if key == unknown else run)]

    @cached_property
    def normalizer(self) -> Normalizer:
        """What is done to a text before it is cut into pieces."""
        told = self.description
        charsmap = Charsmap(told.charsmap) if told.charsmap else None
        return Normalizer(charsmap, self._symbols, told.dummy_prefix, told.collapse)

    @cached_property
    def _words(self) -> re.Pattern[str]:
        return re.compile(self.description.words)

    @cached_property
    def _symbols(self) -> list[str]:
        return [self.description.pieces[token] for token in self.description.user_defined]

    @cached_property
    def _model(self) -> Unigram | Bpe:
        told = self.description
        excluded = {*told.reserved, *(told.unused if told.kind == "Unigram" else [])}
        matching = {piece: token for token, piece in enumerate(told.pieces) if token not in excluded}
        if told.kind == "BPE":
            ranks = {piece: (token, -told.scores[token]) for piece, token in matching.items()}
            unused = frozenset(told.pieces[token] for token in told.unused)
            return Bpe(ranks, self._symbols, unused, self._spell)
        scores = {piece: (token, told.scores[token]) for piece, token in matching.items()}
        lowest = min(told.scores[token] for token in matching.values() if token not in set(told.user_defined))
        return Unigram(scores, lowest, self._spell)

    def _spell(self, text: str) -> list[int]:
        """The tokens of what is no piece: its bytes, or the unknown token."""
        if not self.description.byte_fallback:
            return [self.description.unknown]
        return [self._bytes[byte] for byte in text.encode()]

    @cached_property
    def _bytes(self) -> list[int]:
        tokens = {self.description.pieces[token]: token for token in self.description.reserved}
        return [tokens[name] for name in BYTES]
