"""Options: those shared by several verbs, groups of options as dataclasses, and options made from typed configurations.

Every field of a configuration that `--set KEY=VALUE` changes is an option as well (`with_fields`): a new field needs no
line here. `--fields` lists them with their types, bounds and meanings.
"""

import copy
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib import import_module
from inspect import Parameter, Signature, cleandoc
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from linnet.cli.console import check_out_path
from linnet.core.bounds import MAX_AMOUNT, MAX_RESAMPLES
from linnet.core.errors import UserError

OUTPUTS = ("out", "plot", "record", "report", "save", "save_state")
"""Parameters that name a file or folder to write."""

SEEDS = "a whole number from 0 to 2**63 - 1"


def option(metavar: str, text: str, **limits: Any) -> Any:
    """Return an option whose value the help calls `metavar`."""
    return typer.Option(metavar=metavar, help=text, **limits)


TextField = Annotated[
    str | None, typer.Option(help="Field or column with the text, or a path: meta.text. Default: text.")
]
Separator = Annotated[
    str | None,
    typer.Option("--document-separator", help="The separator of documents in a text file. Default: <|endoftext|>."),
]
SplitDigits = Annotated[
    Literal["one", "three"] | None,
    typer.Option(
        help="Split numbers into single digits, or into groups of three, before bpe and unigram make tokens of them. "
        "Default: neither."
    ),
]
ChatTemplateFile = Annotated[
    Path | None,
    option("FILE.jinja", "A chat template in place of the model's, or of linnet's where it has none."),
]
LongConversationsChoice = Annotated[
    Literal["refuse", "drop", "cut"] | None,
    typer.Option(
        "--long-conversations",
        help="With --chat, --preferences or --prompts: what is longer than the context is an error, left out, or "
        "(--chat) ended behind the last answer that fits. Default of linnet train: refuse; linnet prepare leaves it to "
        "linnet train.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]
Bootstrap = Annotated[
    int, typer.Option("--bootstrap", min=20, max=MAX_RESAMPLES, metavar="N", help="Resamples behind the intervals.")
]
CalibrateOn = Annotated[
    Literal["train", "empty"],
    typer.Option(
        help="The text that a model which is not causal by itself is calibrated on: the start of the training split, "
        "or the empty prompt."
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a field (repeatable); --KEY VALUE does the same."),
]
ContextLength = Annotated[int | None, typer.Option(min=1, help="Tokens that are read at once. Default: the model's.")]
Data = Annotated[Path, option("DIR", "A data folder made by `linnet prepare`.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="The device to compute on.")]
ExecutorName = Annotated[
    Literal["local", "ray", "slurm"], typer.Option(help="Where the trainings run: on this machine, Ray, or Slurm.")
]
Workers = Annotated[int, typer.Option(min=1, max=4096, metavar="N", help="Trainings at a time, each in its process.")]
SlurmOptions = Annotated[
    list[str] | None,
    typer.Option("--slurm-option", metavar="OPTION", help="An option of sbatch, such as --time=4:00:00 (repeatable)."),
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or the folder of a run.")]
Precision = Annotated[
    Literal["float32", "bfloat16", "int8", "int4"] | None,
    typer.Option(help="Precision of the weights. Default: as stored."),
]
Threads = Annotated[int | None, typer.Option(help="CPU threads. Default: PyTorch's choice.")]
Compiles = Annotated[
    bool,
    typer.Option(
        "--compile/--no-compile",
        help="Use a compiled decoding step; where decoding takes seconds, compile it in the background.",
    ),
]
ReportFolder = Annotated[Path | None, option("DIR", "Write plots and report.html into this folder.")]
SplitName = Annotated[Literal["validation", "train"], typer.Option(help="The split of the data.")]


def set_threads(threads: int | None) -> None:
    """Compute with so many threads from now on; None changes nothing. `UserError` for a number out of bounds."""
    if threads is not None:
        from torch import set_num_threads

        from linnet.training.machine import check_threads

        check_threads(threads, "threads")
        set_num_threads(threads)


def set_compiled_steps(compiles: bool) -> None:
    """Use, compile and record no decoding steps from now on if `compiles` is False; True changes nothing."""
    if not compiles:
        from linnet.inference.step_packages import BUILDS

        BUILDS.enabled = False


@dataclass(frozen=True)
class MachineOptions:
    """What models are computed with."""

    device: Annotated[str, typer.Option(help="auto (cuda if there is one), cpu, cuda, cuda:1.")] = "auto"
    precision: Precision = None
    threads: Threads = None
    compiles: Compiles = True

    def set_up(self) -> None:
        """Set the threads of this process, and whether it compiles."""
        set_threads(self.threads)
        set_compiled_steps(self.compiles)


def _print_fields(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        from linnet.present.show import write_parts
        from linnet.present.table import Table

        source: FieldSource = ctx.command.source  # type: ignore[attr-defined]
        rows = [
            (f"--{field.path.replace('_', '-')}", field.kind, field.default, field.text) for field in source.fields()
        ]
        write_parts(Table("", ("option", "value", "default", "meaning"), rows, text=True))
        raise typer.Exit


Fields = Annotated[
    bool,
    typer.Option(
        "--fields", help="List every field that --set changes, and exit.", callback=_print_fields, is_eager=True
    ),
]


# Groups of options: a parameter whose type is a dataclass stands for that dataclass' fields.


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a verb as typer reads it: each parameter that is a dataclass is replaced by the dataclass' fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}

    @functools.wraps(command)
    def verb(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        command(**values)

    parameters: list[Parameter] = []
    for parameter in Signature.from_callable(command).parameters.values():
        if not is_dataclass(parameter.annotation):
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        group_hints = get_type_hints(parameter.annotation, include_extras=True)
        for field in fields(parameter.annotation):
            assert field.default is not MISSING, (parameter.annotation, field.name)
            hint = group_hints[field.name]
            parameters.append(Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hint))
    verb.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return verb


# Options made from the fields of a typed configuration.


@dataclass(frozen=True)
class ConfigField:
    """A field of a configuration: its path, values, default and meaning as text."""

    path: str
    kind: str
    default: str
    text: str
    is_flag: bool = False


@dataclass(frozen=True)
class FieldSource:
    """The configuration of a verb, as `module:Class`; it is imported only if a field is used or listed.

    excluded: fields that something else decides, such as the vocabulary of the data.
    """

    place: str
    excluded: tuple[str, ...] = ()

    def fields(self) -> list[ConfigField]:
        """Return all fields by their paths, such as `training.optimizer.lr`."""
        module, _, name = self.place.partition(":")
        return [one for one in config_fields(getattr(import_module(module), name)) if one.path not in self.excluded]

    def find(self, name: str) -> ConfigField | None:
        """Return the field of the option `--name`: of all paths that end so the shortest; None if there is none.

        `UserError` if several sections have such a field.
        """
        wanted = name.lstrip("-").replace("-", "_")
        fields = self.fields()
        if "." in wanted and wanted.partition(".")[0] in {field.path.partition(".")[0] for field in fields}:
            known = [field for field in fields if field.path == wanted]
            return known[0] if known else ConfigField(wanted, "a value", "", "")  # such as a field of one kind of layer
        found = [field for field in fields if f".{field.path}".endswith(f".{wanted}")]
        least = min((field.path.count(".") for field in found), default=0)
        shortest = [field for field in found if field.path.count(".") == least]
        if len(shortest) > 1 and wanted not in (field.path for field in shortest):
            options = " or ".join(f"--{field.path.replace('_', '-')}" for field in shortest)
            raise UserError(f"{name}: several sections have this field; expected {options}")
        return shortest[0] if shortest else None


TYPED: dict[str, str] = {}
"""The options of the present command line by the paths of their fields, for messages about these fields."""


class FieldCommand(TyperCommand):
    """A command that takes the fields of its configuration as options."""

    source: FieldSource

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, as_assignments(self, self.source, args))


class FieldGroup(TyperGroup):
    """The same for a group that is also a command."""

    source: FieldSource

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, as_assignments(self, self.source, args, self.commands))


def with_fields(place: str, *excluded: str, group: bool = False) -> type[Any]:
    """Return the class of a command whose `--set` changes fields of the configuration `module:Class`."""
    base = FieldGroup if group else FieldCommand
    return type(base.__name__, (base,), {"source": FieldSource(place, excluded)})


def as_assignments(command: Any, source: FieldSource, args: Sequence[str], subcommands: Any = ()) -> list[str]:
    """Return the arguments with `--batch-size 4` as `--set training.batch_size=4` if the command has no such option."""
    TYPED.clear()
    own = {name: parameter for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    found, rest = list[str](), list(args)
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.partition("=")
        if argument == "--" or argument in subcommands:
            return [*found, argument, *rest]
        if not name.startswith("--") or name in own or name == "--help":
            found.append(argument)
            takes_value = name in own and not equals and not getattr(own[name], "is_flag", False)
            if takes_value and name.startswith("-") and rest:
                found.append(rest.pop(0))
            continue
        field = source.find(name)
        if field is None:
            found.append(argument)  # typer says that there is no such option
            continue
        if not equals:
            if field.is_flag and (not rest or rest[0].startswith("-")):
                value = "true"
            elif not rest:
                raise UserError(f"{name}: a value is missing; expected {field.kind}")
            else:
                value = rest.pop(0)
        TYPED[field.path] = name
        found += ["--set", f"{field.path}={value}"]
    return found


def with_typed_options(message: str) -> str:
    """Return a message in which fields that were set by an option of their own are named by that option."""
    for path, name in TYPED.items():
        message = re.sub(rf"--set {re.escape(path)}(?=[=: ]|$)", name, message)
    return message


def config_fields(spec: Any, prefix: str = "") -> Iterator[ConfigField]:
    """Yield the fields of a configuration and of its sections; of a list of sections, those of the first."""
    from linnet.core.spec import Spec

    for name, field in spec.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Spec)]
        if len(sections) == 1:  # several sections are kinds to choose from
            section = sections[0]
            first = "0." if get_origin(field.annotation) is list else ""
            yield from config_fields(section, f"{prefix}{name}.{first}")
            continue
        default = "" if field.is_required() or field.default is None else str(field.default)
        text = field.description or _documented(spec, name)
        is_flag = bool in (field.annotation, *get_args(field.annotation))
        yield ConfigField(prefix + name, kind_text(field.annotation, field.metadata), default, text, is_flag)


def _documented(spec: Any, name: str) -> str:
    """Return what a class' docstring says of a field, as in `name: meaning.`; empty if it says nothing."""
    text = " ".join((spec.__doc__ or "").split())
    found = re.search(rf"(?:^|[.;:,] )`?{name}`?: (.+?)(?=[.;] `?[a-z_]+(?:, [a-z_]+)*`?: |$)", text)
    return found[1].strip("`. ") if found else ""


def kind_text(kind: Any, metadata: Sequence[Any] = ()) -> str:
    """Return the values of a type in words: `whole number from 1 to 4096`, `adamw | muon`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return kind_text(arguments[0], [*metadata, *arguments[1:]])
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin in (tuple, list):
        return f"[{', '.join('...' if one is Ellipsis else kind_text(one) for one in arguments)}]"
    if kind is bool:
        return "true | false"
    if kind in (int, float):
        return _number_text(kind, metadata)
    if arguments and origin is not dict:
        parts = [kind_text(one, metadata) for one in arguments if one is not NoneType]
        return " | ".join(dict.fromkeys(parts))
    return {str: "text", Path: "path"}.get(kind, "fields")


def _number_text(kind: type, metadata: Sequence[Any]) -> str:
    """Return a number's type with its bounds, which pydantic keeps as metadata."""
    bounds = [*metadata, *(part for one in metadata for part in getattr(one, "metadata", ()))]
    words = {"gt": "above", "ge": "from", "lt": "below", "le": "to"}
    limits = [
        f"{word} {getattr(bound, name):,}"
        for name, word in words.items()
        for bound in bounds
        if getattr(bound, name, None) is not None
    ]
    return " ".join(["whole number" if kind is int else "number", *limits])


def spec_options(spec: Any) -> dict[str, tuple[Any, Any]]:
    """Return typer's option and the default for each field of a configuration without sections."""
    found: dict[str, tuple[Any, Any]] = {}
    for name, field in spec.model_fields.items():
        bounds = {"ge": "min", "le": "max"}
        limits = {
            to: getattr(one, bound) for one in field.metadata for bound, to in bounds.items() if hasattr(one, bound)
        }
        default = field.get_default(call_default_factory=True)
        found[name] = (Annotated[field.annotation, typer.Option(help=field.description, **limits)], default)
    return found


# What every command gets besides its options.

VERBATIM = re.compile(r"\n\n(?=Example:|\S.*\n  )")
"""Precedes paragraphs of a help text that are not wrapped: an example, which is copied as one line, and a list with
indented lines. A backspace character marks them.
"""


MAX_SHORT_OPTIONS, MAX_SHORT_LINES = 10, 20
"""A help with more options or more lines of text is shortened; `--help-all` prints all of it."""

_HELP_ALL = "linnet.help_all"
"""In the `meta` of a context, while `--help-all` is printed."""


def finish_command(command: Any, usual: Sequence[str] = ()) -> None:
    """Keep the examples of a command's help verbatim, and let its errors name options as they are typed.

    usual: the options that a shortened help shows, in this order; those of a command without any are its first ones.
    """
    text = cleandoc(command.help or "")
    options = [one for one in command.params if isinstance(one, TyperOption) and not one.hidden]
    is_long = len(options) > MAX_SHORT_OPTIONS or text.count("\n") >= MAX_SHORT_LINES
    _name_values(command)
    command.usual = [*(usual or [one.opts[0] for one in options[:MAX_SHORT_OPTIONS]])]
    command.help = VERBATIM.sub("\n\n\b\n", text)
    command.short_help = first_sentence(text)
    command.params.append(_help_all(is_long))
    if is_long:
        command.format_help = functools.partial(_format_help, command)
    if command.callback is not None:
        command.callback = _naming_options(command)


def first_sentence(text: str) -> str:
    """The first sentence of a help text on one line: a list of commands shows it uncut."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"\.(?:\s|$)", paragraph, maxsplit=1)[0] + "."


_METAVARS = {"int": "N", "float": "X", "str": "TEXT", "path": "PATH"}


def _name_values(command: Any) -> None:
    """Replace the types of Python in a command's help: `--steps N` instead of `--steps <int range>`, `MODEL` alone."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            # The usage line has an ellipsis of its own for several values.
            parameter.metavar = (parameter.metavar or parameter.name.upper()).replace("...", "")
            parameter.display_type_rich = lambda ctx: None
        elif parameter.metavar is None and not parameter.type_descriptor.is_choice:
            words = re.findall(r"\w+", parameter.display_type(None))
            parameter.metavar = _METAVARS.get(words[0]) if words else None


def _help_all(is_listed: bool) -> TyperOption:
    """Return the option `--help-all`."""

    def print_all(ctx: typer.Context, wanted: bool) -> None:
        if wanted:
            ctx.meta[_HELP_ALL] = True
            print(ctx.get_help())
            raise typer.Exit

    text, app = "Show every option, what it is for, and more examples.", typer.Typer()
    declared = typer.Option("--help-all", help=text, hidden=not is_listed, callback=print_all, is_eager=True)

    @app.command()
    def holder(help_all: Annotated[bool, declared] = False) -> None: ...

    option = next(one for one in typer.main.get_command(app).params if one.name == "help_all")
    assert isinstance(option, TyperOption)
    option.expose_value = False
    return option


def _format_help(command: Any, ctx: Any, formatter: Any) -> None:
    """Write a command's help: up to the first example, with the usual options, or all of it."""
    shown = copy.copy(command)
    if not ctx.meta.get(_HELP_ALL):
        summary, example, rest = command.help.partition("\n\n\b\nExample:")
        shown.help = summary + example + rest.partition("\n\n")[0]
        names = [*command.usual, "--help-all"]
        usual = [one for name in names for one in command.params if name in one.opts]
        always = [
            one for one in command.params if one not in usual and (one.required or isinstance(one, TyperArgument))
        ]
        shown.params = [*always, *usual]
    type(command).format_help(shown, ctx, formatter)


def _naming_options(command: Any) -> Any:
    """Return the command's function; its errors name options as they are typed in place of fields."""
    options = {
        name.lstrip("-").replace("-", "_"): name
        for parameter in command.params
        for name in parameter.opts
        if "--" in name
    }
    options |= {parameter.name: parameter.opts[0] for parameter in command.params if "--" in parameter.opts[0]}
    function = command.callback

    @functools.wraps(function)
    def run(*arguments: Any, **named: Any) -> Any:
        try:
            check_numbers(command.params, named)
            check_outputs(command.params, named)
            return function(*arguments, **named)
        except UserError as error:
            raise UserError(with_typed_options(error.message(options))) from error

    return run


def check_numbers(parameters: Sequence[TyperOption | TyperArgument], values: Mapping[str, Any]) -> None:
    """Raise `UserError` for a whole number that is too large, and for one that is infinite or not a number."""
    for parameter in parameters:
        value = values.get(parameter.name or "")
        for number in value if isinstance(value, list | tuple) else [value]:
            accepted = None
            if parameter.name == "seed":
                accepted = None if number is None or 0 <= number < 1 << 63 else SEEDS
            elif isinstance(number, float) and not math.isfinite(number):
                accepted = "a finite number"
            elif isinstance(number, int) and abs(number) > MAX_AMOUNT:
                accepted = f"at most {MAX_AMOUNT}" if number > 0 else f"at least {-MAX_AMOUNT}"
            if accepted is not None:
                raise UserError(field=parameter.name, value=number, accepted=accepted)


def check_outputs(parameters: Sequence[TyperOption | TyperArgument], values: Mapping[str, Any]) -> None:
    """Raise `UserError` for an output that cannot be written: before the work, which may take hours."""
    for parameter in parameters:
        path = values.get(parameter.name or "")
        if parameter.name in OUTPUTS and isinstance(path, Path):
            check_out_path(path, parameter.opts[0], (parameter.metavar or "").partition(".")[0])


def is_on_command_line(ctx: typer.Context, name: str) -> bool:
    """Return True if a parameter was typed, even with its default value."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def option_of(ctx: typer.Context, name: str) -> str:
    """Return a parameter as it is typed, such as `--max-flops`."""
    return next(found.opts[0] for found in ctx.command.params if found.name == name)


def refuse_before_subcommand(ctx: typer.Context) -> None:
    """Raise `UserError` for an option before a subcommand, which would have no effect."""
    for name in ctx.params:
        if is_on_command_line(ctx, name):
            command = f"{ctx.command_path} itself"
            raise UserError(f"{option_of(ctx, name)}: stands before {ctx.invoked_subcommand}; it belongs to {command}")


def refuse_options(ctx: typer.Context, names: Sequence[str], reason: str) -> None:
    """Raise `UserError` with the reason for the first of these options that was typed."""
    for name in names:
        if name in ctx.params and is_on_command_line(ctx, name):
            value = ctx.params[name]
            text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            raise UserError(reason, field=name, value=text)
