"""Documents that are measured apart from each other: those of a data folder, or of a file of text.

Legend: `N` documents, `P` targets of one: its tokens and the end behind it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linnet.core.errors import UserError
from linnet.data.shards import TokenData
from linnet.data.sources import Source
from linnet.data.split import Split
from linnet.data.tokenizer import Tokenizer
from linnet.data.windows import spread
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
        """Number and tokens of all, or of documents spread evenly with about so many tokens, at least one."""
        for number in chosen_of(self.lengths_N, limit_tokens):
            yield number, self.read(number)


def chosen_of(lengths_N: Tokens, limit_tokens: int | None) -> list[int]:
    """The numbers of all, or of documents spread evenly with about so many tokens, at least one."""
    share = 1.0 if limit_tokens is None else min(1.0, limit_tokens / int(lengths_N.sum()))
    return spread(len(lengths_N), max(1, int(share * len(lengths_N))))


def of_split(data: TokenData, split: Split) -> Documents:
    """Those of a side of a data folder."""
    sequence, end_id = data.split(split), data.tokenizer.end_id
    ends = sequence.positions(end_id)
    lengths_N = np.diff(ends)

    def read(number: int) -> Tokens:
        return sequence.read(int(ends[number]), int(lengths_N[number]) + 1)

    sources_N = data.sources(split)
    return Documents(read, lengths_N, None, sources_N, [source.file for source in data.manifest.sources])


def of_texts(texts: Sequence[str], tokenizer: Tokenizer) -> Documents:
    """Texts read with a tokenizer, which need not be the one of anything else."""
    end = np.array([tokenizer.end_id])
    bytes_N = np.array([len(text.encode()) for text in texts], dtype=np.int64)
    tokens = []
    with progress("tokens", int(bytes_N.sum()), "bytes") as advance:
        for text, size_bytes in zip(texts, bytes_N.tolist(), strict=True):
            ids = np.array(tokenizer.encode(text), dtype=np.int64)
            tokens.append(np.concatenate([end, ids, end]).astype(np.int32))
            advance(size_bytes)
    lengths_N = np.array([len(ids) - 1 for ids in tokens], dtype=np.int64)
    return Documents(lambda number: tokens[number].astype(np.int64), lengths_N, bytes_N)


def texts_of_file(path: str | Path) -> list[str]:
    """The documents of a text file (.txt, .md, .jsonl, .parquet; see `data.sources`)."""
    with Source(path) as source, progress("reading", source.size_bytes, "bytes") as advance:
        return list(source.documents(advance))


def texts_of_split(data: TokenData, split: Split) -> list[str]:
    """The documents of a side as text, for a model with another tokenizer; `UserError` where tokens do not give it."""
    documents, tokenizer = of_split(data, split), data.tokenizer
    texts = [tokenizer.decode(tokens[1:-1].tolist()) for _, tokens in documents.some(None)]
    expected = data.manifest.splits[split].bytes
    if sum(len(text.encode()) for text in texts) != expected:
        raise UserError(
            f"{data.folder}: its tokens do not give its text back (a {tokenizer.kind} tokenizer); expected a text file"
        )
    return texts
