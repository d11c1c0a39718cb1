"""`linnet inspect`: look inside a model.

Inspections of any model are commands here. A kind of layer brings further ones through the registry, with their options
as a typed configuration. They are imported only if they are called, because that imports PyTorch; the list of commands
reads their names and summaries from the source files.
"""

import ast
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from inspect import Parameter, Signature, cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from linnet.cli.console import note, show_result
from linnet.cli.options import (
    AsJson,
    CalibrateOn,
    ContextLength,
    Data,
    Device,
    Model,
    ReportFolder,
    SplitName,
    finish_command,
    first_sentence,
    option,
    spec_options,
)

if TYPE_CHECKING:
    from linnet.layers.inspection import Inspection


class InspectGroup(TyperGroup):
    """A group whose commands are those of this module, and those that the kinds of layers bring."""

    own_commands: dict[str, TyperCommand]

    @property  # type: ignore[override]
    def commands(self) -> dict[str, TyperCommand]:
        return {**self.own_commands, **_commands_of_kinds()}

    @commands.setter
    def commands(self, commands: dict[str, TyperCommand]) -> None:
        self.own_commands = dict(commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self.own_commands.get(cmd_name) or self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sources = _inspections_in_sources()
        listed = {name: TyperCommand(name, short_help=first_sentence(cleandoc(text))) for name, text in sources}
        group = TyperGroup(name=self.name, commands={**self.own_commands, **listed})
        group.format_commands(ctx, formatter)


inspect = typer.Typer(
    cls=InspectGroup,
    add_completion=False,
    rich_markup_mode=None,
    help="""Look inside a model: what it sees of the future, what it remembers, how far it reads, what its layers do.

    Example: linnet inspect causality runs/pldr --data data/stories

    Each command prints tables; --json prints the figures instead, and --out DIR writes plots and a page.
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
            help="Change the text from token N on (repeatable). Default: a quarter, half and three quarters.",
        ),
    ] = None,
    limit_tokens: Annotated[int | None, typer.Option(min=1, help="Measure the leak on about this many tokens.")] = None,
    context_length: ContextLength = None,
    calibrate_on: CalibrateOn = "train",
    out: ReportFolder = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure how far a change of later text moves earlier logits, and what a model gains by that: the leak.

    Example: linnet inspect causality runs/pldr --data data/stories

    This works for any token mixer. Windows of text are read twice, the second time with other text after a cut. The
    text before the cut is the same, so that the logits of a causal model stay the same there. Both the pass over the
    whole sequence, as in training, and the pass with a frozen calibration are measured. The leak is the difference of
    the two in bits per byte, as in `linnet evaluate`.

    Example: linnet inspect causality runs/ted --data data/stories --cut 128 --windows 32 --json
    """
    from linnet.inspection.causality import inspect_causality

    found = inspect_causality(model, data, split, windows, cuts, limit_tokens, context_length, calibrate_on, device)
    show_result(found, out, as_json)


@inspect.command()
def contexts(
    model: Model,
    data: Data,
    split: SplitName = "validation",
    windows: Annotated[int, typer.Option(min=1, help="Windows of text to read, spread evenly.")] = 32,
    cache_policy: Annotated[
        list[str] | None, option("POLICY", "Compare this cache policy (repeatable; docs/inference.md).")
    ] = None,
    within: Annotated[float, typer.Option(min=0.0, help="Percent of bits per byte that count as no loss.")] = 0.1,
    context_length: ContextLength = None,
    calibrate_on: CalibrateOn = "train",
    out: ReportFolder = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure what a model loses when it keeps less of the text: bits per byte and memory for each cache policy.

    Example: linnet inspect contexts runs/ted --data data/stories --out inspected

    The same windows of text are read with the full cache and with other policies: those of --cache-policy, or those
    that the kind of layer suggests. The smallest state without a loss is named.

    Example: linnet inspect contexts runs/ted --data data/stories --cache-policy top_k=16 --cache-policy threshold=1e-4
    """
    from linnet.inspection.contexts import inspect_contexts

    policies = cache_policy or []
    found = inspect_contexts(model, data, split, windows, policies, within, context_length, calibrate_on, device)
    show_result(found, out, as_json)


@inspect.command()
def experts(
    model: Model,
    data: Data,
    split: SplitName = "validation",
    windows: Annotated[int, typer.Option(min=1, help="Windows of text to read, spread evenly.")] = 32,
    context_length: ContextLength = None,
    out: ReportFolder = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Show how often each expert of a mixture of experts is used over a text, in every layer with experts.

    Example: linnet inspect experts runs/experts --data data/stories

    A router that sends nearly all tokens to a few experts wastes the others; the load-balancing loss prevents that.

    Example: linnet inspect experts runs/experts --data data/stories --windows 64 --out inspected
    """
    from linnet.inspection.experts import inspect_experts

    show_result(inspect_experts(model, data, split, windows, context_length, device), out, as_json)


@inspect.command()
def positions(
    model: Model,
    data: Data,
    split: SplitName = "validation",
    windows: Annotated[int, typer.Option(min=1, help="Windows of text to read, spread evenly.")] = 16,
    times: Annotated[
        int | None,
        typer.Option(
            min=1, max=1 << 10, help="Length of a window in trained lengths. Default: 8, or 1 with learned positions."
        ),
    ] = None,
    calibrate_on: CalibrateOn = "train",
    out: ReportFolder = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure how far beyond its trained length a model reads: bits per byte by position.

    Example: linnet inspect positions runs/ted --data data/stories

    Windows of text that are longer than those of the training are read by the model as it is; with rotary positions
    also with each way of scaling them (interpolation, NTK, YaRN, and NTK with the factor of each length).

    Example: linnet inspect positions runs/ted --data data/stories --times 4 --windows 32 --out inspected
    """
    from linnet.inspection.positions import inspect_positions

    show_result(inspect_positions(model, data, split, windows, times, calibrate_on, device), out, as_json)


def _inspections_in_sources() -> Iterator[tuple[str, str]]:
    """Yield the name and the help of each inspection of a kind of layer, without importing it."""
    layers = find_spec("linnet.layers")
    assert layers is not None and layers.submodule_search_locations
    for path in sorted(Path(layers.submodule_search_locations[0]).glob("*/*/*.py")):
        if "Inspection(" not in (source := path.read_text(encoding="utf-8")):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Inspection":
                name, help_text = map(ast.literal_eval, node.args[:2])
                yield name, help_text


@cache
def _commands_of_kinds() -> dict[str, TyperCommand]:
    """Return the commands of the inspections that kinds of layers bring."""
    from linnet.layers.registry import inspections

    group = typer.Typer(add_completion=False, rich_markup_mode=None)
    group.callback()(lambda: None)
    for inspection in inspections().values():
        group.command(inspection.name)(_command_of(inspection))
    found: dict[str, TyperCommand] = typer.main.get_command(group).commands  # type: ignore[attr-defined]
    for command in found.values():
        finish_command(command)
    return found


def _command_of(inspection: "Inspection") -> Callable[..., None]:
    """Return the command of an inspection: its own options, then those that all inspections have."""

    def command(model: str, out: Path | None, device: str, as_json: bool, **values: Any) -> None:
        from linnet.inspection.text_model import Target

        data, split = values.pop("data", None), values.pop("split", "validation")
        context_length = values.pop("context_length", None)
        target = Target(model, None if data is None else str(data), split, context_length, device)
        result = inspection.run(target, inspection.options.parse(values, f"inspect {inspection.name}"))
        if values.get("save") is not None:
            note(f"saved: {values['save']}")
        show_result(result, out, as_json)

    source = "A model folder, or the folder of a run"
    source += "." if inspection.source == "MODEL" else "; or a file that the command reads."
    model = Annotated[str, typer.Argument(metavar=inspection.source, help=source)]
    options: dict[str, Any] = {"model": (model, Parameter.empty)}
    if inspection.data == "required":
        options["data"] = (Data, Parameter.empty)
    options |= spec_options(inspection.options)
    if inspection.data == "optional":
        options["data"] = (Annotated[Path | None, option("DIR", "A data folder: also measure over its text.")], None)
    if inspection.data != "none":
        options |= {"split": (SplitName, "validation"), "context_length": (ContextLength, None)}
    options |= {"out": (ReportFolder, None), "device": (Device, "auto"), "as_json": (AsJson, False)}
    command.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in options.items()
        ]
    )
    command.__annotations__ = {name: kind for name, (kind, _) in options.items()}
    command.__name__, command.__doc__ = inspection.name, inspection.help
    return command
