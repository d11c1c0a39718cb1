"""A corpus: the documents of files, each on the side of the split where it belongs; what is told of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

from linnet.core.errors import UserError
from linnet.data.shards import SourceInfo
from linnet.data.sources import Source, open_sources
from linnet.data.split import Split, Survey, cut_last_part
from linnet.present.progress import progress

_FREQUENT = 10


class Document(NamedTuple):
    """A document as it is written: its side, its texts, and the number of its source.

    texts: one; or two, of which only the second, the target of the first, counts in the loss.
    """

    side: Split
    texts: tuple[str, ...]
    source: int = 0


@dataclass(frozen=True)
class Corpus:
    """Documents with their side, which can be read several times. pairs: each is an input and a target."""

    documents: Callable[[], Iterator[Document]]
    sources: list[SourceInfo]
    pairs: bool = False

    @property
    def text_bytes(self) -> int:
        return sum(source.bytes for source in self.sources)


def read_corpus(
    sources: list[Source], validation: float | None, names: Sequence[str] | None = None
) -> tuple[Corpus, float]:
    """First pass: count, and decide the split. Returns the documents and the fraction that is held out.

    names: of the sources of a mixture, for each file.
    """
    total, found = Survey(), []
    with progress("reading", sum(source.size_bytes for source in sources), "bytes") as advance:
        for source, name in zip(sources, names or repeat(None, len(sources)), strict=True):
            before = total.documents, total.text_bytes
            for text in source.documents(advance):
                total.add(text)
            documents, text_bytes = total.documents - before[0], total.text_bytes - before[1]
            found.append(SourceInfo(file=source.name, documents=documents, bytes=text_bytes, name=name))
    if not total.documents:
        raise UserError(f"{sources[0].name} and {len(sources) - 1:,} other files: no documents, every one is empty")
    holdout = total.holdout(validation)

    def documents_of_all() -> Iterator[Document]:
        for number, source in enumerate(sources):
            for text in source.documents():
                yield from (Document(side, (part,), number) for side, part in holdout.parts(text))

    return Corpus(documents_of_all, found), holdout.fraction


def read_split(inputs: list[str]) -> tuple[dict[Split, list[str]], list[SourceInfo]]:
    """The documents of text files, each on the side where `prepare` puts it, in order; what each file holds."""
    sides: dict[Split, list[str]] = {"train": [], "validation": []}
    with ExitStack() as stack:
        corpus, _ = read_corpus(open_sources(stack, inputs), None)
        for document in corpus.documents():
            sides[document.side].append(document.texts[0])
    return sides, corpus.sources


def single_document_note(sources: Sequence[SourceInfo]) -> str | None:
    """A note on files that are a single document among others, and so lie on one side of the split; None if none is."""
    files = [source.file for source in sources if source.documents == 1]
    if not files or len(sources) == 1:
        return None
    others = f" and {len(files) - 3:,} others" if len(files) > 3 else ""
    names = f"{files[0]} is" if len(files) == 1 else f"{', '.join(files[:3])}{others} are each"
    cure = "a text file is cut at <|endoftext|>, a .jsonl file has a document in each line"
    return f"{names} one document, which is trained on or held out as a whole: {cure}"


def undivided_note(sources: Sequence[Source], corpus: Corpus, fraction: float) -> str | None:
    """A note on files that are one document each: what becomes of them, and what could divide them."""
    pairs = zip(sources, corpus.sources, strict=True)
    # A web page is one document, however it is written.
    single = next((source for source, found in pairs if found.documents == 1 and source.kind != "html"), None)
    if single is None:
        return None
    text, name = next(single.documents()), single.name
    if len(sources) == 1:
        cut = len(cut_last_part(text, fraction)[0].encode())
        line = f"{name} is one document, cut at byte {cut:,}: it is trained on up to there, the rest is held out"
    else:
        line = f"{single_document_note(corpus.sources)}; or give --document-separator"
    blank = [mark for mark in ("\r\n\r\n", "\n\n") if text.count(mark) >= _FREQUENT]
    return f"{line}; blank lines are frequent in {name}: --document-separator {blank[0]!r}?" if blank else line
