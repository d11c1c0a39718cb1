"""`linnet inspect`: looking inside a model."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli.console import note, show, show_result
from linnet.cli.inspect_contexts import contexts
from linnet.cli.inspect_experts import experts
from linnet.cli.inspect_lifetimes import lifetimes
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
from linnet.core.errors import UserError

MOST_TOKENS = 1 << 14
"""Of a continuation that is read anew at each of its tokens: the work grows with the third power."""

inspect = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="""Look inside a model: its operators, what it sees of the future, what it remembers and how far it reads.

    Each command prints tables; --json prints the figures instead, --out DIR adds pictures and one page with all of it.

    Example: linnet inspect operator runs/pldr --out inspected
    """,
)


@inspect.command()
def operator(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|FILE", help="A model folder, the folder of a run, or operators in .safetensors or .npz."
        ),
    ],
    prompt: Annotated[
        str | None, typer.Option(help="Deduce the operators from this text; the end token alone if not given.")
    ] = None,
    save: Annotated[Path | None, option("FILE", "Save the model's operators, as .safetensors.")] = None,
    rank_tolerance: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Singular values count above this share of the largest; the matrices' rounding if not given."
        ),
    ] = None,
    out: ReportFolder = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Show the matrices that power-law graph attention deduces from a text: A, A_LM, A_P and the operator G.

    Difference between heads, determinants, rank; whether A is rank one; the singular values of A_LM: as the PLDR-LLM
    paper reports them, in float64. A file may hold G alone, under the names 0, 1, ... or layer0.G, layer1.G, ...

    Example: linnet inspect operator runs/pldr --out inspected

    Example: linnet inspect operator runs/pldr --prompt "Once upon a time" --save operator.safetensors

    Example: linnet inspect operator operator.npz --json
    """
    if save is not None and save.suffix != ".safetensors":
        raise UserError(f"--save {save}: expected a name that ends in .safetensors")
    from linnet.inspection.operator_figures import operator_figures
    from linnet.inspection.pictures import operator_pictures
    from linnet.inspection.source import load_operators
    from linnet.inspection.tables import operator_tables
    from linnet.layers.registry import operator_files

    found = load_operators(source, prompt, device)
    if save is not None:
        if found.in_file:
            raise UserError(f"--save {save}: {source} is a file of operators already; expected a model")
        operator_files().save(found.layers, save)
        note(f"saved: {save}")
    figures = operator_figures(found.layers, rank_tolerance)
    facts, tables = {"operators": f"{found.shape}; {found.origin}"}, operator_tables(figures)
    told = {"source": source, "prompt": found.prompt, "prompt_tokens": found.prompt_tokens, **figures.figures()}
    show(f"Operators of {source}", facts, told, tables, lambda: operator_pictures(figures, found.layers), out, as_json)


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
    training, once with a frozen operator. The leak is the difference of both in bits per byte, as of `linnet evaluate`.

    Example: linnet inspect causality runs/pldr --data data/stories

    Example: linnet inspect causality runs/ted --data data/stories --cut 128 --windows 32 --json
    """
    from linnet.inspection.causality import inspect_causality

    found = inspect_causality(model, data, split, windows, cuts, limit_tokens, context_length, calibrate_on, device)
    show_result(found, out, as_json)


@inspect.command()
def invariance(
    model: Model,
    data: Data,
    split: SplitName = "validation",
    prompts: Annotated[int, typer.Option(min=2, help="Documents to draw, or all that are long enough.")] = 100,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of each document, the end token before it included.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Decides which documents are drawn.")] = 0,
    out: ReportFolder = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure how much the operator of power-law graph attention varies with the text, relative to its size.

    The paper's claim is that a trained operator hardly depends on its input, so that it can be kept and the net behind
    it left out. Here it is measured: over the beginnings of documents, for each deductive output and layer.

    Example: linnet inspect invariance runs/pldr --data data/stories

    Example: linnet inspect invariance runs/pldr --data data/stories --prompts 20 --tokens 16 --out inspected
    """
    from linnet.inspection.invariance import inspect_invariance
    from linnet.inspection.pictures import invariance_pictures
    from linnet.inspection.tables import invariance_tables

    found = inspect_invariance(model, data, split, prompts, tokens, seed, device)
    facts = {"text": f"documents of the {split} split of {data}, drawn with seed {seed}"}
    told = {"model": model, "data": str(data), "split": split, "seed": seed, **found.figures()}
    tables = invariance_tables(found)
    show(f"Invariance of {model}", facts, told, tables, lambda: invariance_pictures(found), out, as_json)


@inspect.command()
def caches(
    model: Model,
    prompt: Annotated[str, typer.Option(help="The text to continue.")] = "",
    tokens: Annotated[
        int, typer.Option(min=1, max=MOST_TOKENS, help="Stop after so many tokens, if the text has not ended.")
    ] = 100,
    out: ReportFolder = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Compare generation with and without the KV-cache and the G-cache, as the PLDR-LLM paper does.

    The same prompt is continued with each of the four settings, by the likeliest token. Shows whether the text stays
    the same, and the deductive outputs with which each ended.

    Example: linnet inspect caches runs/pldr --prompt "Once upon a time" --tokens 100
    """
    from linnet.inspection.caches import inspect_caches
    from linnet.inspection.tables import caches_tables

    found = inspect_caches(model, prompt, tokens, device)
    facts, told = {"prompt": repr(prompt) if prompt else "the empty prompt"}, {"model": model, **found.figures()}
    show(f"Caches of {model}", facts, told, caches_tables(found), list, out, as_json)


inspect.command()(contexts)
inspect.command()(experts)
inspect.command()(lifetimes)
inspect.command()(positions)
