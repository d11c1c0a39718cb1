"""What a verb that makes a model folder prints."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from linnet.model.decoder import Decoder


def print_model_made(decoder: "Decoder", out: Path, as_json: bool) -> None:
    """The folder, the parameters and the bytes of its weights, in a line or as JSON."""
    from linnet.model.store import WEIGHTS

    parameters = sum(parameter.numel() for parameter in decoder.parameters())
    weights_bytes = (out / WEIGHTS).stat().st_size
    if as_json:
        made = {"model": str(out), "name": decoder.spec.name, "parameters": parameters, "weights_bytes": weights_bytes}
        typer.echo(json.dumps(made, indent=2))
    else:
        typer.echo(f"{out}: {decoder.spec.name}, {parameters:,} parameters, {weights_bytes:,} bytes of weights")
