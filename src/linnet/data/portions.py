"""Inputs in portions, each of which one worker reads: what executors of tasks clean or describe on other machines.

A portion is some whole files, or a part of a large one. How inputs are divided depends on their sizes alone, and a
worker leaves what it made of a portion in a folder of its own, which appears complete or not at all. So a run that was
broken off continues with the portions that are missing, whatever the number of workers.
"""

import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter

from linnet.core.atomic import LockedError, atomic_directory
from linnet.core.checksum import MANIFEST, check_files, write_file_checksums
from linnet.core.errors import UserError, note, print_error
from linnet.core.executors import DONE, REFUSED, TaskExecutor, TaskList, TaskOutcome
from linnet.core.files import read_json, write_json
from linnet.core.spec import Spec
from linnet.data.readers import ReadingCounts
from linnet.data.sources import REPORT, Source, size_and_time
from linnet.data.text_folder import UnfinishedFolder
from linnet.present.progress import Advance, progress

PORTION_BYTES = 64 << 20
MOST_PORTIONS = 500
"""Of very much text portions are larger: a cluster limits the number of tasks."""

PARTS_OF_A_FILE = 16
"""At most so many workers share a file, because each has to read it from its beginning."""

WORK = "work.json"
_LOCKED_POLL_S = 0.5


class SourceFile(Spec):
    """A file that any process can open as the `Source` that it was, unless it was changed meanwhile."""

    name: str
    path: str
    size_bytes: int
    modified_ns: int
    field: str
    separator: str | None
    skip_invalid: bool
    may_be_empty: bool
    url_field: str | None = None

    @classmethod
    def of(cls, source: Source) -> Self:
        """Describe a source; `UserError` for the standard input, a pipe or a data set."""
        if source.path is None:
            raise UserError(f"{source.name}: no other process can read it; expected files, or executor local")
        size_bytes, modified_ns = size_and_time(source.path)
        return cls(
            name=source.name,
            path=str(source.path.absolute()),
            size_bytes=size_bytes,
            modified_ns=modified_ns,
            **source.settings,
        )

    def open(self, part: int = 0, parts: int = 1) -> Source:
        """The source, or a part of it; a context. `UserError` if the file is not what it was."""
        if size_and_time(Path(self.path)) != (self.size_bytes, self.modified_ns):
            raise UserError(f"{self.name}: changed since the work on it began")
        reading = self.field, self.separator, self.skip_invalid, self.may_be_empty, self.url_field
        source = Source(self.path, *reading) if parts == 1 else _PartOfSource(part, parts, self.path, *reading)
        source.name = self.name
        return source


