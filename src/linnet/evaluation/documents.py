"""Documents that are measured apart from each other: those of a data folder, or of a file of text.

Legend: `N` documents, `P` targets of one: its tokens and the end behind it.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linnet.core.errors import UserError
from linnet.data.shards import TokenData
from linnet.data.sources import Source
from linnet.data.split import Split
from linnet.data.tokenizer import Tokenizer
from linnet.data.windows import evenly_spaced
from linnet.evaluation.windows import Tokens
from linnet.present.progress import progress


@dataclass(frozen=True)
class Documents:
    """Documents by number: `read` gives the tokens `[P + 1]` of one, with the end before and the end behind it.

    lengths: targets of each, `[N]`. bytes: of each one's text; None where the tokens say it. sources: the number of
    each one's source among `source_names`; None where nobody knows.
    """

    read: Callable[[int], Tokens]
    lengths_N: Tokens
    bytes_N: Tokens | None = None
    sources_N: Tokens | None = None
    source_names: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.lengths_N)

    def some(self, limit_tokens: int | None) -> Iterator[tuple[int, Tokens]]:
        """Number and tokens of all, or of documents spread evenly with at most so many targets, at least one.

        Where they had more, the longest are cut: `max_tokens_each`.
        """
        numbers = sample_numbers(self.lengths_N, limit_tokens)
        most = max_tokens_each(self.lengths_N[numbers], limit_tokens)
        for number in numbers:
            yield number, self.read(number)[: most + 1]

    def targets(self, limit_tokens: int | None) -> int:
        """How many `some` gives."""
        lengths_N = self.lengths_N[sample_numbers(self.lengths_N, limit_tokens)]
        return int(np.minimum(lengths_N, max_tokens_each(lengths_N, limit_tokens)).sum())


@dataclass(frozen=True)
class Excerpts:
    """Some documents as text, by number. whole: which are all there; of the others the beginning is."""

    numbers: list[int]
    texts: list[str]
    whole: list[bool]


def sample_numbers(lengths_N: Tokens, limit_tokens: int | None) -> list[int]:
    """The numbers of all, or of documents spread evenly with about so many tokens, at least one."""
    share = 1.0 if limit_tokens is None else min(1.0, limit_tokens / int(lengths_N.sum()))
    return evenly_spaced(len(lengths_N), max(1, int(share * len(lengths_N))))


def max_tokens_each(lengths_N: Tokens, limit_tokens: int | None) -> int:
    """The most tokens of one document with which all together have at most so many, and each at least one.

    Shorter ones are left whole: what they need less than their share is for the longer ones.
    """
    rising = np.sort(lengths_N).tolist()
    left = sum(rising) if limit_tokens is None else limit_tokens
    for place, length in enumerate(rising):
        if length * (len(rising) - place) > left:
            return int(max(1, left // (len(rising) - place)))
        left -= length
    return max(rising, default=0)


def take_excerpts(texts: Sequence[str], tokenizers: Sequence[Tokenizer], limit_tokens: int | None) -> Excerpts:
    """All, or documents spread evenly of which no tokenizer makes more than about so many tokens, at least one.

    The longest are cut behind a word where they would have more. A beginning is measured by its characters, so that
    its tokens are about as many.
    """
    if limit_tokens is None:
        return Excerpts(list(range(len(texts))), list(texts), [True] * len(texts))
    lengths_N = np.max([documents_of_texts(texts, tokenizer).lengths_N for tokenizer in tokenizers], axis=0)
    numbers = sample_numbers(lengths_N, limit_tokens)
    most = max_tokens_each(lengths_N[numbers], limit_tokens)
    parts = [_beginning(texts[number], most / int(lengths_N[number])) for number in numbers]
    whole = [len(part) == len(texts[number]) for number, part in zip(numbers, parts, strict=True)]
    return Excerpts(numbers, parts, whole)


def _beginning(text: str, share: float) -> str:
    """So much of a text, without the word that would be cut in two where another is before it."""
    end = len(text) if share >= 1 else max(1, int(share * len(text)))
    if end >= len(text) or text[end].isspace():
        return text[:end]
    return re.sub(r"(?<=\S)\s+\S*\Z", "", text[:end])


def documents_of_split(data: TokenData, split: Split) -> Documents:
    """Those of a side of a data folder."""
    sequence, end_id = data.split(split), data.tokenizer.end_id
    ends = sequence.positions(end_id)
    lengths_N = np.diff(ends)

    def read(number: int) -> Tokens:
        return sequence.read(int(ends[number]), int(lengths_N[number]) + 1)

    sources_N = data.sources(split)
    return Documents(read, lengths_N, None, sources_N, [source.file for source in data.manifest.sources])


def documents_of_texts(texts: Sequence[str], tokenizer: Tokenizer, whole: Sequence[bool] | None = None) -> Documents:
    """Texts read with a tokenizer, which need not be the one of anything else.

    whole: which of them end there; None: all. Behind the others there is no end to predict.
    """
    end = np.array([tokenizer.end_id])
    bytes_N = np.array([len(text.encode()) for text in texts], dtype=np.int64)
    tokens = []
    with progress("tokens", int(bytes_N.sum()), "bytes") as advance:
        ended = [True] * len(texts) if whole is None else whole
        for text, size_bytes, ends in zip(texts, bytes_N.tolist(), ended, strict=True):
            ids = np.array(tokenizer.encode(text), dtype=np.int64)
            behind = end if ends or not len(ids) else end[:0]
            tokens.append(np.concatenate([end, ids, behind]).astype(np.int32))
            advance(size_bytes)
    lengths_N = np.array([len(ids) - 1 for ids in tokens], dtype=np.int64)
    return Documents(lambda number: tokens[number].astype(np.int64), lengths_N, bytes_N)


def texts_of_file(path: str | Path) -> list[str]:
    """The documents of a text file (.txt, .md, .jsonl, .parquet; see `data.sources`)."""
    with Source(path) as source, progress("reading", source.size_bytes, "bytes") as advance:
        return list(source.documents(advance))


def texts_of_split(data: TokenData, split: Split) -> list[str]:
    """The documents of a side as text, for a model with another tokenizer; `UserError` where tokens do not give it."""
    documents, tokenizer = documents_of_split(data, split), data.tokenizer
    texts = [tokenizer.decode(tokens[1:-1].tolist()) for _, tokens in documents.some(None)]
    expected = data.manifest.splits[split].bytes
    if sum(len(text.encode()) for text in texts) != expected:
        raise UserError(
            f"{data.folder}: its tokens do not give its text back (a {tokenizer.kind} tokenizer); expected a text file"
        )
    return texts
