"""`linnet evaluate`: how good a model is on a text."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from linnet.cli.options import AsJson, ContextLength, Data, Device, OperatorSource, Weights, option
from linnet.cli.report import echo_json, echo_parts
from linnet.core.errors import UserError
from linnet.present import numbers

if TYPE_CHECKING:
    from linnet.evaluation.likelihood import Evaluation


def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder, or the folder of a run.")],
    data: Data,
    split: Annotated[
        Literal["validation", "train"], typer.Option(help="The side of the data to measure on.")
    ] = "validation",
    limit_tokens: Annotated[
        int | None, typer.Option(min=1, help="About this many tokens, spread evenly; all if not given.")
    ] = None,
    context_length: ContextLength = None,
    operator_from: OperatorSource = "train",
    operator: Annotated[
        str | None,
        option(
            "FILE|identity|random",
            "Measure a PLDR-LLM with other operators than its own: those of a .safetensors or .npz file (as "
            "`linnet inspect operator --save` writes it), the identity, or random numbers.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Draws the operators of --operator random; 0 if not given.")] = None,
    device: Device = "auto",
    weights: Weights = None,
    as_json: AsJson = False,
) -> None:
    """Measure a model on text: bits per byte, perplexity per token, accuracy.

    Bits per byte is the loss for each byte of text: lower is better, and models of different tokenizers can be compared
    by it. The evaluation is causal: no prediction depends on the text after it.

    A PLDR-LLM's training pass sees the whole text, the future included. So it is read with an operator frozen from
    other text (--operator-from); what its own pass would have claimed stands beside it, and the difference is the leak.

    Example: linnet evaluate runs/ted --data data/stories

    Example: linnet evaluate runs/pldr --data data/stories --operator-from empty --limit-tokens 100000 --json

    Example: linnet evaluate runs/pldr --data data/stories --operator random --seed 1
    """
    from linnet.evaluation.folder import evaluate_folder

    drawn_from = _drawn_from(seed, operator)
    found = evaluate_folder(
        model, data, split, limit_tokens, context_length, operator_from, device, operator, weights, drawn_from or 0
    )
    if as_json:
        replaced = {"operator": operator, "seed": drawn_from}
        measured = {"model": str(model), "data": str(data), "split": split, **replaced, "weights": weights}
        echo_json({**measured, **found.figures()})
    else:
        _print_table(found, operator, drawn_from)


def _drawn_from(seed: int | None, operator: str | None) -> int | None:
    """The seed of random operators, None where nothing is drawn."""
    if operator != "random":
        if seed is not None:
            raise UserError(f"--seed {seed}: goes with --operator random; nothing else is drawn")
        return None
    return seed or 0


def _print_table(found: "Evaluation", operator: str | None, seed: int | None) -> None:
    from linnet.present.table import Table

    rows = [("bits per byte", f"{found.causal.bits_per_byte:.4f}", "causal")]
    if found.whole_sequence is not None and found.leak is not None:
        rows.append(("", f"{found.whole_sequence.bits_per_byte:.4f}", "whole sequence, sees the future"))
        rows.append(("leak", numbers.signed(found.leak, 4), "bits per byte that seeing the future gains"))
    rows.append(("perplexity", f"{found.causal.perplexity:,.2f}", "per token"))
    rows.append(("accuracy", f"{found.causal.accuracy:.1%}", "of tokens guessed first"))
    rows.append(("tokens", f"{found.causal.tokens:,}", f"{found.causal.bytes:,} bytes of text"))
    if operator is not None:
        drawn = "" if seed is None else f", drawn from seed {seed}"
        rows.append(("operator", operator, f"in the place of the model's own{drawn}"))
    echo_parts(Table("", ("", "", ""), rows, text=True))
