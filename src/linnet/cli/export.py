"""`linnet export`: a model in another form."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli.console import invocation
from linnet.cli.options import AsJson, option
from linnet.cli.report import echo_model_made


def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder, or the folder of a training run.")],
    out: Annotated[Path, option("FOLDER", "The model folder to make.")],
    freeze_operator: Annotated[
        bool, typer.Option("--freeze-operator", help="Replace a PLDR-LLM's net by the operator that it infers.")
    ] = False,
    prompt: Annotated[
        str, typer.Option(help="The text that the operator is inferred from; empty: the end token alone (the paper).")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Write a model in another form.

    With --freeze-operator a PLDR-LLM keeps one matrix for each head in the place of the net that infers it (the paper's
    v51Gi): the weights of the net are gone from the file, and the outputs are those of the model with that operator in
    its G-cache. The result is a model folder like any other.

    Example: linnet export runs/pldr --freeze-operator --out models/pldr-frozen
    """
    from linnet.interop.freeze import export as export_model

    decoder = export_model(model, out, freeze_operator=freeze_operator, prompt=prompt, command=invocation())
    echo_model_made(decoder, out, as_json)
