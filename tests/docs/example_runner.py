"""Running an example in a folder of its own."""

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import example_settings as settings
from documented_examples import Block
from example_workspace import Workspace, is_preset

from linnet.cli.main import main

OUTPUTS = ("--out", "--report", "--save", "--save-state")
"""Options that name what a command makes."""


class Started(BaseException):
    """Training was about to begin."""


def run_block(block: Block, workspace: Workspace, names: dict[str, Any]) -> None:
    """Run a shell or Python block in the working folder. `names` are those of the page's earlier Python blocks."""
    if block.language == "python":
        supply(block.text, workspace)
        exec(compile(block.text, block.origin, "exec"), names)
        return
    for command in block.commands:
        run_command(command, workspace)


def run_command(command: str, workspace: Workspace) -> None:
    """Run one command: small; one that trains also as it stands, up to the first step."""
    if any(command.startswith(beginning) for beginning in settings.PARSED_ONLY):
        return
    if not command.startswith("linnet "):
        subprocess.run(["bash", "-ec", command], check=True)
        return
    words = shlex.split(command)[1:]
    supply(" ".join(_inputs(words)), workspace)
    for output in _outputs(words):
        if output.is_symlink():
            original = output.readlink()
            output.unlink()
            if settings.goes_on(words):
                shutil.copytree(original, output)
    if settings.goes_on(words):
        assert main(smaller(words, workspace)) == 0, command
        return
    if settings.name_of(words) in settings.TRAINS and not starts_training(words):
        return
    assert main(smaller(words, workspace)) == 0, command


def supply(text: str, workspace: Workspace) -> None:
    """Put what is mentioned into the working folder, unless an earlier command has made it."""
    for name in workspace.needed(text):
        path = Path(name)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(workspace.path(name))
            if path.suffix == ".yaml":
                supply(path.read_text(), workspace)


def starts_training(words: list[str]) -> bool:
    """Whether the command as it stands gets as far as a first step; False where it was done without one."""
    with patch("linnet.training.trainer.Trainer.run_steps", side_effect=Started), _elsewhere(words) as moved:
        try:
            code = main(moved)
        except Started:
            return True
    assert code == 0, words
    return False


def smaller(words: list[str], workspace: Workspace) -> list[str]:
    """With small settings, small versions of presets, and patterns of file names resolved."""
    resolved = [
        name for option, word in zip(["", *words], words, strict=False) for name in _small(option, word, workspace)
    ]
    return [*resolved, *settings.small(words)]


def _small(option: str, word: str, workspace: Workspace) -> list[str]:
    if option in ("--model", "--spec") and is_preset(word):
        return [workspace.small_preset(word)]
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]


def _outputs(words: list[str]) -> list[Path]:
    return [Path(value) for option, value in pairwise(words) if option in OUTPUTS]


def _inputs(words: list[str]) -> list[str]:
    made = set() if settings.goes_on(words) else {str(path) for path in _outputs(words)}
    return [word for word in words if word not in made]


@contextmanager
def _elsewhere(words: list[str]) -> Iterator[list[str]]:
    """The same command with `--out` in a folder that is not kept."""
    with tempfile.TemporaryDirectory() as folder:
        yield [*words, "--out", f"{folder}/out"]
