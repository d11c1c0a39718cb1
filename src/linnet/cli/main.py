"""The command line: its verbs, and what becomes of an error.

Exit codes: 0; 1: the run failed; 2: the user's input is wrong, and one line says what and where; 128 plus the number of
a signal that ended the command, such as 130 for Ctrl-C.
"""

import importlib
import keyword
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from linnet.cli import process
from linnet.core.errors import LOG, UserError, is_out_of_memory, one_line, print_error
from linnet.core.system import NotDistributedError, exit_process, is_rank0, quiet_torch_distributed, refuse_distributed

VERBS = {
    "demo": "Train three tiny models on the same stories; compare them.",
    "spec": "List and describe models, and what they cost.",
    "plan": "Plan a training run; fit scaling laws to runs.",
    "design": "Find the shape of a model under a budget.",
    "data": "Clean text, leave out copies; show conversations.",
    "tokenizer": "Train and compare tokenizers; check chat templates.",
    "prepare": "Turn text into token shards to train on.",
    "train": "Train a model, or continue an interrupted run.",
    "runs": "List runs, compare two, show their curves.",
    "generate": "Continue a prompt with a model.",
    "chat": "Talk with a model in the terminal.",
    "serve": "Serve models over HTTP, with OpenAI's interface.",
    "evaluate": "Measure a model on text or tasks: bits per byte, scores.",
    "vectors": "Train word vectors; nearest words, analogies.",
    "ngram": "Count n-grams: a baseline without a neural network.",
    "compare": "Train several models on one text, or compare runs.",
    "import": "Turn a published checkpoint into a model folder.",
    "export": "Write a model in another form.",
    "inspect": "Look inside a model: causality, memory, experts.",
}
"""The verbs and their summaries. The module `linnet.cli.VERB` defines the command, a function or a group, under the
verb's name; both have a trailing underscore if the verb is a Python keyword: `import_`.
"""

GROUPS = {
    "Begin": ("demo",),
    "Describe and plan": ("spec", "plan", "design"),
    "Train": ("data", "tokenizer", "prepare", "vectors", "train", "runs", "compare"),
    "Use and measure": ("generate", "chat", "serve", "evaluate", "inspect", "ngram"),
    "Exchange": ("import", "export"),
}
"""The verbs as the help lists them."""

DISTRIBUTED_VERBS = ("train",)
"""Verbs that several processes run together (torchrun)."""

PATH_ERRORS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors of the system for a path that the user named wrongly."""

NUMBER_ERRORS = ("int_", "float_", "greater_", "less_")
"""Prefixes of pydantic's error types about numbers."""


class LazyGroup(TyperGroup):
    """Lists every verb, and imports the module of the one that is called."""

    def __init__(self, **settings: Any) -> None:
        listed = [TyperCommand(verb, help=summary) for verb, summary in VERBS.items()]
        super().__init__(**{**settings, "commands": listed})

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, self.commands))
        grouped = [verb for group in GROUPS.values() for verb in group]
        others = tuple(verb for verb in self.commands if verb not in grouped)
        for title, verbs in {**GROUPS, "Other": others}.items():
            if verbs:
                with formatter.section(title):
                    formatter.write_dl([(verb.ljust(width), self.commands[verb].help) for verb in verbs])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        verb, _, rest = super().resolve_command(ctx, args)
        assert verb is not None
        if verb not in DISTRIBUTED_VERBS:
            refuse_distributed(verb)
        return verb, load_verb(verb), rest


def load_verb(verb: str) -> Any:
    """Import a verb's module and return its command.

    A function may name its command class, `cls = with_fields(...)`, in the module as `COMMAND`, and the options that a
    shortened help shows as `USUAL`.
    """
    from linnet.cli.options import finish_command

    name = f"{verb}_" if keyword.iskeyword(verb) else verb
    module = importlib.import_module(f"linnet.cli.{name}")
    command = getattr(module, name)
    if not isinstance(command, typer.Typer):
        function, command = command, typer.Typer(add_completion=False, rich_markup_mode=None)
        command.command(verb, cls=getattr(module, "COMMAND", None))(function)
    built = typer.main.get_command(command)
    own = "own_commands" if hasattr(built, "own_commands") else "commands"  # others are imported when they are called
    finish_command(built, getattr(module, "USUAL", ()))
    for part in getattr(built, own, {}).values():
        finish_command(part)
    return built


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from linnet import __version__

        print(f"linnet {__version__}")
        raise typer.Exit


@app.callback()
def linnet(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Workshop for small language models: choose a shape, prepare text, train, measure, run.

    Example: linnet demo

    Every command has its own help with an example, such as linnet train --help.
    With --help-all the help shows every option.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: that of this process) and return its exit code."""
    code = _run(arguments)
    if arguments is None:
        exit_process(code)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    try:
        if arguments is None:
            process.guard_streams()
            # Plain lines, also if a library configures logging with a format of its own.
            LOG.addHandler(logging.StreamHandler())
            LOG.propagate = False
            process.listen()
            quiet_torch_distributed()
        code = _invoke(sys.argv[1:] if arguments is None else list(arguments))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        process.close_output()
        return 1
    except KeyboardInterrupt:
        return _fail("interrupted", process.exit_code(signal.SIGINT))
    except NotDistributedError as error:
        return _fail(f"error: {error}", 2) if is_rank0() else 2
    except UserError as error:
        return _fail(f"error: {error}", 2)
    except typer.TyperException as error:
        return _fail(f"error: {_usage_error(error)}", 2) if is_rank0() else 2
    except OSError as error:
        if error.filename == "standard output":
            process.close_output()
        place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return _fail(f"error: {place}{error.strerror or error}", 2 if isinstance(error, PATH_ERRORS) else 1)
    except Exception as error:
        if process.received_signal() is None and not is_out_of_memory(error):
            raise
        return _fail("error: out of memory; use a smaller batch, context or model", 1)


def _invoke(arguments: list[str]) -> int:
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UserError(f"{argument}: not UTF-8 text; expected file names and values in UTF-8") from None
    try:
        with typer.main.get_command(app).make_context("linnet", arguments or ["--help"]) as context:
            context.command.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    return 0


def _fail(line: str, code: int) -> int:
    """Print the reason and return the exit code; a signal is the reason even if a library raised something else."""
    number = process.received_signal()
    if number is None:
        print_error(one_line(line))
        return code
    if number == signal.SIGINT:
        print_error("interrupted")
    return process.exit_code(number)


def _usage_error(error: typer.TyperException) -> str:
    """Return what is wrong with the command line and which help describes it, on one line."""
    message = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    if isinstance(error, typer.BadParameter):
        message = _with_value(message, error)
    elif message.startswith("No such command") and "Did you mean" not in message:
        message = f"{message}; expected {', '.join(context.command.commands)}"
    return f"{message} (see {context.command_path} --help)"


def _with_value(message: str, error: typer.BadParameter) -> str:
    """Add the value and the accepted range to the message about a number."""
    from pydantic import ValidationError

    cause, option = error.__cause__, error.param
    found = cause.errors()[0] if isinstance(cause, ValidationError) else {"type": ""}
    if not isinstance(option, TyperOption) or not found["type"].startswith(NUMBER_ERRORS):
        return message
    is_integer = option.type_descriptor.annotation in (int, list[int])
    limits = (("at least", option.min), ("at most", option.max))
    bounds = [f"{words} {bound:,.10g}" for words, bound in limits if bound is not None]
    accepted = ", ".join(["a whole number" if is_integer else "a number", *bounds])
    return f"{message.partition(': ')[0]}: {found['input']}: expected {accepted}"
