"""`linnet export`: a model in the format of another program."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli.console import echo_export_result, invocation
from linnet.cli.options import AsJson, option
from linnet.core.errors import UserError


def export(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="A model folder, or that of a training run; with --to datatrove a data folder."
        ),
    ],
    out: Annotated[Path, option("PATH", "The folder to make, with --to gguf the file; it must not exist.")],
    to: Annotated[
        str | None,
        option("FORM", "transformers, gguf, onnx, web, peft or datatrove; without it, --freeze writes a model folder."),
    ] = None,
    precision: Annotated[
        str | None,
        option(
            "TYPE",
            "Precision of the stored weights. transformers: float32, bfloat16, float16; default: as they are. gguf, of"
            " matrices: f32 (default), f16, bf16, q8_0, q4_0. onnx, web: float32, int8, int4; defaults: float32, int8.",
        ),
    ] = None,
    cache_policy: Annotated[
        str | None,
        option("POLICY", "With --to onnx: the cache policy of the graphs' state; the full cache by default."),
    ] = None,
    beside: Annotated[
        list[Path] | None, option("MODEL", "With --to web: one more model on the page; may be repeated.")
    ] = None,
    runtime: Annotated[
        Path | None, option("PATH", "With --to web: the folder or .tgz of onnxruntime-web; from npm by default.")
    ] = None,
    freeze: Annotated[
        bool, typer.Option("--freeze", help="Store what layers calibrate on a text instead of calibrating.")
    ] = False,
    prompt: Annotated[
        str, option("TEXT", "With --freeze: the text that layers calibrate on; by default the end token.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Export a model to the format of another program; --to names the format.

    The files get their name only after the other program has read them and computed the same as the model here;
    otherwise nothing is written. Each format needs packages of its own: pip install 'linnet[transformers]',
    'linnet[gguf]', 'linnet[onnx]' (also for web). docs/exporting.md has the details.

    --to transformers: a Llama, Mistral, Qwen 2 or 3, GPT-2 or GPT-NeoX, or an unchanged imported model becomes exactly
    that model, in a folder that Transformers reads without any code. Any other decoder becomes a folder that it reads
    after `import linnet.interop.transformers`, and the first difference from these families is printed. Token ids,
    logits and 200 greedy tokens are compared. With --precision the weights are rounded first, and the loss is printed.

    --to gguf: a model with the shape of a Llama, Qwen 2 or 3 becomes a file for llama.cpp. It is compared in the same
    way, from the metadata of the file, and with llama.cpp if llama-cpp-python is installed.

    --to onnx: a model becomes a folder of graphs for onnxruntime: one for a token, with the states as inputs and
    outputs, and one for a prompt if the architecture allows it. Logits over 350 tokens and bits per byte are compared;
    `linnet generate --engine onnx` runs the graphs. A model that calibrates on a text must be frozen.

    --to web: one or several models become a page for any static web server (python -m http.server --directory site), on
    which they write side by side in the visitor's browser. Its runtime comes from npm, or from --runtime.

    --freeze: layers that calibrate on a text store the result instead (of a PLDR-LLM one matrix for each head instead
    of a net). The exported model computes the same as the model after that text.

    --to peft: the low-rank parts of a run with training.lora become a folder that PEFT reads, beside the base model.

    --to datatrove: the tokens of a folder of `linnet prepare` become the files .ds, .ds.index and .ds.metadata.

    Example: linnet export runs/llama --to transformers --out hf/llama

    Example: linnet export runs/llama --to transformers --precision bfloat16 --out hf/llama-bf16

    Example: linnet export runs/llama --to gguf --precision q8_0 --out llama.gguf

    Example: linnet export runs/ted --to transformers --out hf/ted

    Example: linnet export runs/ted --to onnx --precision int8 --cache-policy bank --out onnx/ted

    Example: linnet export runs/ted --to web --beside runs/attention --out site

    Example: linnet export runs/pldr --freeze --out models/pldr-frozen
    """
    from linnet.interop.exporters import EXPORTERS
    from linnet.interop.exporters import export as export_model

    if to is not None and to not in (*EXPORTERS, "peft", "datatrove"):
        raise UserError(field="to", value=to, accepted=f"one of {', '.join(EXPORTERS)}, peft, datatrove")
    if to == "datatrove":
        of_models = {"precision": precision, "cache_policy": cache_policy, "beside": beside, "runtime": runtime}
        for name, value in {**of_models, "freeze": freeze or None, "prompt": prompt or None}.items():
            if value:
                raise UserError("applies only to models, and not to tokens", field=name, value=value)
        _export_tokens(model, out, as_json)
        return

    if to == "peft":
        of_models = {"precision": precision, "cache_policy": cache_policy, "beside": beside, "runtime": runtime}
        for name, value in {**of_models, "freeze": freeze or None, "prompt": prompt or None}.items():
            if value:
                raise UserError("applies only to models, and not to low-rank parts", field=name, value=value)
        _export_parts(model, out, as_json)
        return
    made = export_model(
        model,
        out,
        to=to,
        precision=precision,
        cache_policy=cache_policy,
        beside=beside or None,
        runtime=runtime,
        freeze=freeze,
        prompt=prompt,
        command=invocation(),
    )
    echo_export_result(made, as_json)


def _export_parts(run: Path, out: Path, as_json: bool) -> None:
    """Write the low-rank parts of a run as PEFT reads them."""
    from linnet.interop.peft import export_peft
    from linnet.present.show import write, write_json

    config = export_peft(run, out)
    if as_json:
        write_json({"out": str(out), **config})
    else:
        write(f"rank {config['r']}, alpha {config['lora_alpha']:g}: {', '.join(config['target_modules'])}\n")
        base = config["base_model_name_or_path"]
        write(f"written to {out}\nbase: {base}; PEFT adds the parts to its form for Transformers:\n")
        write(f"  linnet export {base} --to transformers --out NEW\n")


def _export_tokens(data: Path, out: Path, as_json: bool) -> None:
    """Write the tokens of a data folder as datatrove reads them."""
    from linnet.data.token_data import TokenData
    from linnet.data.token_files import write_datatrove
    from linnet.model.store import check_new_folder
    from linnet.present.show import write, write_json

    check_new_folder(out)
    counts = write_datatrove(TokenData.open(data), out)
    if as_json:
        write_json({"out": str(out), "tokens": counts})
    else:
        for split, count in counts.items():
            write(f"{split}.ds: {count:,} tokens\n")
        write(f"written to {out}\n")
