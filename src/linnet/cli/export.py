"""`linnet export`: a model in another form."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli.console import echo_export_result, invocation
from linnet.cli.options import AsJson, option


def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder, or the folder of a training run.")],
    out: Annotated[Path, option("PATH", "The folder to make, with --to gguf the file; a name that is not taken.")],
    to: Annotated[
        str | None, option("FORM", "transformers, gguf, onnx or web; a model folder with --freeze alone.")
    ] = None,
    dtype: Annotated[
        str | None,
        option("TYPE", "With --to transformers: of the weights: float32, bfloat16, float16; as they are if not given."),
    ] = None,
    weights: Annotated[
        str | None,
        option(
            "TYPE",
            "With --to gguf: how matrices are stored: f32 (if not given), f16, bf16, q8_0 or q4_0. With --to onnx or "
            "web: float32 (onnx if not given), int8 (web if not given) or int4.",
        ),
    ] = None,
    cache_policy: Annotated[
        str | None,
        option("POLICY", "With --to onnx: the cache policy of the graphs (docs/inference.md); full if not given."),
    ] = None,
    beside: Annotated[
        list[Path] | None, option("MODEL", "With --to web: one more model on the page; may be repeated.")
    ] = None,
    runtime: Annotated[
        Path | None, option("PATH", "With --to web: the folder or .tgz of onnxruntime-web; from npm if not given.")
    ] = None,
    freeze: Annotated[
        bool, typer.Option("--freeze", help="Replace a PLDR-LLM's net by the operator that it infers.")
    ] = False,
    prompt: Annotated[
        str,
        option("TEXT", "With --freeze: what the operator is inferred from; the end token alone if not given."),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Write a model in another form, for another program; --to says which.

    What is written gets its name only after the other program has read it, and said what the model says here: it is the
    same model, or there is no file. Each form needs packages of its own: pip install 'linnet[transformers]',
    'linnet[gguf]', 'linnet[onnx]' (which web needs too). docs/exporting.md tells more.

    With --to transformers a model that is a Llama, Qwen 2 or 3, GPT-2 or GPT-NeoX becomes exactly that: a folder that
    Transformers reads without any code. Any other becomes a folder that it reads after `import
    linnet.interop.transformers`, and what it differs in is printed. Token ids, logits and 200 greedy tokens have to be
    the model's. With --dtype the weights are rounded first, and what that loses is printed.

    With --to gguf a model of the shape of Llama, Qwen 2 or 3 becomes one file for llama.cpp, held to the model in the
    same way: by what the file itself says, and by llama.cpp where llama-cpp-python is installed.

    With --to onnx a model (a PLDR-LLM if it is frozen) becomes a folder of graphs for onnxruntime: one for a token,
    with the states as inputs and outputs, and one for a prompt where there can be such. Logits over 350 tokens and bits
    per byte have to be the model's; `linnet generate --engine onnx` runs them.

    With --to web one or several models become a folder that any web server shows (python -m http.server --directory
    site): a page on which they write side by side, in the visitor's browser. Its runtime comes from npm, or --runtime.

    With --freeze a PLDR-LLM keeps one matrix for each head in the place of the net that infers it (the paper's
    v51Gi): the weights of the net are gone from the file, and the outputs are those of the model with that operator in
    its G-cache. The result is a model folder like any other.

    Example: linnet export runs/llama --to transformers --out hf/llama

    Example: linnet export runs/llama --to transformers --dtype bfloat16 --out hf/llama-bf16

    Example: linnet export runs/llama --to gguf --weights q8_0 --out llama.gguf

    Example: linnet export runs/ted --to transformers --out hf/ted

    Example: linnet export runs/ted --to onnx --weights int8 --cache-policy bank --out onnx/ted

    Example: linnet export runs/ted --to web --beside runs/attention --out site

    Example: linnet export runs/pldr --freeze --out models/pldr-frozen
    """
    from linnet.interop.exporters import export as export_model

    made = export_model(
        model,
        out,
        to=to,
        dtype=dtype,
        weights=weights,
        cache_policy=cache_policy,
        beside=beside or None,
        runtime=runtime,
        freeze=freeze,
        prompt=prompt,
        command=invocation(),
    )
    echo_export_result(made, as_json)
