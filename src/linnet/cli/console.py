"""What every verb says beside its figures, and how it was called."""

import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from linnet.cli import signals
from linnet.core.errors import UserError, print_error
from linnet.present.show import write, write_json

if TYPE_CHECKING:
    from linnet.interop.exporters import ExportResult
    from linnet.model.decoder import Decoder
    from linnet.present.result import Part, Picture, Result


def note(line: str) -> None:
    """A line on the standard error: the standard output is for figures and text."""
    print_error(line)


@contextmanager
def interruptions_reported() -> Iterator[None]:
    """Trainings that were asked to stop, or broke down, end in one line and the exit code of what ended them."""
    from linnet.experiments.runner import ExperimentStopped
    from linnet.training.run_folder import DivergedError

    try:
        yield
    except DivergedError as error:
        note(f"error: {error}")
        raise typer.Exit(1) from None
    except (ExperimentStopped, KeyboardInterrupt) as stop:
        note(f"{str(stop) or 'interrupted'}; the same command goes on")
        number = stop.signal if isinstance(stop, ExperimentStopped) else signal.SIGINT
        raise typer.Exit(signals.exit_code(number)) from None


def invocation() -> str:
    """The command as it was typed, ready for a shell; runs and model folders keep it."""
    return shlex.join(["linnet", *sys.argv[1:]])


def is_on_command_line(context: typer.Context, name: str) -> bool:
    """Whether a parameter stood on the command line, its default value included."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def option_of(context: typer.Context, name: str) -> str:
    """How a parameter is written: `--max-flops`."""
    return next(found.opts[0] for found in context.command.params if found.name == name)


def refuse_before(context: typer.Context) -> None:
    """An option before a subcommand would be forgotten: a `UserError` names it."""
    for name in context.params:
        if is_on_command_line(context, name):
            raise UserError(
                f"{option_of(context, name)}: stands before {context.invoked_subcommand}; it belongs to"
                f" {context.command_path} itself"
            )


def check_out_file(path: Path | None, option: str = "--out") -> None:
    """Whether a file can be written there, before anything takes time; `UserError` where it cannot."""
    if path is None:
        return
    if path.is_dir():
        raise UserError(f"{option} {path}: is a folder; a file is expected")
    _refuse_file_among(list(path.parents), f"{option} {path}")


def note_replaced(*paths: Path) -> None:
    """Before files are written: those that are there will be lost, which is said."""
    for path in paths:
        if path.is_file():
            note(f"replaced: {path}")


def check_out_folder(path: Path | None, option: str) -> None:
    """Whether a folder can be made there, before anything takes time; `UserError` where it cannot."""
    if path is not None:
        _refuse_file_among([path, *path.parents], f"{option} {path}")


def _refuse_file_among(folders: list[Path], said: str) -> None:
    for folder in folders:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{said}: {folder} is a file; a folder is expected")


def show_result(result: "Result", out: Path | None, as_json: bool) -> None:
    """Print a result as tables or JSON, and write its page into the folder `out` if one is given."""
    from linnet.present.show import show

    show(result, invocation(), as_json, out)


def show(
    title: str,
    facts: dict[str, str],
    figures: dict[str, Any],
    parts: "Sequence[Part]",
    pictures: "Callable[[], Sequence[Picture]]",
    out: Path | None,
    as_json: bool,
    conclusion: str = "",
) -> None:
    """Show an answer that is not yet a `Result` of its own."""
    from linnet.present.result import Answer

    show_result(Answer(title, facts, figures, parts, pictures, conclusion), out, as_json)


def echo_model_made(decoder: "Decoder", out: Path, as_json: bool) -> None:
    """A model folder that was made, as `echo_export_result` says it."""
    from linnet.interop.exporters import ExportResult
    from linnet.model.store import WEIGHTS

    echo_export_result(ExportResult.of(out, decoder, out / WEIGHTS), as_json)


def echo_export_result(made: "ExportResult", as_json: bool) -> None:
    """A model that was written: its parameters, the bytes of its weights and what was measured, in lines or as JSON."""
    if as_json:
        size = {"parameters": made.parameters, "weights_bytes": made.weights_bytes}
        write_json({"model": str(made.path), "name": made.name, **size, **made.figures})
        return
    write(f"{made.path}: {made.name}, {made.parameters:,} parameters, {made.weights_bytes:,} bytes of weights\n")
    for line in made.messages:
        write(f"{line}\n")
