"""The frame of the command line: which verbs there are, and what becomes of an error.

Exit codes: 0, 1 (the run failed), 2 (the user's input is wrong; one line says what and where), 128 and the number of a
signal that ended it: 130 for Ctrl-C.
"""

import functools
import importlib
import keyword
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from linnet.cli import signals, streams
from linnet.cli.bounds import check_numbers
from linnet.core.errors import UserError, is_out_of_memory, one_line, print_error
from linnet.core.system import NotDistributedError, exit_process, is_rank0, quiet_torch_distributed, refuse_distributed

VERBS = {
    "demo": "Train three tiny models on the same stories; compare them.",
    "spec": "List and describe models, and what they cost.",
    "plan": "Plan a training run; fit scaling laws to runs.",
    "design": "Find the shape of a model under a budget.",
    "prepare": "Turn text into token shards to train on.",
    "train": "Train a model, or go on with an interrupted run.",
    "runs": "List runs, compare two, show their curves.",
    "generate": "Let a model write.",
    "evaluate": "Measure a model on text or tasks: bits per byte, scores.",
    "ngram": "Count n-grams: a model without a net, to measure by.",
    "compare": "Train several models on one text, or compare runs.",
    "import": "Turn a published checkpoint into a model folder.",
    "export": "Write a model in another form.",
    "inspect": "Look inside a model: operators, causality, caches.",
}
"""Every verb and what it is for. `linnet.cli.VERB` holds the command, a function or a group, under the verb's name.

Where Python keeps the name for itself, both have an underscore behind it: `import_`.
"""

SETTING_VERBS = ("train", "compare")
"""Verbs that change the fields of model and training by --set; such a field is no option."""

MANY_PROCESSES = ("train",)
"""Verbs that several processes carry out together (torchrun)."""

UNUSABLE_PATH = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""What the system says of a path that the user named wrongly."""


ABOUT_NUMBERS = ("int_", "float_", "greater_", "less_")
"""How the kinds of pydantic's errors about numbers begin."""


KEPT = re.compile(r"\n\n(?=Example:|\S.*\n  )")
"""Before paragraphs of a help text that stay as they are, by a backspace: an example, on one line to be copied whole,
and a list, whose lines are indented.
"""


class LazyGroup(TyperGroup):
    """Lists every verb; imports the module of the one that is called."""

    def __init__(self, **settings: Any) -> None:
        listed = [TyperCommand(verb, help=summary) for verb, summary in VERBS.items()]
        super().__init__(**{**settings, "commands": listed})

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The called verb's own command in the place of the listed one."""
        verb, _, rest = super().resolve_command(ctx, args)
        assert verb is not None
        if verb not in MANY_PROCESSES:
            refuse_distributed(verb)
        return verb, load_verb(verb), rest


def load_verb(verb: str) -> Any:
    """Import a verb's module and make its command."""
    name = f"{verb}_" if keyword.iskeyword(verb) else verb
    command = getattr(importlib.import_module(f"linnet.cli.{name}"), name)
    if not isinstance(command, typer.Typer):
        function, command = command, typer.Typer(add_completion=False, rich_markup_mode=None)
        command.command(verb)(function)
    built = typer.main.get_command(command)
    inner = built.commands.values() if isinstance(built, TyperGroup) else ()
    for part in (built, *inner):
        part.help = KEPT.sub("\n\n\b\n", part.help or "")
        if part.callback is not None:
            part.callback = _saying_options(part)
    return built


def _saying_options(command: Any) -> Any:
    """The command's function, in whose errors the fields that it has options for are named as they are typed."""
    options = {
        name.lstrip("-").replace("-", "_"): name
        for parameter in command.params
        for name in parameter.opts
        if "--" in name
    }
    options |= {parameter.name: parameter.opts[0] for parameter in command.params if "--" in parameter.opts[0]}

    @functools.wraps(command.callback)
    def run(*arguments: Any, **named: Any) -> Any:
        try:
            check_numbers(command.params, named)
            return command_itself(*arguments, **named)
        except UserError as error:
            raise UserError(error.message(options)) from error

    command_itself = command.callback
    return run


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _print_version(asked: bool) -> None:
    if asked:
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

    Every command has its own help with an example: linnet train --help
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit code."""
    code = _run(arguments)
    if arguments is None:
        exit_process(code)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    try:
        if arguments is None:
            streams.guard()
            signals.listen()
            quiet_torch_distributed()
        code = _invoke(sys.argv[1:] if arguments is None else list(arguments))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        streams.close_output()
        return 1
    except KeyboardInterrupt:
        return _fail("interrupted", signals.exit_code(signal.SIGINT))
    except NotDistributedError as error:
        return _fail(f"error: {error}", 2) if is_rank0() else 2
    except UserError as error:
        return _fail(f"error: {error}", 2)
    except typer.TyperException as error:
        if not is_rank0():
            return 2
        return _fail(f"error: {_usage_message(error, sys.argv[1:] if arguments is None else arguments)}", 2)
    except OSError as error:
        if error.filename == "standard output":
            streams.close_output()
        place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return _fail(f"error: {place}{error.strerror or error}", 2 if isinstance(error, UNUSABLE_PATH) else 1)
    except Exception as error:
        if signals.heard() is None and not is_out_of_memory(error):
            raise
        return _fail("error: out of memory; smaller amounts (of a batch, a context, a model) take less", 1)


def _invoke(arguments: list[str]) -> int:
    try:
        with typer.main.get_command(app).make_context("linnet", arguments or ["--help"]) as context:
            context.command.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    return 0


def _fail(line: str, code: int) -> int:
    """Say why it ended; after a signal that is the reason, whatever a library made of it."""
    number = signals.heard()
    if number is None:
        print_error(one_line(line))
        return code
    if number == signal.SIGINT:
        print_error("interrupted")
    return signals.exit_code(number)


def _usage_message(error: typer.TyperException, arguments: Sequence[str]) -> str:
    """What was wrong with the command line, and where to read how it should be, on one line."""
    message = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    option, verb = getattr(error, "option_name", None), context.info_name
    if option and verb in SETTING_VERBS:
        from linnet.cli.settings import hint

        fields = hint(verb, option, arguments)
        message = f"No such option: {option}; {fields}" if fields else message
    elif isinstance(error, typer.BadParameter):
        message = _with_value(message, error)
    elif message.startswith("No such command") and "Did you mean" not in message:
        message = f"{message}; expected {', '.join(context.command.commands)}"
    return f"{message} (see {context.command_path} --help)"


def _with_value(message: str, error: typer.BadParameter) -> str:
    """The message about what is no number, or beyond its bounds, with what was given and what is accepted."""
    from pydantic import ValidationError

    cause, option = error.__cause__, error.param
    found = cause.errors()[0] if isinstance(cause, ValidationError) else {"type": ""}
    if not isinstance(option, TyperOption) or not found["type"].startswith(ABOUT_NUMBERS):
        return message
    whole = option.type_descriptor.annotation in (int, list[int])
    bounds = [
        f"{words} {bound:g}"
        for words, bound in (("at least", option.min), ("at most", option.max))
        if bound is not None
    ]
    accepted = ", ".join(["a whole number" if whole else "a number", *bounds])
    return f"{message.partition(': ')[0]}: {found['input']}: expected {accepted}"
