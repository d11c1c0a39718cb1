"""What every verb says beside its figures, and how it was called."""

import shlex
import sys

import typer


def note(line: str) -> None:
    """A line on the standard error: the standard output is for figures and text."""
    typer.echo(line, err=True)


def invocation() -> str:
    """The command as it was typed, ready for a shell; runs and model folders keep it."""
    return shlex.join(["linnet", *sys.argv[1:]])
