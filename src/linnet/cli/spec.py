"""`linnet spec`: which models there are, and what each costs, from its description alone."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from linnet.core.errors import UserError
from linnet.present import numbers

if TYPE_CHECKING:
    from linnet.model.cost import ModelCost, WeightType
    from linnet.model.spec import ModelSpec

STATE_TOKENS = (1024, 8192, 65536)
WEIGHT_TYPES: "tuple[WeightType, ...]" = ("float32", "bfloat16", "int8")

spec = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="""List and describe models: what a model is made of and what it costs.

    Example: linnet spec show llama-110m
    """,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@spec.command("list")
def list_presets(as_json: AsJson = False) -> None:
    """List the presets: parameters, shape, context, token mixers.

    Example: linnet spec list
    """
    from linnet.model.spec import ModelSpec, preset_names

    rows = [_row(ModelSpec.load(name)) for name in preset_names()]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    name_width = max(len(row["name"]) for row in rows)
    print(f"{'name':<{name_width}}  {'parameters':>12}  {'layers x width':>14}  {'context':>7}  mixers")
    for row in rows:
        shape = f"{row['layers']} x {_widths(row['widths'])}"
        mixers = ", ".join(row["mixers"])
        print(
            f"{row['name']:<{name_width}}  {row['parameters']:>12,}  {shape:>14}  {row['context_length']:>7,}  {mixers}"
        )


@spec.command()
def show(
    model: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A preset, a YAML file, or a model folder.")],
    dtype: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Precision of the decode state's elements.")
    ] = "float32",
    tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Count FLOPs over so many tokens; the context if not given.", show_default=False),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences in a training step, for its memory.")] = 8,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field first; model.KEY is KEY too (repeatable)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what a model costs: parameters, FLOPs, bytes of weights and decode state, memory of a training step.

    All of it is that of the built model, exactly, and comes from its description alone. FLOPs count 2 for each
    multiply-add of a matrix product.

    Example: linnet spec show llama-110m

    Example: linnet spec show merino-52m --tokens 1024

    Example: linnet spec show gpt2-124m --set blocks.0.repeat=24 --set context_length=2048 --json
    """
    from linnet.core.spec import override
    from linnet.model.cost import ELEMENT_BYTES, model_cost
    from linnet.model.spec import ModelSpec
    from linnet.model.store import read_description

    fields = [change.strip().removeprefix("model.") for change in changes or []]  # as `linnet train` names them
    description = ModelSpec.parse(override(read_description(model), fields), model)
    length = tokens or description.context_length
    if tokens is not None and tokens > description.context_length and description.embedding.positions == "learned":
        raise UserError(f"--tokens {tokens}: the model's learned positions end at {description.context_length}")
    figures = _figures(description, model_cost(description), ELEMENT_BYTES[dtype], length, batch)
    if as_json:
        print(json.dumps(figures, indent=2))
    else:
        print(_report(description, figures, dtype))


def _figures(
    description: "ModelSpec", cost: "ModelCost", element_bytes: int, tokens: int, batch: int
) -> dict[str, Any]:
    """What `show` prints, as data. FLOPs are of one sequence of `tokens` tokens."""
    heads = {"with_head": True, "without_head": False}
    forward = {name: cost.flops(tokens, with_head) for name, with_head in heads.items()}
    training = {name: cost.training_flops(tokens, with_head) for name, with_head in heads.items()}
    memory = cost.training_memory(batch, tokens)
    return {
        "name": description.name,
        "tokens": tokens,
        "batch": batch,
        "parameters": {
            "total": cost.parameters,
            "embedding": cost.embedding.parameters,
            "blocks": cost.blocks.parameters,
            "head": cost.head.parameters,
        },
        "flops_per_token": {name: round(flops / tokens) for name, flops in forward.items()},
        "flops_per_sequence": forward,
        "training_flops_per_token": {name: round(flops / tokens) for name, flops in training.items()},
        "training_flops_per_sequence": training,
        "weights_bytes": {kind: cost.weights_bytes(kind) for kind in WEIGHT_TYPES},
        "state_bytes": {str(length): cost.state_bytes(length, element_bytes) for length in STATE_TOKENS},
        "training_memory_bytes": {**asdict(memory), "total": memory.total},
    }


def _report(description: "ModelSpec", figures: dict[str, Any], dtype: str) -> str:
    row = _row(description)
    parameters, memory, tokens = figures["parameters"], figures["training_memory_bytes"], figures["tokens"]
    lines = [
        f"{description.name}: {_layers(row['layers'])} of width {_widths(row['widths'])} ({', '.join(row['mixers'])}),"
        f" vocabulary {description.vocab_size:,}, context {description.context_length:,}",
        "",
        "parameters",
        *(_line(part, parameters[part], numbers.metric) for part in ("embedding", "blocks", "head", "total")),
        *_flops_lines(figures),
        "",
        "bytes of weights",
        *(_line(kind, count, numbers.binary) for kind, count in figures["weights_bytes"].items()),
        "",
        f"bytes of decode state of one stream, {dtype}",
        *(_line(f"{int(n):,} tokens", count, numbers.binary) for n, count in figures["state_bytes"].items()),
        "",
        f"bytes that a training step of {figures['batch']} x {tokens:,} tokens holds, float32",
        *(_line(part, count, numbers.binary) for part, count in memory.items()),
    ]
    return "\n".join(lines)


def _flops_lines(figures: dict[str, Any]) -> list[str]:
    lines = []
    for title, key in (("forward", "flops"), ("training", "training_flops")):
        for per in ("token", "sequence"):
            counts = figures[f"{key}_per_{per}"]
            lines += ["", f"{title} FLOPs per {per}, over {figures['tokens']:,} tokens"]
            lines.append(_line("without output head", counts["without_head"], numbers.metric))
            lines.append(_line("with output head", counts["with_head"], numbers.metric))
    return lines


def _row(description: "ModelSpec") -> dict[str, Any]:
    """One model in short; widths and mixers in the order in which a token first meets them."""
    from linnet.model.cost import model_cost

    return {
        "name": description.name,
        "parameters": model_cost(description).parameters,
        "layers": description.layers,
        "widths": list(dict.fromkeys(block.width or description.d_model for block in description.blocks)),
        "mixers": list(dict.fromkeys(block.mixer.kind for block in description.blocks)),
        "context_length": description.context_length,
    }


def _layers(count: int) -> str:
    return f"{count} layer{'s' * (count > 1)}"


def _widths(widths: list[int]) -> str:
    return "/".join(map(str, widths))


def _line(label: str, count: int, readable: Callable[[float], str]) -> str:
    return f"  {label:<20}{count:>20,}  {readable(count):>10}"
