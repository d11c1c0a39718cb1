"""Options that mean the same in several verbs, and options in groups."""

import functools
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

MOST_AMOUNT = 1 << 48
"""Of tokens, or of sequences: that of a description's amounts."""


def option(metavar: str, said: str, **limits: Any) -> Any:
    """An option whose value is called `metavar` in the help, which says what it is for."""
    return typer.Option(metavar=metavar, help=said, **limits)


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """A verb as typer reads it: in the place of a parameter whose type is a dataclass stand that one's fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}

    @functools.wraps(command)
    def verb(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    parameters = [
        one for parameter in Signature.from_callable(command).parameters.values() for one in _apart(parameter)
    ]
    verb.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return verb


def _apart(parameter: Parameter) -> list[Parameter]:
    """The fields of a group, with their defaults; a parameter that is none as it is."""
    if not is_dataclass(parameter.annotation):
        return [parameter.replace(kind=Parameter.KEYWORD_ONLY)]
    hints = get_type_hints(parameter.annotation, include_extras=True)
    defaults = {one.name: one.default for one in fields(parameter.annotation)}
    assert MISSING not in defaults.values(), parameter.annotation
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
        for name, default in defaults.items()
    ]


MOST_RESAMPLES = 10_000
"""More move the ends of an interval by less than a hundredth of its length."""

AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]
Bootstrap = Annotated[
    int, typer.Option("--bootstrap", min=20, max=MOST_RESAMPLES, metavar="N", help="Resamples behind the intervals.")
]
ContextLength = Annotated[
    int | None, typer.Option(min=1, max=MOST_AMOUNT, help="Tokens that are read at once; the model's if not given.")
]
Data = Annotated[Path, option("DIR", "A folder made by `linnet prepare`.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or the folder of a run.")]
CalibrateOn = Annotated[
    Literal["train", "empty"],
    typer.Option(
        help="The text that calibrates a model that is not causal by itself: the start of the training "
        "split, or the empty prompt."
    ),
]
ReportFolder = Annotated[Path | None, option("DIR", "Write pictures and report.html into this folder.")]
SplitName = Annotated[Literal["validation", "train"], typer.Option(help="Which side of the data.")]
Precision = Annotated[
    Literal["float32", "bfloat16", "int8", "int4"] | None,
    typer.Option(help="Precision of the weights; as stored if not given."),
]
