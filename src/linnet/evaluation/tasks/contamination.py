"""Items that share a run of words with a training text.

As for GPT-3 (Brown et al., 2020, appendix C): 13 consecutive words in lower case without punctuation. An item of fewer
words is shared if all of them are consecutive in the text; one of fewer than 8 words is never shared.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from linnet.core.checksum import MANIFEST
from linnet.data.sources import Source, expand_inputs
from linnet.data.token_data import TokenData
from linnet.evaluation.tasks.suite import SuiteTask
from linnet.present.progress import progress

RUN_WORDS, MIN_WORDS = 13, 8


@dataclass(frozen=True)
class Overlap:
    """For each item of a task: whether it shares a run of words with the text, and whether it is too short to tell."""

    shared_N: NDArray[np.bool_]
    short_N: NDArray[np.bool_]


class WordRunIndex:
    """The runs of words of the items of several tasks, to be searched for in a text."""

    def __init__(self, tasks: Sequence[SuiteTask]) -> None:
        self._items_of_run: dict[str, set[tuple[int, int]]] = {}
        self._prefixes: set[str] = set()
        self._lengths: set[int] = set()
        self._shared: set[tuple[int, int]] = set()
        self._short = [np.ones(len(task.items), dtype=np.bool_) for task in tasks]
        for number, task in enumerate(tasks):
            for place, item in enumerate(task.items):
                for words in map(words_of, item.own_texts):
                    length = min(RUN_WORDS, len(words))
                    if length < MIN_WORDS:
                        continue
                    self._short[number][place] = False
                    self._lengths.add(length)
                    for start in range(len(words) - length + 1):
                        self._prefixes.add(" ".join(words[start : start + MIN_WORDS]))
                        run = " ".join(words[start : start + length])
                        self._items_of_run.setdefault(run, set()).add((number, place))

    def read(self, text: str) -> None:
        """Record the items that share a run with this text."""
        words = words_of(text)
        for start in range(len(words) - MIN_WORDS + 1):
            if " ".join(words[start : start + MIN_WORDS]) in self._prefixes:
                for length in self._lengths:
                    self._shared |= self._items_of_run.get(" ".join(words[start : start + length]), set())

    def overlaps(self) -> list[Overlap]:
        """The overlap of each task with all texts read so far."""
        found = [Overlap(np.zeros(len(short_N), dtype=np.bool_), short_N) for short_N in self._short]
        for task, place in self._shared:
            found[task].shared_N[place] = True
        return found


def overlaps_with(tasks: Sequence[SuiteTask], path: Path) -> list[Overlap]:
    """The overlap of each task with a training text: a file, a folder of files, or a folder of `linnet prepare`."""
    runs = WordRunIndex(tasks)
    with progress("training text", None, "documents") as advance:
        for document in documents_of(path):
            runs.read(document)
            advance(1)
    return runs.overlaps()


def documents_of(path: Path) -> Iterator[str]:
    """The documents of a text; for a prepared folder, those of its training split."""
    if path.is_dir() and (path / MANIFEST).exists():
        data = TokenData.open(path)
        sequence, start = data.split("train"), 0
        for end in sequence.document_bounds.tolist():
            if end > start:
                yield data.tokenizer.decode(sequence.read(start, end - start).tolist())
            start = end + 1
        return
    for file in expand_inputs([str(path)]):
        with Source(file, may_be_empty=file != str(path), has_choice=False) as source:
            yield from source.documents()


def words_of(text: str) -> list[str]:
    """The words in lower case, without punctuation."""
    return re.findall(r"\w+", text.lower())
