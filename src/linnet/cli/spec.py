"""`linnet spec`: list presets, and compute the cost of a model from its description alone."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from linnet.cli.options import AsJson, Changes, Fields, with_fields
from linnet.core.errors import UserError
from linnet.present import numbers
from linnet.present.show import write, write_json, write_parts
from linnet.present.table import Table

if TYPE_CHECKING:
    from linnet.core.spec import Spec
    from linnet.model.cost import ModelCost, WeightType
    from linnet.model.spec import BlockSpec, ModelSpec

INDEX = "index.json"
"""The presets in short, so that `linnet spec list` needs no PyTorch; `make presets` writes it."""

STATE_TOKENS = (1024, 8192, 65536)
WEIGHT_TYPES: "tuple[WeightType, ...]" = ("float32", "bfloat16", "int8", "int4")

spec = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="""List and describe models: what a model is made of and what it costs.

    Example: linnet spec show llama-110m
    """,
)


@spec.command("list")
def list_presets(as_json: AsJson = False) -> None:
    """List the presets: parameters, shape, context, token mixers.

    Example: linnet spec list
    """
    from linnet.model.folder import preset_names

    rows = [preset_row(name) for name in preset_names()]
    if as_json:
        write_json(rows)
        return
    shown = [
        (
            row["name"],
            f"{row['parameters']:,}",
            f"{_layers(row)} x {_widths(row)}",
            f"{row['context_length']:,}",
            ", ".join(row["mixers"]),
        )
        for row in rows
    ]
    write_parts(Table("", ("name", "parameters", "layers x width", "context", "mixers"), shown))


@spec.command(cls=with_fields("linnet.model.spec:ModelSpec"))
def show(
    model: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A preset, a YAML file, or a model folder.")],
    precision: Annotated[
        Literal["float32", "bfloat16", "int8", "int4"],
        typer.Option(help="Precision of the weights that the decode state goes with."),
    ] = "float32",
    tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Count FLOPs over this many tokens. Default: the context length."),
    ] = None,
    inputs: Annotated[
        int | None,
        typer.Option(min=1, help="Encoder-decoders: tokens of the input. Default: as many as --tokens."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences of a training step, for its memory.")] = 8,
    changes: Changes = None,
    list_fields: Fields = False,
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="Print the description, with the changes, for a file of your own.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the cost of a model: parameters, FLOPs, bytes of weights and decode state, memory of a training step.

    Example: linnet spec show llama-110m

    The figures are computed from the description alone and are exactly those of the built model. FLOPs count 2 for each
    multiply-add of a matrix product. A field is also an option: --context-length 2048. "leaves as" lists what `linnet
    export` makes of the model once it is trained.

    Example: linnet spec show merino-52m --tokens 1024

    Example: linnet spec show tiny-encoder-decoder --tokens 64 --inputs 200

    Example: linnet spec show gpt2-124m --set blocks.0.repeat=24 --set context_length=2048 --json

    Example: linnet spec show tiny-llama --d-model 192 --yaml
    """
    import yaml

    from linnet.core.spec import override
    from linnet.interop.exporters import leaves_as
    from linnet.model.cost import model_cost
    from linnet.model.folder import read_description
    from linnet.model.spec import ModelSpec

    fields = [change.strip().removeprefix("model.") for change in changes or []]  # as `linnet train` names them
    plain = override(read_description(model), fields)
    description = ModelSpec.parse(plain, model)
    if as_yaml:
        write(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120))
        return
    length = tokens or description.context_length
    if tokens is not None and tokens > description.context_length and description.embedding.positions == "learned":
        raise UserError(f"--tokens {tokens}: the model's learned positions end at {description.context_length}")
    if inputs is not None and description.encoder is None:
        raise UserError(f"--inputs {inputs}: {model} has no encoder that reads an input")
    if description.encoder is not None:
        inputs = inputs or length
    cost = model_cost(description)
    figures = _figures(description, cost, precision, length, batch, inputs)
    if description.encoder is not None:
        figures["inputs"] = inputs
        figures["parameters"]["encoder"] = cost.encoder.parameters
    forms, refusals = leaves_as(description)
    if as_json:
        write_json({**figures, "leaves_as": forms, "not_as": refusals})
    else:
        row = _row(description)
        shape = _shape(row)
        if row["encoder"] is not None:
            shape = f"an encoder of {_shape(row['encoder'])}, a decoder of {shape}"
        vocabulary = f"vocabulary {description.vocab_size:,}, context {description.context_length:,}"
        write(f"{description.name}: {shape}, {vocabulary}\n{_switched_on(description)}\n")
        leaves = [*forms.items(), *((name, f"no: {problem}") for name, problem in refusals.items())]
        write_parts(Table("leaves as:", ("", ""), leaves), *_tables(figures, precision))


def _shape(row: dict[str, Any]) -> str:
    layers = f"{row['layers']} layer{'s' * (row['layers'] > 1)}"
    return f"{layers} of width {_widths(row)} ({', '.join(row['mixers'])})"


def _switched_on(description: "ModelSpec") -> str:
    """Return a line with the fields that are off by default and on here, each once; empty if there are none."""
    parts: list[tuple[str, Spec | None]] = [("embedding", description.embedding), ("head", description.head)]
    parts += [("initialization", description.initialization)]
    for block in description.blocks:
        parts += [("mixer", block.mixer), ("feed_forward", block.feed_forward)]
    names = ["prefix"] * description.prefix + [
        f"{part}.{name}"
        for part, spec in parts
        if spec is not None
        for name, field in type(spec).model_fields.items()
        if field.default in (None, False) and getattr(spec, name) not in (None, False)
    ]
    return f"with {', '.join(dict.fromkeys(names))}\n" if names else ""


