"""What verbs have in common: results and notes, the typed command, checks of output paths, interruptions."""

import logging
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from linnet.cli.process import exit_code
from linnet.core.errors import LOG, UserError, print_error
from linnet.present.show import write, write_json

if TYPE_CHECKING:
    from linnet.interop.exporters import ExportResult
    from linnet.model.decoder import Decoder
    from linnet.present.result import Result


def note(line: str) -> None:
    """Print a line to the standard error; the standard output is for results."""
    print_error(line)


@contextmanager
def notes_after_text() -> Iterator[None]:
    """Hold the notes of the library until the text is complete: on a terminal they would stand within its lines."""
    held: list[logging.LogRecord] = []

    def hold(record: logging.LogRecord) -> bool:
        held.append(record)
        return False

    LOG.addFilter(hold)
    try:
        yield
    finally:
        LOG.removeFilter(hold)
        for record in held:
            LOG.handle(record)


def invocation() -> str:
    """Return the command as it was typed, quoted for a shell; runs and model folders record it."""
    return shlex.join(["linnet", *sys.argv[1:]])


def show_result(result: "Result", out: Path | None, as_json: bool) -> None:
    """Print a result as tables or JSON, and write its page into the folder `out` if one is given."""
    from linnet.present.show import show

    show(result, invocation(), as_json, out)


def echo_model_made(decoder: "Decoder", out: Path, as_json: bool) -> None:
    """Print the size of a new model folder as `echo_export_result` does."""
    from linnet.interop.exporters import ExportResult
    from linnet.model.folder import WEIGHTS

    echo_export_result(ExportResult.of(out, decoder, out / WEIGHTS), as_json)


def echo_export_result(made: "ExportResult", as_json: bool) -> None:
    """Print the parameters, the bytes of the weights and the measurements of an exported model."""
    if as_json:
        size = {"parameters": made.parameters, "weights_bytes": made.weights_bytes}
        write_json({"model": str(made.path), "name": made.name, **size, **made.figures})
        return
    write(f"{made.path}: {made.name}, {made.parameters:,} parameters, {made.weights_bytes:,} bytes of weights\n")
    for line in made.messages:
        write(f"{line}\n")


@contextmanager
def interruptions_reported() -> Iterator[None]:
    """End trainings that were stopped or diverged with one line and the exit code of the reason."""
    from linnet.experiments.jobs import ExperimentStopped
    from linnet.training.run_folder import DivergedError

    try:
        yield
    except DivergedError as error:
        note(f"error: {error}")
        raise typer.Exit(1) from None
    except (ExperimentStopped, KeyboardInterrupt) as stop:
        note(f"{str(stop) or 'interrupted'}; the same command continues")
        number = stop.signal if isinstance(stop, ExperimentStopped) else signal.SIGINT
        raise typer.Exit(exit_code(number)) from None


@contextmanager
def stopped_tasks_reported() -> Iterator[None]:
    """End work that was asked to stop, and that the same command takes up, with one line and the code of the signal."""
    from linnet.core.executors import TasksStopped

    try:
        yield
    except (TasksStopped, KeyboardInterrupt) as stop:
        note(f"{str(stop) or 'interrupted'}; the same command continues")
        number = stop.signal if isinstance(stop, TasksStopped) else signal.SIGINT
        raise typer.Exit(exit_code(number)) from None


def check_out_path(path: Path, option: str, kind: str) -> None:
    """Raise `UserError`, before anything takes time, if nothing can be written at the path.

    kind: `FILE`, `DIR`, or another word where it may be either.
    """
    if kind == "FILE" and path.is_dir():
        raise UserError(f"{option} {path}: is a folder; a file is expected")
    for folder in (path, *path.parents) if kind == "DIR" else path.parents:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{option} {path}: {folder} is a file; a folder is expected")


def note_replaced(*paths: Path) -> None:
    """Name the files that are about to be replaced."""
    for path in paths:
        if path.is_file():
            note(f"replaced: {path}")
