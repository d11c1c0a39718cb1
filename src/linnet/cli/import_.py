"""`linnet import`: turn published checkpoints into model folders."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli.console import echo_model_made, invocation, note
from linnet.cli.options import AsJson, option

import_ = typer.Typer(add_completion=False, rich_markup_mode=None)


@import_.callback()
def _group() -> None:
    """Turn a published checkpoint into a model folder.

    Example: linnet import pldr checkpoint.pth --spec pldr-v51-110m-1 --tokenizer pieces.model --out models/pldr

    Example: linnet import ted tiny_stories --out models/ted

    Example: linnet import transformers SmolLM-135M --out models/smollm
    """


@import_.command()
def pldr(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.pth|DIR",
            help="The checkpoint, or a folder with one, or with config.json and model.safetensors.",
        ),
    ],
    out: Annotated[Path, option("DIR", "The model folder to make.")],
    spec: Annotated[str | None, option("PRESET|FILE", "The description of a .pth file's model.")] = None,
    tokenizer: Annotated[Path | None, option("FILE.model", "Its SentencePiece model. Default: that of DIR.")] = None,
    operator: Annotated[
        str | None,
        option(
            "FILE|identity",
            "The operators that a .pth file of a v51G model was trained with, which the file does not hold.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Import a published PLDR-LLM: a .pth file with model_state_dict, or a folder as Transformers keeps models.

    Only tensors are read from the files; no code in them is run. The SentencePiece model becomes a tokenizer.json with
    the same ids. Every tensor is checked by name and shape against the description.

    Example: linnet import pldr checkpoint.pth --spec pldr-v51-110m-1 --tokenizer pieces.model --out models/pldr

    Example: linnet import pldr PLDR-LLM-v51G-106M-1 --out models/pldr-v51g

    Example: linnet import pldr v51g --spec pldr-v51g-106m-2 --operator identity --out models/v51g-2
    """
    from linnet.interop.pldr import import_pldr

    decoder = import_pldr(checkpoint, spec, tokenizer, out, invocation(), operator)
    echo_model_made(decoder, out, as_json)


@import_.command()
def ted(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A folder with model.json, vocab.json, and weights.json or weights.pth."),
    ],
    out: Annotated[Path, option("DIR", "The model folder to make.")],
    end: Annotated[str, option("CHARACTER", "The character between documents in training.")] = "\N{OCTAGONAL SIGN}",
    context_length: Annotated[int, option("N", "Tokens of a training sequence.")] = 2048,
    as_json: AsJson = False,
) -> None:
    """Import a model of the published TED code: a folder with model.json, vocab.json and weights.

    weights.json holds base64 of float32; of weights.pth only tensors are read, and no code in it is run. If both exist,
    weights.json is read. The characters become a tokenizer.json with the same ids; other characters become a space.
    Every tensor is checked by name and shape against model.json.

    Example: linnet import ted tiny_stories --out models/ted

    Example: linnet import ted my_ted --end '|' --context-length 512 --out models/my-ted
    """
    from linnet.interop.ted import import_ted

    decoder = import_ted(folder, out, end, context_length, invocation())
    echo_model_made(decoder, out, as_json)


@import_.command()
def transformers(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder with config.json, model.safetensors and tokenizer.json.")
    ],
    out: Annotated[Path, option("DIR", "The model folder to make.")],
    end: Annotated[
        list[str] | None,
        option("TOKEN", "A token that ends a text, that between documents first. Default: those that DIR names."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Run the original with Transformers too, and compare the model with it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Import a model from a folder of Transformers: Llama, Mistral, Qwen, Phi, GPT-2, Pythia, OPT, Mamba and others.

    The weights may be in several files with an index. A field of config.json with a value that linnet cannot express is
    refused by name; every tensor is checked by name and shape. The tokenizer gives the same ids. No code in the folder
    is run, and Transformers need not be installed except for --check: then ids, logits and 200 greedy tokens must be
    those of the original, or nothing is written. A model that linnet exported to Transformers is imported unchanged.

    A folder of PEFT (adapter_config.json) becomes its base, whose folder it names, with the low-rank parts added.

    Example: linnet import transformers SmolLM-135M --out models/smollm

    Example: linnet import transformers pythia-160m --check --out models/pythia
    """
    from linnet.interop.transformers_convert import import_transformers

    decoder, parity = import_transformers(folder, out, invocation(), check, end or ())
    if parity is not None:
        note(f"checked: {parity}")
    echo_model_made(decoder, out, as_json)
