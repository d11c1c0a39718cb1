"""`linnet inspect`: looking inside a model."""

from collections.abc import Callable
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linnet.cli.console import note, show_result
from linnet.cli.inspect_contexts import contexts
from linnet.cli.inspect_experts import experts
from linnet.cli.inspect_positions import positions
from linnet.cli.options import (
    AsJson,
    CalibrateOn,
    ContextLength,
    Data,
    Device,
    Model,
    ReportFolder,
    SplitName,
    option,
)
from linnet.layers.registry import inspections

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from linnet.layers.inspection import Inspection

inspect = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="""Look inside a model: what it sees of the future, what it remembers, how far it reads, what its layers do.

    Each command prints tables; --json prints the figures instead, --out DIR adds pictures and one page with all of it.

    Example: linnet inspect causality runs/pldr --data data/stories
    """,
)


@inspect.command()
def causality(
    model: Model,
    data: Data,
    split: SplitName = "validation",
    windows: Annotated[int, typer.Option(min=2, help="Windows of text to change and compare, spread evenly.")] = 8,
    cuts: Annotated[
        list[int] | None,
        typer.Option(
            "--cut",
            metavar="N",
            help="Change the text from token N on (repeatable); a quarter, half and three quarters if not given.",
        ),
    ] = None,
    limit_tokens: Annotated[int | None, typer.Option(min=1, help="Measure the leak on about this many tokens.")] = None,
    context_length: ContextLength = None,
    calibrate_on: CalibrateOn = "train",
    out: ReportFolder = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure how far a change of the text to come moves earlier logits, and what that gains: the leak.

    For any token mixer. Windows of text are read twice, the second time with other text behind a cut; what is before
    the cut has not changed, and a causal model does not notice. Once in the pass over the whole sequence, as in
    training, once calibrated on other text. The leak is the difference in bits per byte, as of `linnet evaluate`.

    Example: linnet inspect causality runs/pldr --data data/stories

    Example: linnet inspect causality runs/ted --data data/stories --cut 128 --windows 32 --json
    """
    from linnet.inspection.causality import inspect_causality

    found = inspect_causality(model, data, split, windows, cuts, limit_tokens, context_length, calibrate_on, device)
    show_result(found, out, as_json)


inspect.command()(contexts)
inspect.command()(experts)
inspect.command()(positions)


def command_of(inspection: "Inspection") -> Callable[..., None]:
    """The command of an inspection that a kind of layer brings: its own options, then those that all have."""

    def command(model: str, out: Path | None, device: str, as_json: bool, **given: Any) -> None:
        from linnet.inspection.text_model import Target

        data, split = given.pop("data", None), given.pop("split", "validation")
        context_length = given.pop("context_length", None)
        target = Target(model, None if data is None else str(data), split, context_length, device)
        result = inspection.run(target, inspection.options.parse(given, f"inspect {inspection.name}"))
        if given.get("save") is not None:
            note(f"saved: {given['save']}")
        show_result(result, out, as_json)

    own = inspection.options.model_fields.items()
    named: dict[str, Any] = {"model": (_subject(inspection), Parameter.empty)}
    if inspection.data == "required":
        named["data"] = (Data, Parameter.empty)
    named |= {name: (_option_of(field), field.get_default(call_default_factory=True)) for name, field in own}
    if inspection.data == "optional":
        measured = "A folder made by `linnet prepare`: also measure over its text."
        named["data"] = (Annotated[Path | None, option("DIR", measured)], None)
    if inspection.data != "none":
        named |= {"split": (SplitName, "validation"), "context_length": (ContextLength, None)}
    named |= {"out": (ReportFolder, None), "device": (Device, "auto"), "as_json": (AsJson, False)}
    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in named.items()
    ]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {name: kind for name, (kind, _) in named.items()}
    command.__name__, command.__doc__ = inspection.name, inspection.help
    return command


def _subject(inspection: "Inspection") -> Any:
    said = "A model folder, or the folder of a run"
    if inspection.source != "MODEL":
        said += "; or a file that the command reads"
    return Annotated[str, typer.Argument(metavar=inspection.source, help=f"{said}.")]


def _option_of(field: "FieldInfo") -> Any:
    limits = {"ge": "min", "le": "max"}
    found = {to: getattr(part, name) for part in field.metadata for name, to in limits.items() if hasattr(part, name)}
    return Annotated[field.annotation, typer.Option(help=field.description, **found)]


for _inspection in inspections().values():
    inspect.command(_inspection.name)(command_of(_inspection))
