"""Which items a training text knows: those that share a run of words with it.

As for GPT-3 (Brown et al., 2020, appendix C): 13 words, lower case, punctuation left out; an item of fewer words counts
where all of them stand there in a row, one of fewer than 8 never does.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from linnet.core.checksum import MANIFEST
from linnet.core.errors import UserError
from linnet.data.shards import TokenData
from linnet.data.sources import Source
from linnet.evaluation.tasks.suite import SuiteTask
from linnet.present.progress import progress

MOST_WORDS, LEAST_WORDS = 13, 8
TEXT_SUFFIXES = (".txt", ".text", ".md", ".jsonl", ".ndjson", ".parquet")


@dataclass(frozen=True)
class Overlap:
    """Of a task: which items share a run of words with the text, and which are too short to tell, bool `[N]` each."""

    shared_N: NDArray[np.bool_]
    short_N: NDArray[np.bool_]


class WordRunIndex:
    """The runs of words of many tasks' items, to be met in a text."""

    def __init__(self, tasks: Sequence[SuiteTask]) -> None:
        self._holders: dict[str, set[tuple[int, int]]] = {}
        self._beginnings: set[str] = set()
        self._lengths: set[int] = set()
        self._met: set[tuple[int, int]] = set()
        self._shorts = [np.ones(len(task.items), dtype=np.bool_) for task in tasks]
        for number, task in enumerate(tasks):
            for place, item in enumerate(task.items):
                for text in item.own:
                    self._add(words_of(text), number, place)

    def _add(self, words: list[str], task: int, place: int) -> None:
        length = min(MOST_WORDS, len(words))
        if length < LEAST_WORDS:
            return
        self._shorts[task][place] = False
        self._lengths.add(length)
        for start in range(len(words) - length + 1):
            self._beginnings.add(_joined(words, start, LEAST_WORDS))
            self._holders.setdefault(_joined(words, start, length), set()).add((task, place))

    def read(self, text: str) -> None:
        """Remember the items that share a run with this text."""
        words = words_of(text)
        for start in range(len(words) - LEAST_WORDS + 1):
            if _joined(words, start, LEAST_WORDS) in self._beginnings:
                for length in self._lengths:
                    self._met |= self._holders.get(_joined(words, start, length), set())

    def overlaps(self) -> list[Overlap]:
        """Of each task, after all texts were read."""
        found = [Overlap(np.zeros(len(short_N), dtype=np.bool_), short_N) for short_N in self._shorts]
        for task, place in self._met:
            found[task].shared_N[place] = True
        return found


def overlaps_with(tasks: Sequence[SuiteTask], path: Path) -> list[Overlap]:
    """Of each task with a training text: a file, a folder of files, or a folder made by `linnet prepare`."""
    runs = WordRunIndex(tasks)
    with progress("training text", None, "documents") as advance:
        for document in documents_of(path):
            runs.read(document)
            advance(1)
    return runs.overlaps()


def documents_of(path: Path) -> Iterator[str]:
    """The documents of a text; of a prepared folder those of its training split."""
    if not path.is_dir():
        yield from _documents_of_files([path])
    elif (path / MANIFEST).exists():
        yield from _prepared(TokenData.open(path))
    else:
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in TEXT_SUFFIXES and file.is_file())
        if not files:
            accepted = f"a file, or a folder with files of {', '.join(TEXT_SUFFIXES)}"
            raise UserError("no text in it", field="train_text", value=path, accepted=accepted)
        yield from _documents_of_files(files)


def _documents_of_files(files: Iterable[Path]) -> Iterator[str]:
    for file in files:
        with Source(file) as source:
            yield from source.documents()


def _prepared(data: TokenData) -> Iterator[str]:
    sequence, start = data.split("train"), 0
    for end in sequence.positions(data.tokenizer.end_id).tolist():
        if end > start:
            yield data.tokenizer.decode(sequence.read(start, end - start).tolist())
        start = end + 1


def words_of(text: str) -> list[str]:
    """Lower case, without punctuation."""
    return re.findall(r"\w+", text.lower())


def _joined(words: list[str], start: int, count: int) -> str:
    return " ".join(words[start : start + count])
