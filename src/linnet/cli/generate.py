"""`linnet generate`: a model continues a prompt."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from linnet.cli.console import check_out_file, note, note_replaced
from linnet.cli.context_view import ContextView, context_figures
from linnet.cli.options import Precision, option
from linnet.core.errors import UserError
from linnet.core.files import read_whole, standard_input
from linnet.present.show import write, write_json

if TYPE_CHECKING:
    from linnet.inference.language_model import Continuation

Prompt = typer.Option(help="The text to continue; - reads it from the standard input, without one final newline.")
MaxTokens = Annotated[int, typer.Option(help="Stop after this many tokens if the text has not ended.")]
Temperature = Annotated[float, typer.Option(help="Divides the logits; 0 takes the most likely token.")]
TopK = Annotated[int, typer.Option(help="Choose among the k most likely tokens; 0 for all.")]
TopP = Annotated[
    float, typer.Option(help="Choose among the fewest tokens that together have this probability; 1 for all.")
]
SamplingSeed = Annotated[int | None, typer.Option(help="The same seed gives the same text. Default: a random one.")]
TextAsJson = Annotated[bool, typer.Option("--json", help="Print text and figures as JSON, all at the end.")]


def generate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or the folder of a training run.")],
    prompt: Annotated[str, Prompt] = "",
    input_text: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="TEXT",
            help="For a model of pairs: the input that the text follows from; --prompt is then how the text begins.",
        ),
    ] = None,
    max_tokens: MaxTokens = 200,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Continue after the end of a text with the next one.")
    ] = False,
    temperature: Temperature = 0.8,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: SamplingSeed = None,
    stream: Annotated[bool, typer.Option(help="Print the text while it is generated, or all at the end.")] = True,
    device: Annotated[str, typer.Option(help="auto (cuda if there is one), cpu, cuda, cuda:1.")] = "auto",
    precision: Precision = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads. Default: PyTorch's choice.")] = None,
    calibration: Annotated[
        str | None,
        option(
            "FILE|identity|random",
            "Replace the model's own calibration, if its layers have one; a random one follows the seed.",
        ),
    ] = None,
    kv_cache: Annotated[
        bool,
        typer.Option("--kv-cache/--no-kv-cache", help="Keep a cache of the text, or read all of it for each token."),
    ] = True,
    cache_policy: Annotated[
        str | None,
        option(
            "POLICY",
            "What the layers keep of the text: full, recalibrate, or a policy that the kind of layer brings, as "
            "NAME or FIELD=NUMBER,...; with slashes between, one for each layer that has a choice.",
        ),
    ] = None,
    show_context: Annotated[
        bool,
        typer.Option(
            "--show-context",
            help="Show what each layer with a choice of policies holds: live on a terminal, and once more at the end.",
        ),
    ] = False,
    save_state: Annotated[Path | None, option("FILE", "Save the stream here, to continue it later.")] = None,
    load_state: Annotated[
        Path | None,
        option("FILE", "Continue a stream of --save-state, followed by --prompt; its random numbers continue too."),
    ] = None,
    engine: Annotated[
        Literal["torch", "onnx"], typer.Option(help="onnx: MODEL is a folder of ONNX graphs, run by onnxruntime.")
    ] = "torch",
    as_json: TextAsJson = False,
) -> None:
    """Continue a prompt. Without a prompt, begin a new text.

    Example: linnet generate runs/stories --prompt "Once upon a time" --temperature 0.7 --seed 1

    Prints the prompt and its continuation as one text; figures go to the standard error. Tokens per second exclude the
    first token and the time of the prompt. Temperature, top-k and top-p apply in this order and mean what they mean in
    Transformers.

    A model that calibrates its layers on the prompt does so in one pass over all of it, and keeps the result for the
    whole continuation. With --cache-policy recalibrate it calibrates again for each token: with --no-kv-cache on the
    whole text, else on what it kept of the prompt.

    Layers that have a choice of how much of the text they keep follow --cache-policy (docs/inference.md).

    An encoder-decoder reads --input with its encoder, once; a model with prefix: true reads it as a prefix without a
    causal mask; any other model reads it before the prompt, as in training on pairs.

    Example: linnet generate runs/pairs --input "three two one" --temperature 0

    Example: linnet generate runs/pldr --prompt "Once upon a time" --calibration identity

    Example: linnet generate runs/stories --prompt "Once upon a time" --precision int8

    Example: linnet generate runs/ted --prompt "Once upon a time" --cache-policy top_k=32 --show-context

    Example: linnet generate runs/stories --prompt "Once upon a time" --max-tokens 50 --save-state story.safetensors

    Example: linnet generate runs/stories --load-state story.safetensors --max-tokens 50

    Example: linnet generate runs/ted --cache-policy bank --max-tokens 1000000 --ignore-eos

    Example: linnet generate onnx/stories --engine onnx --prompt "Once upon a time"
    """
    from torch import set_num_threads

    from linnet.inference.cache_policy import chooses
    from linnet.inference.engine import Caches
    from linnet.inference.language_model import load
    from linnet.inference.sampling import Sampling, fresh_seed
    from linnet.inference.session import Session
    from linnet.inference.weights import convert_and_report, weights_nbytes
    from linnet.layers.cache_policy import FULL

    if show_context and not kv_cache:
        raise UserError("--no-kv-cache: nothing is kept of the text; expected no --show-context")
    if load_state is not None and input_text is not None:
        raise UserError(f"--input: --load-state {load_state} has the input that it began with; leave it out")
    _check_state_files(save_state, load_state, kv_cache, cache_policy)
    policy = cache_policy or FULL.label
    sampling = Sampling(temperature, top_k, top_p, fresh_seed() if seed is None and load_state is None else seed)
    if threads is not None:
        from linnet.training.machine import check_threads

        check_threads(threads, "threads")
        set_num_threads(threads)
    prompt = _read_prompt(prompt)
    session = None
    if engine == "onnx":
        torch_options = {
            "--input": input_text is not None,
            "--device": device != "auto",
            "--precision": precision is not None,
            "--calibration": calibration is not None,
            "--no-kv-cache": not kv_cache,
            f"--cache-policy {cache_policy}": cache_policy is not None,
            "--show-context": show_context,
            "--save-state": save_state is not None,
            "--load-state": load_state is not None,
        }
        for name, is_typed in torch_options.items():
            if is_typed:
                raise UserError(f"{name}: --engine onnx runs graphs as they were exported; leave it out")
        from linnet.interop.onnx.engine import OnnxLanguageModel

        graphs = OnnxLanguageModel(model, threads)
        continuation = graphs.stream(prompt, max_tokens, sampling, ignore_eos)
        context_length = graphs.graphs.description.model.context_length
        weights_bytes = sum(path.stat().st_size for path in Path(model).glob("model.onnx*"))
    else:
        language_model = load(model, device)
        context_length = language_model.spec.context_length
        if calibration is not None:
            language_model = language_model.with_calibration(calibration, sampling.seed)
        if precision is not None:
            convert_and_report(language_model.decoder, precision)
        if show_context and not any(chooses(mixer) for mixer in language_model.decoder.mixers):
            raise UserError("--show-context: no layer of the model has a choice of cache policies; leave it out")
        if save_state is None and load_state is None:
            caches = Caches(kv_cache)
            continuation = language_model.stream(prompt, max_tokens, sampling, caches, policy, ignore_eos, input_text)
        else:
            session = (
                Session(language_model, policy, input_text)
                if load_state is None
                else Session.load(language_model, load_state)
            )
            session.feed(prompt)
            continuation = session.stream(max_tokens, sampling, ignore_eos)
        weights_bytes = weights_nbytes(language_model.decoder)
    view = ContextView(continuation.state if show_context else None, prompt, stream and not as_json)
    if as_json:
        settings: dict[str, Any] = {"seed": sampling.seed if session is None else session.seed}
        settings |= {"ignore_eos": ignore_eos, "calibration": calibration, "kv_cache": kv_cache}
        settings |= {"cache_policy": policy, "weights_bytes": weights_bytes}
        _print_json(prompt, continuation, view, settings)
        view.print_table()
    else:
        try:
            _print_text(prompt, continuation, view, stream)
        except KeyboardInterrupt:
            _print_figures(continuation, view, context_length, weights_bytes)
            raise
        _print_figures(continuation, view, context_length, weights_bytes)
    if session is not None and save_state is not None:
        note_replaced(save_state)
        session.save(save_state)
        note(f"stream: {save_state}")


def _check_state_files(
    save_state: Path | None, load_state: Path | None, kv_cache: bool, cache_policy: str | None
) -> None:
    """Raise `UserError` if a stream cannot be saved or continued as it is asked to be."""
    check_out_file(save_state, "--save-state")
    for name, path in (("--save-state", save_state), ("--load-state", load_state)):
        if path is not None and not kv_cache:
            raise UserError(f"{name} {path}: a stream is its KV-cache; leave out --no-kv-cache")
    if load_state is not None and cache_policy is not None:
        problem = f"--load-state {load_state} has the policy that it began with; leave it out"
        raise UserError(f"--cache-policy {cache_policy}: {problem}")


def _read_prompt(prompt: str) -> str:
    """Return the prompt, which is the standard input for `-`."""
    if prompt != "-":
        return prompt
    try:
        return read_whole(standard_input(), "--prompt -").decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"--prompt -: the standard input is not UTF-8 text (byte {error.start})") from None


def _print_text(prompt: str, continuation: "Continuation", view: ContextView, stream: bool) -> None:
    """Print the prompt, the continuation and a newline; also the part that exists when generation is interrupted."""
    streams = stream and not view.has_text
    pieces = [] if streams else [prompt]
    if streams:
        write(prompt)
    try:
        with closing(view):
            for piece in view.follow(continuation):
                if streams:
                    write(piece)
                else:
                    pieces.append(piece)
    finally:
        write("".join([*pieces, "\n"]))


def _print_json(prompt: str, continuation: "Continuation", view: ContextView, settings: dict[str, Any]) -> None:
    with closing(view):
        text = "".join(view.follow(continuation))
    figures = continuation.figures
    report = {
        "prompt": prompt,
        "text": text,
        "prompt_tokens": figures.prompt_tokens,
        "tokens": figures.tokens,
        "tokens_per_second": figures.tokens_per_second,
        "seconds_prompt": figures.seconds_prompt,
        "seconds_decode": figures.seconds_decode,
        "state_bytes": figures.state_bytes,
        "context": [] if continuation.state is None else context_figures(continuation.state),
        **settings,
    }
    write_json(report)


def _print_figures(continuation: "Continuation", view: ContextView, context_length: int, weights_bytes: int) -> None:
    """Print to the standard error: the table of the layers if it is wanted, one line of figures, a note on length."""
    figures = continuation.figures
    view.print_table()
    rate = figures.tokens_per_second
    speed = f", {rate:.1f} tokens/s" if rate else ""
    note(
        f"{figures.tokens} tokens{speed}; prompt of {figures.prompt_tokens} tokens in {figures.seconds_prompt:.2f} s; "
        f"weights of {weights_bytes:,} bytes, state of {figures.state_bytes:,} bytes"
    )
    used = figures.prompt_tokens + figures.tokens
    if used > context_length:
        note(f"note: {used} tokens are more than the model's context length of {context_length} (context_length)")
