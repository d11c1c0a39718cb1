"""The file operations of a command, as they happen: seen, counted, and attacked.

Python tells most of them to audit hooks; writing, fsync, and files that libraries write have to be wrapped. Each has a
number, so that the n-th can be met by a kill or an error. A hook cannot be taken off: only for children.
"""

import builtins
import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOLD = {
    "os.rename": "rename", "os.remove": "remove", "os.mkdir": "mkdir", "os.rmdir": "rmdir", "os.link": "link",
    "os.symlink": "link", "os.chmod": "chmod", "os.truncate": "truncate", "fcntl.flock": "lock",
    "fcntl.lockf": "lock",
}  # fmt: skip
"""Audit events that change the disk."""

FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

plain_open, plain_fsync, plain_write = io.open, os.fsync, os.write


@dataclass(frozen=True)
class Operation:
    """One of them; `path` (of a rename the new one) is relative to the working folder, empty where unknown."""

    kind: str
    path: str

    @property
    def changes(self) -> bool:
        """Whether it is more than reading."""
        return self.kind != "read"


Act = Callable[[int, Operation], None]


class Operations:
    """Calls `act(number, operation)` before each operation; one of kind `half` comes in the middle of a writing."""

    def __init__(self, act: Act, reads: bool = False) -> None:
        self.folder, self.act, self.reads = os.path.realpath(Path.cwd()), act, reads
        self.number, self.quiet = 0, False

    def begin(self) -> None:
        """From now on, in this process, for ever."""
        sys.addaudithook(self._audit)
        builtins.open = io.open = self._open  # type: ignore[assignment]
        os.fsync = self._fsync
        _wrap_libraries(self)

    def met(self, kind: str, path: Any, handle: int = -1) -> None:
        """An operation is about to happen."""
        found = self._within(path, handle)
        if self.quiet or found is None or (kind == "read" and not self.reads):
            return
        self.quiet = True  # what `act` does is none of the command's
        try:
            self.act(self.number, Operation(kind, found))
            self.number += 1
        finally:
            self.quiet = False

    def _within(self, path: Any, handle: int) -> str | None:
        if isinstance(path, int) or path is None:
            return ""
        name = os.fsdecode(path)
        if handle != -1:
            return name
        parent, _, last = name.rpartition("/")
        whole = f"{os.path.realpath(parent or ('/' if name.startswith('/') else '.'))}/{last}"
        return os.path.relpath(whole, self.folder) if whole.startswith(f"{self.folder}/") else None

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.quiet:
            return
        if event == "open":
            path, _, flags = arguments
            if not isinstance(path, int):
                self.met("open" if (flags or 0) & FOR_WRITING else "read", path)
        elif event in TOLD:
            handles = [value for value in arguments[1:] if isinstance(value, int)] if event != "os.chmod" else []
            self.met(
                TOLD[event], arguments[event == "os.rename"], handles[-1] if handles and TOLD[event] != "lock" else -1
            )

    def _fsync(self, handle: Any) -> None:
        self.met("fsync", None)
        plain_fsync(handle)

    def _open(
        self, file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None, errors: str | None = None,
        newline: str | None = None, closefd: bool = True, opener: Any = None,
    ) -> Any:  # fmt: skip
        if not set(mode) & set("wax+") or self._within(file, -1) is None or (isinstance(file, int) and file < 3):
            return plain_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = Watched(self, file, "".join(sorted(set(mode) - set("tb"), key="rwax+".index)), closefd, opener)
        if buffering == 0:
            return raw
        buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline, buffering == 1)


class Watched(io.FileIO):
    """A file whose writings are operations, each in two halves."""

    def __init__(self, operations: Operations, file: Any, mode: str, closefd: bool, opener: Any) -> None:
        super().__init__(file, mode, closefd, opener)
        self.operations = operations

    def write(self, content: Any) -> int:
        plain = bytes(content)
        told = None if isinstance(self.name, int) else self.name
        self.operations.met("write", told)
        first = plain[: len(plain) // 2]
        done = super().write(first) if first else 0
        if done < len(first):
            return done
        self.operations.met("half", told)
        return done + super().write(plain[len(first) :])


def _wrap_libraries(operations: Operations) -> None:
    """Files that compiled code writes: a half of one is its first half."""
    import safetensors.torch

    plain = safetensors.torch.serialize_file

    def serialize_file(tensors: Any, filename: Any, **named: Any) -> None:
        operations.met("write", filename)
        plain(tensors, filename, **named)
        _halved(operations, Path(filename))

    safetensors.torch.serialize_file = serialize_file


def _halved(operations: Operations, path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    operations.met("half", path)
    path.write_bytes(whole)


def recording(reads: bool = True) -> tuple[Callable[[], None], Callable[[], list[Operation]]]:
    """An arrangement for a child, and what reads its operations here afterwards."""
    handle = os.memfd_create("operations")

    def arrange() -> None:
        def tell(number: int, operation: Operation) -> None:
            plain_write(handle, (json.dumps([operation.kind, operation.path]) + "\n").encode())

        Operations(tell, reads).begin()

    def told() -> list[Operation]:
        os.lseek(handle, 0, os.SEEK_SET)
        with plain_open(handle) as stream:
            return [Operation(*json.loads(line)) for line in stream]

    return arrange, told