class _PartOfSource(Source):
    """Those documents of a source that end within one of several parts of its bytes, as far as it was read by then.

    `counts` are of the whole source, and known to the last part only.
    """

    def __init__(self, part: int, parts: int, path: str, *reading: Any) -> None:
        super().__init__(path, *reading)
        self._part, self._parts = part, parts

    def pages(self, advance: Advance = lambda *_: None) -> Iterator[tuple[str, str | None]]:
        reached = 0.0
        first, last = (self.size_bytes * edge // self._parts for edge in (self._part, self._part + 1))

        def follow(amount: float, note: str = "", eta_s: float | None = None) -> None:
            nonlocal reached
            reached += amount
            advance(amount, note, eta_s)

        for page in super().pages(follow):
            if reached > last and self._part < self._parts - 1:
                return
            if reached > first or self._part == 0:
                yield page


class Portion(Spec):
    """Some whole files, or one of several parts of one file, which follow each other."""

    files: tuple[SourceFile, ...]
    part: int = 0
    parts: int = 1

    @property
    def size_bytes(self) -> int:
        """The size of its files, or of its part."""
        return sum(file.size_bytes for file in self.files) // self.parts

    def __str__(self) -> str:
        first = self.files[0].name
        if self.parts > 1:
            return f"part {self.part + 1} of {self.parts} of {first}"
        return first if len(self.files) == 1 else f"{first} to {self.files[-1].name}"

    def open(self, stack: ExitStack) -> list[Source]:
        """Its files, or its part of one; the stack closes them."""
        return [stack.enter_context(file.open(self.part, self.parts)) for file in self.files]


class PortionWork(Spec):
    """All that workers have to know: the portions, and what is done with each of them."""

    portions: tuple[Portion, ...]
    settings: dict[str, Any]


def divide(sources: Sequence[Source], portion_bytes: int | None = None) -> tuple[Portion, ...]:
    """Divide files into portions of about `portion_bytes`; neighboring small files are in one.

    `UserError` for what no other process can read.
    """
    files = [SourceFile.of(source) for source in sources]
    size = portion_bytes or max(PORTION_BYTES, sum(file.size_bytes for file in files) // MOST_PORTIONS)
    portions, group = list[Portion](), list[SourceFile]()
    for file in files:
        parts = min(PARTS_OF_A_FILE, max(1, round(file.size_bytes / size)))
        if group and (parts > 1 or sum(each.size_bytes for each in group) + file.size_bytes > size):
            portions.append(Portion(files=tuple(group)))
            group = []
        if parts > 1:
            portions += [Portion(files=(file,), part=part, parts=parts) for part in range(parts)]
        else:
            group.append(file)
    return (*portions, Portion(files=tuple(group))) if group else tuple(portions)


Making = Callable[["PortionFolder", int, Sequence[Source], Path], dict[str, Any]]
"""Reads the sources of the portion with a number, writes what becomes of them into a folder, and returns a report."""


@dataclass(frozen=True)
class PortionFolder:
    """Where work on portions is until what was made of all of them is joined."""

    path: Path
    work: PortionWork

    @classmethod
    def begin(cls, path: Path, work: PortionWork) -> Self:
        """The folder of an earlier call if that did the same work, else an empty one."""
        plain = work.model_dump(mode="json")
        try:
            is_same = read_json(path / WORK)["work"] == plain
        except (UserError, KeyError, TypeError):
            is_same = False
        if not is_same:
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
            write_json(path / WORK, {"work": plain, "todo": []})
        return cls(path, work)

    def place(self, number: int) -> Path:
        """The folder of what was made of a portion."""
        return self.path / f"{number:05}"

    def is_done(self, number: int) -> bool:
        """True if the portion's folder is there."""
        return (self.place(number) / MANIFEST).is_file()

    @property
    def holds_work(self) -> bool:
        """True if there is anything that workers left: portions, parts of them, logs."""
        return any(path.name != WORK for path in self.path.iterdir())

    def check(self, number: int) -> None:
        """`UserError` if files that were made of the portion are missing, cut off or changed."""
        place = self.place(number)
        names = sorted(path.name for path in place.iterdir() if path.name != MANIFEST) if place.is_dir() else []
        listed = read_json(place / MANIFEST).get("files", {}) if self.is_done(number) else {}
        if not names or sorted(listed) != names:
            raise UserError(f"{place}: not all files of {self.work.portions[number]} are there")
        check_files(place, names)

    def run(self, executor: TaskExecutor, module: str, description: str, failed: str) -> None:
        """Let workers make what is missing, by `run_worker` of a module; `UserError` if anything still is.

        description: for the progress bar. failed: what messages say of a portion that was not done.
        """
        portions = self.work.portions
        for number in filter(self.is_done, range(len(portions))):
            try:
                self.check(number)
            except UserError as error:
                note(f"{error}; made again")
                shutil.rmtree(self.place(number))
        todo = [number for number in range(len(portions)) if not self.is_done(number)]
        if len(todo) < len(portions):
            note(
                f"{self.path}: {len(portions) - len(todo):,} of {len(portions):,} portions were done by an earlier call"
            )
        write_json(self.path / WORK, {"work": self.work.model_dump(mode="json"), "todo": todo})
        with progress(description, sum(portion.size_bytes for portion in portions), "bytes") as advance:
            advance(sum(portion.size_bytes for number, portion in enumerate(portions) if number not in todo))
            tasks = TaskList(
                module=module,
                folder=self.path,
                name=description,
                titles=[str(portions[number]) for number in todo],
                failed=failed,
                is_done=lambda index: self.is_done(todo[index]),
                log=note,
                finished=lambda index: advance(portions[todo[index]].size_bytes),
            )
            executor.run(tasks)
        for number in range(len(portions)):
            self.check(number)

    def make(self, number: int, making: Making) -> None:
        """Make what is missing of a portion; wait while another worker does, as one whose caller was killed may."""
        unfinished = UnfinishedFolder(self.place(number))
        while not self.is_done(number):
            try:
                with atomic_directory(self.place(number), unfinished.remove) as folder, ExitStack() as stack:
                    if self.is_done(number):
                        raise LockedError  # by now another has made it
                    self._make(number, making, folder, stack)
            except LockedError:
                time.sleep(_LOCKED_POLL_S)

    def _make(self, number: int, making: Making, folder: Path, stack: ExitStack) -> None:
        portion = self.work.portions[number]
        sources = portion.open(stack)
        report = making(self, number, sources, folder)
        is_last = portion.part == portion.parts - 1
        counts = [asdict(source.counts) for source in sources] if is_last else []
        write_json(folder / REPORT, {"counts": counts, "report": report})
        write_file_checksums(folder, sorted(path.name for path in folder.iterdir()))

    def read_report(self, number: int) -> dict[str, Any]:
        """What `making` returned for a portion."""
        return dict(read_json(self.place(number) / REPORT)["report"])

    def count(self, sources: Sequence[Source]) -> None:
        """Give the sources that were divided the counts of the readings by workers."""
        found: list[Any] = []
        for number in range(len(self.work.portions)):
            found += read_json(self.place(number) / REPORT)["counts"]
        for source, counts in zip(sources, found, strict=True):
            source.counts = TypeAdapter(ReadingCounts).validate_python(counts)

    def remove(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.path, ignore_errors=True)


def work_on_portion(folder: str, index: int, making: Making) -> TaskOutcome:
    """What a worker does: one portion of those that were missing when the call began."""
    path = Path(folder)
    plain = read_json(path / WORK)
    portions = PortionFolder(path, PortionWork.parse(plain["work"], str(path / WORK)))
    if index >= len(plain["todo"]):  # a task of an earlier call, which had more to do
        return TaskOutcome(DONE)
    try:
        portions.make(plain["todo"][index], making)
    except (UserError, OSError) as error:
        reason = f"{error} (process {os.getpid()} on {platform.node()})"
        return TaskOutcome(REFUSED if isinstance(error, UserError) else 1, reason)
    return TaskOutcome(DONE)


def worker_main(run_worker: Callable[..., TaskOutcome], arguments: Sequence[str]) -> int:
    """Carry out a task as a program, whose last line says why it failed; the exit code."""
    result = run_worker(arguments[0], *map(int, arguments[1:]))
    if result.reason:
        print_error(f"error: {result.reason}")
    return result.code
