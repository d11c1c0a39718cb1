"""`linnet spec`: which models there are, and what each costs, from its description alone."""

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from linnet import numbers

if TYPE_CHECKING:
    from linnet.model.cost import ModelCost
    from linnet.model.spec import ModelSpec

STATE_TOKENS = (1024, 8192, 65536)
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}

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
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a field first (repeatable).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a model's parameters, FLOPs and decode state.

    Parameters, forward FLOPs per token and bytes of decode state are those of the built model, exactly, and come
    from its description alone. FLOPs count 2 for each multiply-add of a matrix product.

    Example: linnet spec show llama-110m

    Example: linnet spec show gpt2-124m --set blocks.0.repeat=24 --set context_length=2048 --json
    """
    from linnet.model.cost import model_cost
    from linnet.model.spec import ModelSpec, read_description
    from linnet.spec import override

    description = ModelSpec.parse(override(read_description(model), changes or []), model)
    figures = _figures(description, model_cost(description), ELEMENT_BYTES[dtype])
    if as_json:
        print(json.dumps(figures, indent=2))
    else:
        print(_report(description, figures, dtype))


def _figures(description: "ModelSpec", cost: "ModelCost", element_bytes: int) -> dict[str, Any]:
    """What `show` prints, as data. FLOPs are of a forward pass over one sequence as long as the context."""
    tokens = description.context_length
    return {
        "name": description.name,
        "parameters": {
            "total": cost.parameters,
            "embedding": cost.embedding.parameters,
            "blocks": cost.blocks.parameters,
            "head": cost.head.parameters,
        },
        "flops_per_token": {
            "with_head": round(cost.flops_per_token(tokens, with_head=True)),
            "without_head": round(cost.flops_per_token(tokens, with_head=False)),
        },
        "state_bytes": {str(tokens): cost.state_bytes(tokens, element_bytes) for tokens in STATE_TOKENS},
    }


def _report(description: "ModelSpec", figures: dict[str, Any], dtype: str) -> str:
    row = _row(description)
    parameters, flops, state = (figures[part] for part in ("parameters", "flops_per_token", "state_bytes"))
    lines = [
        f"{description.name}: {_layers(row['layers'])} of width {_widths(row['widths'])} ({', '.join(row['mixers'])}),"
        f" vocabulary {description.vocab_size:,}, context {description.context_length:,}",
        "",
        "parameters",
        *(_line(part, parameters[part], numbers.metric(parameters[part])) for part in ("embedding", "blocks", "head")),
        _line("total", parameters["total"], numbers.metric(parameters["total"])),
        "",
        f"forward FLOPs per token, over {description.context_length:,} tokens",
        _line("without output head", flops["without_head"], numbers.metric(flops["without_head"])),
        _line("with output head", flops["with_head"], numbers.metric(flops["with_head"])),
        "",
        f"bytes of decode state of one stream, {dtype}",
        *(_line(f"{int(tokens):,} tokens", count, numbers.binary(count)) for tokens, count in state.items()),
    ]
    return "\n".join(lines)


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


def _line(label: str, count: int, readable: str) -> str:
    return f"  {label:<20}{count:>18,}  {readable:>10}"
