"""`linnet export`: a model in another form."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli.console import invocation
from linnet.cli.options import AsJson, option
from linnet.cli.report import echo_exported


def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder, or the folder of a training run.")],
    out: Annotated[Path, option("FOLDER", "The folder to make.")],
    to: Annotated[str | None, option("FORM", "transformers; a model folder if not given.")] = None,
    dtype: Annotated[
        str | None, option("TYPE", "Of the stored weights: float32, bfloat16 or float16; as they are if not given.")
    ] = None,
    freeze_operator: Annotated[
        bool, typer.Option("--freeze-operator", help="Replace a PLDR-LLM's net by the operator that it infers.")
    ] = False,
    prompt: Annotated[
        str, typer.Option(help="The text that the operator is inferred from; empty: the end token alone (the paper).")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Write a model in another form.

    With --to transformers a model that is a Llama, Qwen 2 or 3, GPT-2 or GPT-NeoX becomes exactly that: a folder that
    Transformers reads without any code. Any other is refused by the field in which it differs. Before the folder gets
    its name Transformers reads it: token ids, logits and 200 greedy tokens have to be the model's, and how near they
    were is printed. With --dtype the weights are rounded first, and what that loses is printed too.

    With --freeze-operator a PLDR-LLM keeps one matrix for each head in the place of the net that infers it (the paper's
    v51Gi): the weights of the net are gone from the file, and the outputs are those of the model with that operator in
    its G-cache. The result is a model folder like any other.

    Example: linnet export runs/llama --to transformers --out hf/llama

    Example: linnet export runs/llama --to transformers --dtype bfloat16 --out hf/llama-bf16

    Example: linnet export runs/pldr --freeze-operator --out models/pldr-frozen
    """
    from linnet.interop.ways_out import export as export_model

    made = export_model(
        model, out, to=to, dtype=dtype, freeze_operator=freeze_operator, prompt=prompt, command=invocation()
    )
    echo_exported(made, as_json)
