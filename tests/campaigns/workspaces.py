"""A folder for each command of the documentation, with the files that it needs and nothing else.

The files are those of the documentation's tests: made once, by linnet where it makes such files, then copied.
"""

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import example_runner
import example_workspace
from documented_examples import help_examples
from example_runner import OUTPUTS, smaller
from example_settings import PARSED_ONLY, name_of
from example_workspace import Workspace

MORE = (
    "linnet prepare stories.txt --vocab-size 280 --out data/stories --overwrite",
    "linnet prepare my.txt --tokenizer unigram --vocab-size 270 --out data/pieces",
    "linnet prepare my.txt --tokenizer bytes --out data/bytes",
    "linnet inspect lifetimes runs/ted --out inspected --json",
    "linnet evaluate runs/stories --data data/stories --json",
    "linnet generate runs/pldr --prompt Once --json",
    "linnet train --config run.yaml --out runs/kept --set training.checkpoint.every=1 --set training.steps=6",
)
"""What the examples of the help texts leave out."""


TOO_LONG = (
    "linnet design study --out runs/study", "linnet plan --hours 24", "linnet demo --out tried",
    "linnet train --out runs/ted --verify-resume",
)  # fmt: skip
"""Examples that take ten seconds and more, or do what another does."""


@dataclass(frozen=True)
class Command:
    """A command line of the documentation, made small."""

    example: str
    words: tuple[str, ...]
    template: Path

    @property
    def name(self) -> str:
        """`inspect caches`."""
        return name_of(list(self.words))

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the options name that it makes."""
        return tuple(b for a, b in zip(self.words, self.words[1:], strict=False) if a in OUTPUTS)


class Store:
    """The folder of originals; `made` are the hashes of those files in it that linnet wrote, as it left them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.made = folder, set[str]()
        folder.mkdir(parents=True, exist_ok=True)
        self.originals = Workspace(Path())

    def fill(self) -> None:
        """Make all of it, in a child's working folder."""
        plain = example_workspace.main

        def watched(words: Sequence[str]) -> int:
            before = _hashes(Path())
            code = plain(words)
            self.made |= {found for path, found in _hashes(Path()).items() if before.get(path) != found}
            return code

        example_workspace.main = watched
        for name in example_workspace.MAKERS:
            self.originals.path(name)
        Path("made.txt").write_text("\n".join(sorted(self.made & set(_hashes(Path()).values()))))

    def load(self) -> None:
        """Know what was made, in this process."""
        self.made = set((self.folder / "made.txt").read_text().split())

    def command(self, example: str, number: int) -> Command:
        """The command, with a template of its own."""
        template = self.folder / "templates" / f"{number:03d}"
        template.mkdir(parents=True)
        words = shlex.split(example)[1:]
        given = example_runner._inputs(words) if "--overwrite" not in words else words
        with chdir(template):
            self._supply(" ".join(given))
            small = smaller(words, _Local(self.folder))
        return Command(example, tuple(small), template)

    def plainly(self, command: Command) -> Command:
        """The command as it stands, for a form of it that takes no small settings."""
        with chdir(command.template):
            words = [found for word in shlex.split(command.example)[1:] for found in _globbed(word)]
        return Command(command.example, tuple(words), command.template)

    def _supply(self, text: str) -> None:
        for name in self.originals.needed(text):
            self._copy(name.replace("/", "%"), Path(name))

    def _copy(self, original: str, to: Path) -> None:
        if to.exists():
            return
        to.parent.mkdir(parents=True, exist_ok=True)
        source = self.folder / original
        if source.is_dir():
            shutil.copytree(source, to)
        else:
            shutil.copy(source, to)
        for path in [to, *to.rglob("*")]:
            if path.suffix in (".yaml", ".json") and path.is_file():
                self._supply_recorded(path.read_text())

    def _supply_recorded(self, text: str) -> None:
        """What is mentioned by its name in the store, as in the record of a run, or (in a user's file) by its own."""
        for recorded in set(re.findall(r"[\w.]+(?:%[\w.]+)+", text)):
            if (self.folder / recorded).exists():
                self._copy(recorded, Path(recorded))
        if len(text) < 20_000:
            self._supply(" ".join(re.findall(r"^data: (\S+)", text, flags=re.MULTILINE)))


class _Local(Workspace):
    """Small versions of presets lie in the working folder."""

    def small_preset(self, preset: str) -> str:
        made = Path(super().small_preset(preset))
        shutil.copy(made, made.name) if made.is_file() else None
        return made.name


def _globbed(word: str) -> list[str]:
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]


def documented() -> list[str]:
    """The examples of all help texts that are run, and what they leave out."""
    return [e for e in [*help_examples(), *MORE] if not any(e.startswith(start) for start in (*PARSED_ONLY, *TOO_LONG))]


def copy_of(template: Path, to: Path) -> Path:
    """A fresh workspace."""
    shutil.copytree(template, to, symlinks=True)
    return to


def remove(folder: Path) -> None:
    """All of it, whatever an attack made of it."""
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _hashes(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and "templates" not in path.parts)
    return {str(path): sha256(path.read_bytes()).hexdigest() for path in files}