def _figures(
    description: "ModelSpec", cost: "ModelCost", dtype: "WeightType", tokens: int, batch: int, inputs: int | None
) -> dict[str, Any]:
    """Return the figures of `show`. FLOPs are those of a sequence of `tokens` tokens, after `inputs` of an encoder."""
    heads = {"with_head": True, "without_head": False}
    forward = {name: cost.flops(tokens, with_head, inputs) for name, with_head in heads.items()}
    training = {name: cost.training_flops(tokens, with_head, inputs) for name, with_head in heads.items()}
    memory = cost.training_memory(batch, tokens, inputs)
    return {
        "name": description.name,
        "tokens": tokens,
        "batch": batch,
        "parameters": {
            "total": cost.parameters,
            "embedding": cost.embedding.parameters,
            "blocks": cost.blocks.parameters,
            "head": cost.head.parameters,
            "active": cost.active_parameters,
        },
        "flops_per_token": {name: round(flops / tokens) for name, flops in forward.items()},
        "flops_per_sequence": forward,
        "training_flops_per_token": {name: round(flops / tokens) for name, flops in training.items()},
        "training_flops_per_sequence": training,
        "weights_bytes": {kind: cost.weights_bytes(kind) for kind in WEIGHT_TYPES},
        "state_bytes": {str(length): cost.state_bytes_for_precision(dtype, length, inputs) for length in STATE_TOKENS},
        "training_memory_bytes": {**asdict(memory), "total": memory.total},
    }


def _tables(figures: dict[str, Any], dtype: str) -> list[Table]:
    tokens = figures["tokens"]
    known, behind = figures["parameters"], ""
    parameters = {part: known[part] for part in ("encoder", "embedding", "blocks", "head", "total") if part in known}
    if known["active"] != known["total"]:
        parameters["used by one token"] = known["active"]
    if "inputs" in figures:
        behind = f", behind an input of {figures['inputs']:,}"
    of_state = f"beside {dtype} weights" if dtype in ("int8", "int4") else dtype
    state = {f"{int(length):,} tokens": count for length, count in figures["state_bytes"].items()}
    flops = [
        _table(
            f"{title} FLOPs per {per}, over {tokens:,} tokens{behind}",
            {f"{side} output head": figures[f"{key}_per_{per}"][f"{side}_head"] for side in ("without", "with")},
            numbers.metric,
        )
        for title, key in (("forward", "flops"), ("training", "training_flops"))
        for per in ("token", "sequence")
    ]
    step = f"bytes that a training step of {figures['batch']} x {tokens:,} tokens{behind} holds, float32"
    return [
        _table("parameters", parameters, numbers.metric),
        *flops,
        _table("bytes of weights", figures["weights_bytes"], numbers.binary),
        _table(f"bytes of decode state of one stream{behind}, {of_state}", state, numbers.binary),
        _table(step, figures["training_memory_bytes"], numbers.binary),
    ]


def _table(title: str, counts: dict[str, int], write_count: Callable[[float], str]) -> Table:
    return Table(title, ("", "", ""), [(name, f"{count:,}", write_count(count)) for name, count in counts.items()])


def preset_row(name: str) -> dict[str, Any]:
    """Return a preset in short, as the index of presets has it; if it is not there or was edited, it is computed.

    Computing takes seconds, because it imports PyTorch.
    """
    from linnet.core.files import read_json, sha256_of
    from linnet.model.folder import PRESETS

    known = read_json(PRESETS / INDEX).get(name, {})
    is_known = known.get("sha256") == sha256_of(PRESETS / f"{name}.yaml")
    return dict(known["row"]) if is_known else computed_row(name)


def computed_row(name: str) -> dict[str, Any]:
    """Return a preset in short, computed from its description."""
    from linnet.model.spec import ModelSpec

    return _row(ModelSpec.load(name))


def write_index() -> None:
    """Write the index of presets, a line for each (`make presets`)."""
    from linnet.core.files import sha256_of, write_text
    from linnet.model.folder import PRESETS, preset_names

    entries = {
        name: {"sha256": sha256_of(PRESETS / f"{name}.yaml"), "row": computed_row(name)} for name in preset_names()
    }
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
    write_text(PRESETS / INDEX, f"{{\n{lines}\n}}\n")


def _row(description: "ModelSpec") -> dict[str, Any]:
    """Return one model in short, with widths and mixers in the order of the layers."""
    from linnet.model.cost import model_cost

    encoder = description.encoder
    return {
        "name": description.name,
        "parameters": model_cost(description).parameters,
        **_stack(description.blocks, description),
        "context_length": description.context_length,
        "encoder": None if encoder is None else _stack(encoder.blocks, description),
        "prefix": description.prefix,
    }


def _stack(blocks: "Sequence[BlockSpec]", description: "ModelSpec") -> dict[str, Any]:
    return {
        "layers": sum(block.repeat for block in blocks),
        "widths": list(dict.fromkeys(block.width or description.d_model for block in blocks)),
        "mixers": list(dict.fromkeys(block.mixer.kind for block in blocks)),
    }


def _layers(row: dict[str, Any]) -> str:
    """Return the number of layers, those of an encoder first."""
    return f"{row['layers']}" if row["encoder"] is None else f"{row['encoder']['layers']} + {row['layers']}"


def _widths(row: dict[str, Any]) -> str:
    return "/".join(map(str, row["widths"]))
