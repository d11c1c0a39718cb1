"""`linnet generate`: a model continues a prompt."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperOption

from linnet.cli.console import note, note_replaced, notes_after_text
from linnet.cli.context_view import ContextView, context_figures
from linnet.cli.options import Precision, Threads, option, set_threads, with_option_groups
from linnet.cli.text_options import ContinuationOptions, ToolOptions, logprobs_report
from linnet.core.errors import UserError
from linnet.core.files import json_safe, read_whole, standard_input
from linnet.present import numbers
from linnet.present.show import write, write_json

if TYPE_CHECKING:
    from linnet.data.tools import Tools
    from linnet.inference.beams import ScoredText
    from linnet.inference.continuation import Completion, Continuation
    from linnet.inference.language_model import LanguageModel
    from linnet.inference.sampling import Sampling
    from linnet.inference.text_events import TextEvent
    from linnet.model.decoder import Decoder

USUAL = (
    "--prompt", "--max-tokens", "--temperature", "--top-p", "--seed", "--stream",
    "--device", "--precision", "--save-state", "--json",
)  # fmt: skip
"""The options that the short help shows."""

Prompt = typer.Option(help="The text to continue; - reads it from the standard input, without one final newline.")
MaxTokens = Annotated[int, typer.Option(help="Stop after this many tokens if the text has not ended.")]
TextAsJson = Annotated[bool, typer.Option("--json", help="Print text and figures as JSON, all at the end.")]


@dataclass(frozen=True)
class SamplingOptions:
    """The choice of the next token; the fields are those of `inference.sampling.Sampling`, applied in its order."""

    temperature: Annotated[float, typer.Option(help="Divides the logits; 0 takes the likeliest token.")] = 0.8
    top_k: Annotated[int, typer.Option(help="Choose among the k likeliest tokens; 0 for all.")] = 0
    top_p: Annotated[
        float, typer.Option(help="Choose among the fewest tokens that together have this probability; 1 for all.")
    ] = 1.0
    min_p: Annotated[
        float, typer.Option(help="Choose among tokens with this share of the likeliest one's probability; 0 for all.")
    ] = 0.0
    typical_p: Annotated[
        float,
        typer.Option(help="Choose among tokens of typical information that together have this probability; 1 for all."),
    ] = 1.0
    repetition_penalty: Annotated[
        float, typer.Option(help="Divides positive logits of tokens in the prompt or the text; 1 has no effect.")
    ] = 1.0
    frequency_penalty: Annotated[
        float, typer.Option(help="Subtracted from a token's logit for each time that it was generated.")
    ] = 0.0
    presence_penalty: Annotated[
        float, typer.Option(help="Subtracted from the logit of each token that was generated before.")
    ] = 0.0
    logit_bias: Annotated[
        list[str] | None, option("TOKEN=BIAS", "Added to the logit of a token id, such as 13=-2.5 (repeatable).")
    ] = None
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text. Default: a random one.")] = None

    def sampling(self, draws_seed: bool = True) -> "Sampling":
        """Return the settings, with a random seed unless one was typed; `UserError` for an invalid value."""
        from linnet.inference.sampling import Sampling, fresh_seed

        biases: dict[int, float] = {}
        for typed in self.logit_bias or ():
            token, _, bias = typed.partition("=")
            try:
                biases[int(token)] = float(bias)
            except ValueError:
                accepted = "TOKEN=BIAS, a token id and a number"
                raise UserError(field="logit_bias", value=typed, accepted=accepted) from None
        seed = fresh_seed() if self.seed is None and draws_seed else self.seed
        return Sampling(**vars(self) | {"logit_bias": biases, "seed": seed})


def layer_options(decoder: "Decoder") -> dict[str, str]:
    """Return the options that the layers of a model bring, with the help text of each.

    They follow from what the layers declare: calibration on a text, and cache policies beside the full cache.
    """
    from linnet.inference.cache_policy import chooses
    from linnet.layers.cache_policy import FullCache

    options: dict[str, str] = {}
    if any(block.mixer.calibration != "none" for block in decoder.spec.blocks):
        options["--calibration"] = (
            "Replace the model's own calibration, from a file or by name; a random one follows the seed. Without this "
            "option the layers calibrate on the whole prompt in one pass, unless the model has a stored calibration, "
            "and keep the result for the whole continuation."
        )
    declared = {policy for mixer in decoder.mixers for policy in mixer.cache_policies}
    policies = sorted(declared - {FullCache}, key=lambda policy: policy.name)
    if policies:
        meanings: list[str] = []
        for policy in policies:
            meaning, *_ = (policy.__doc__ or "").splitlines()
            meanings.append(f"{policy.name}{f' or {policy.example}' if policy.example else ''}: {meaning}")
        options["--cache-policy"] = (
            f"What the layers keep of the text. full: Keep every token. {' '.join(meanings)} Fields are written as "
            "NAME:FIELD=NUMBER,...; policies with slashes between them are one for each layer that has a choice."
        )
    if any(map(chooses, decoder.mixers)):
        options["--show-context"] = (
            "Show what each layer with a choice of policies holds: live on a terminal, and once more at the end."
        )
    return options


class GenerateCommand(TyperCommand):
    """The command; its help lists the options of a model's layers if the model is named."""

    usual: list[str]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not set(args).isdisjoint(ctx.help_option_names):
            typed, _, _ = self.make_parser(ctx).parse_args(args=list(args))
            model = typed.get("model") if typed.get("engine") != "onnx" else None
            self.epilog = "Layers may bring further options: linnet generate MODEL --help"
            if isinstance(model, str):
                self._show_layer_options(model)
        return super().parse_args(ctx, args)

    def _show_layer_options(self, model: str) -> None:
        from linnet.model.decoder import meta_decoder
        from linnet.model.folder import model_folder
        from linnet.model.spec import ModelSpec

        decoder = meta_decoder(ModelSpec.load(model_folder(model)))
        options = layer_options(decoder)
        for parameter in self.params:
            if isinstance(parameter, TyperOption) and parameter.opts[0] in options:
                parameter.hidden, parameter.help = False, options[parameter.opts[0]]
        self.usual = [*self.usual, *options]
        kinds = ", ".join(dict.fromkeys(decoder.spec.layer_kinds))
        # The backspace character keeps the line as it is: names of options are not broken.
        self.epilog = f"\b\nOptions of the layers of {model} ({kinds}): {', '.join(options) or 'none'}"


COMMAND = GenerateCommand


@with_option_groups
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
    parse_special: Annotated[
        bool,
        typer.Option("--parse-special", help="Names of control tokens, such as <|im_start|>, become these tokens."),
    ] = False,
    max_tokens: MaxTokens = 200,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Continue after the end of a text with the next one.")
    ] = False,
    *,
    next_token: SamplingOptions,
    text: ContinuationOptions,
    calling: ToolOptions,
    stream: Annotated[bool, typer.Option(help="Print the text while it is generated, or all at the end.")] = True,
    device: Annotated[str, typer.Option(help="auto (cuda if there is one), cpu, cuda, cuda:1.")] = "auto",
    precision: Precision = None,
    threads: Threads = None,
    compiles: Annotated[
        bool,
        typer.Option(
            "--compile/--no-compile",
            help="Use a compiled decoding step; where a text takes seconds, compile it in the background.",
        ),
    ] = True,
    calibration: Annotated[str | None, option("FILE|identity|random", "", hidden=True)] = None,
    kv_cache: Annotated[
        bool,
        typer.Option("--kv-cache/--no-kv-cache", help="Keep a cache of the text, or read all of it for each token."),
    ] = True,
    cache_policy: Annotated[str | None, option("POLICY", "", hidden=True)] = None,
    show_context: Annotated[bool, typer.Option("--show-context", hidden=True)] = False,
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
    first token and the time of the prompt. The next token is chosen in this order: logit bias, repetition, frequency
    and presence penalties, temperature, top-k, top-p, min-p, typical, grammar. They mean what they mean in
    Transformers, and the frequency and presence penalties what they mean in OpenAI's interface.

    --json-schema, --regex, --choice and --grammar permit only tokens with which the text can still become what they
    describe, and the end only where it is complete (pip install 'linnet[constrained]'). A text that --max-tokens ends
    may be incomplete: --json says so as finish_reason, length instead of stop.

    Some layers bring options of their own, such as what they keep of the text: with a model before it, --help shows
    those of its layers.

    An encoder-decoder reads --input with its encoder, once; a model with prefix: true reads it as a prefix without a
    causal mask; any other model reads it before the prompt, as in training on pairs.

    --parse-special addresses a chat model in the form of its template. A prompt that begins with a control token is
    read as it is; every other begins with the end token.

    Example: linnet generate runs/pairs --input "three two one" --temperature 0

    Example: linnet generate runs/ted --help

    Example: linnet generate runs/stories --prompt "Once upon a time" --precision int8

    Example: linnet generate runs/stories --prompt "Once upon a time" --max-tokens 50 --save-state story.safetensors

    Example: linnet generate runs/stories --load-state story.safetensors --max-tokens 50

    Example: linnet generate runs/stories --prompt "Ana is" --choice " happy" --choice " sad" --n 3 --json --logprobs 2

    Example: linnet generate runs/stories --prompt "Once upon a time" --stop "." --stop "!"

    Example: linnet generate runs/stories --prompt "Once upon a time" --best-of 8

    --tools makes --prompt a message of the user in the model's chat template, runs the calls in the answer, and lets
    the model go on with their results (docs/conversations.md).

    Example: linnet generate runs/chat --prompt "12 boxes of 31 pens: how many?" --tools calculator

    --draft and --prompt-lookup change no text, and pause where they lose time; --beams ends at --max-tokens or the end.

    Example: linnet generate runs/stories --prompt "Once upon a time" --prompt-lookup 8

    Example: linnet generate runs/stories --prompt "Once upon a time" --beams 4 --length-penalty 2

    Example: linnet generate onnx/stories --engine onnx --prompt "Once upon a time"
    """
    from linnet.inference.compiled_step import BUILDS
    from linnet.inference.language_model import load
    from linnet.inference.readers import Caches
    from linnet.inference.session import Session
    from linnet.inference.weights import weights_nbytes
    from linnet.inference.weights_gain import convert_and_report
    from linnet.layers.cache_policy import FULL

    tools, rounds = calling.load()
    if tools is not None:
        typed = {"--show-context": show_context, "--engine onnx": engine == "onnx", "--input": input_text is not None}
        typed |= {"--save-state": save_state is not None, "--load-state": load_state is not None}
        typed |= {"--no-kv-cache": not kv_cache, "--ignore-eos": ignore_eos, "--cache-policy": cache_policy is not None}
        typed |= {"--calibration": calibration is not None, **_asked_of_a_text(text)}
        for name in (name for name, is_typed in typed.items() if is_typed):
            raise UserError("--tools: a conversation has no such option; leave one of them out", field=name)
        set_threads(threads)
        BUILDS.enabled = BUILDS.enabled and compiles
        language_model, sampling = load(model, device, precision), next_token.sampling()
        messages = [{"role": "user", "content": _read_prompt(prompt)}]
        _print_conversation(language_model, messages, tools, rounds, max_tokens, sampling, stream, as_json)
        return
    single = {"--show-context": show_context, "--engine onnx": engine == "onnx"}
    single |= {"--save-state": save_state is not None, "--load-state": load_state is not None}
    text.check(as_json, single | {"--no-kv-cache": not kv_cache})
    ending: dict[str, Any] = {"stop": tuple(text.stop or ())}
    ending |= {"constraint": text.constraint(), "logprobs": text.logprobs}
    if show_context and not kv_cache:
        raise UserError("--no-kv-cache: nothing is kept of the text; expected no --show-context")
    if load_state is not None and input_text is not None:
        raise UserError(f"--input: --load-state {load_state} has the input that it began with; leave it out")
    _check_state_files(save_state, load_state, kv_cache, cache_policy)
    policy = cache_policy or FULL.label
    BUILDS.enabled = BUILDS.enabled and compiles
    sampling = next_token.sampling(draws_seed=load_state is None)
    set_threads(threads)
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
        if parse_special:
            graphs.tokenizer = graphs.tokenizer.parsing_special()
        continuation = graphs.stream(prompt, max_tokens, sampling, ignore_eos, **ending)
        context_length = graphs.graphs.description.model.context_length
        weights_bytes = sum(path.stat().st_size for path in Path(model).glob("model.onnx*"))
    else:
        language_model = load(model, device)
        if parse_special:
            language_model = language_model.parsing_special()
        context_length = language_model.spec.context_length
        typed = {
            "--calibration": calibration is not None,
            "--cache-policy": policy != FULL.label,
            "--show-context": show_context,
        }
        options = layer_options(language_model.decoder)
        for name, is_typed in typed.items():
            if is_typed and name not in options:
                kinds = ", ".join(dict.fromkeys(language_model.spec.layer_kinds))
                problem = f"no layer of the model ({kinds}) has this option"
                raise UserError(f"{name}: {problem}; options of its layers: {', '.join(options) or 'none'}")
        if calibration is not None:
            language_model = language_model.with_calibration(calibration, sampling.seed)
        if precision is not None:
            convert_and_report(language_model.decoder, precision)
        if text.beams is not None:
            settings = _beam_settings(text, next_token, sampling) | text.search()
            own: dict[str, Any] = {"cache_policy": policy, "ignore_eos": ignore_eos, "input": input_text}
            _print_beams(prompt, language_model.beam_search(prompt, max_tokens, text.beams, **own, **settings), as_json)
            return
        if text.best_of is not None:
            judge = _judge(text, input_text, device, parse_special)
            own = {"cache_policy": policy, "ignore_eos": ignore_eos, "copies": text.best_of}
            own |= {"inputs": None if input_text is None else [input_text], **ending, "logprobs": text.logprobs or 0}
            completions = language_model.completions([prompt], max_tokens, sampling, **own)
            _print_best(prompt, completions, judge, sampling.seed, text.logprobs, as_json)
            return
        if text.n > 1:
            inputs = None if input_text is None else [input_text]
            own = {"cache_policy": policy, "ignore_eos": ignore_eos, "inputs": inputs}
            completions = language_model.completions([prompt], max_tokens, sampling, copies=text.n, **own, **ending)
            _print_several(prompt, completions, sampling.seed, text.logprobs, as_json)
            return
        if text.draft is not None:
            draft = load(text.draft, device)
            ending["draft"] = draft.parsing_special() if parse_special else draft
        ending["prompt_lookup"] = text.prompt_lookup
        if save_state is None and load_state is None:
            own = {"cache_policy": policy, "ignore_eos": ignore_eos, "input": input_text}
            continuation = language_model.stream(prompt, max_tokens, sampling, Caches(kv_cache), **own, **ending)
        else:
            session = (
                Session(language_model, policy, input_text)
                if load_state is None
                else Session.load(language_model, load_state)
            )
            session.feed(prompt)
            continuation = session.stream(max_tokens, sampling, ignore_eos, **ending)
        weights_bytes = weights_nbytes(language_model.decoder)
    view = ContextView(continuation.state if show_context else None, prompt, stream and not as_json)
    if as_json:
        settings = {"seed": sampling.seed if session is None else session.seed}
        settings |= {"ignore_eos": ignore_eos, "calibration": calibration, "kv_cache": kv_cache}
        settings |= {"cache_policy": policy, "weights_bytes": weights_bytes}
        _print_json(prompt, continuation, view, settings, text.logprobs is not None)
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


def _asked_of_a_text(text: ContinuationOptions) -> dict[str, bool]:
    """Which options of one text differ from their defaults, by name."""
    usual = vars(ContinuationOptions())
    return {f"--{field.replace('_', '-')}": value != usual[field] for field, value in vars(text).items()}


@notes_after_text()
def _print_conversation(
    model: "LanguageModel",
    messages: list[dict[str, Any]],
    tools: "Tools",
    rounds: int,
    max_tokens: int,
    sampling: "Sampling",
    stream: bool,
    as_json: bool,
) -> None:
    """Print what a model answers to messages, with the calls of tools and their results; or all messages as JSON."""
    from linnet.inference.tool_loop import announced, converse

    pieces = list[str]()
    show = write if stream and not as_json else pieces.append
    found = converse(model, messages, tools, max_tokens, sampling, rounds, show)
    if as_json:
        write_json({"messages": [*announced(messages, tools), *found], "seed": sampling.seed})
    else:
        write("".join(pieces))


def _beam_settings(text: ContinuationOptions, next_token: SamplingOptions, sampling: "Sampling") -> dict[str, Any]:
    """The penalties and the bias of a search; `UserError` for options that it does not have."""
    from linnet.inference.sampling import GREEDY_SETTINGS

    asked = {f"--{field.replace('_', '-')}": value for field, value in vars(next_token).items()}
    drawn = ("--temperature", "--top-k", "--top-p", "--min-p", "--typical-p", "--seed")
    usual = {f"--{field.replace('_', '-')}": value for field, value in vars(SamplingOptions()).items()}
    used = [name for name in drawn if asked[name] != usual[name] and (name, asked[name]) != ("--temperature", 0)]
    used += ["--stop"] if text.stop else []
    used += ["a constraint"] if text.constraint() is not None else []
    used += ["--logprobs"] if text.logprobs is not None else []
    used += ["--n"] if text.n > 1 else []
    used += ["--best-of"] if text.best_of is not None else []
    used += [name for name in ("--draft", "--prompt-lookup") if text.alone[name]]
    if used:
        raise UserError(f"--beams {text.beams}: a search for the best text has no {used[0]}; leave one of them out")
    return {name: getattr(sampling, name) for name in GREEDY_SETTINGS}


def _print_beams(prompt: str, found: "list[ScoredText]", as_json: bool) -> None:
    """Print the best text, or all with their scores as JSON."""
    if not as_json:
        write(f"{prompt}{found[0].text}\n")
        note(f"{len(found[0].tokens)} tokens; the best of {len(found)} texts, score {found[0].score:.3f}")
        return
    texts = [
        {"text": one.text, "score": one.score, "finish_reason": one.finish_reason, "tokens": len(one.tokens)}
        for one in found
    ]
    write_json({"prompt": prompt, "texts": texts})


def _check_state_files(
    save_state: Path | None, load_state: Path | None, kv_cache: bool, cache_policy: str | None
) -> None:
    """Raise `UserError` if a stream cannot be saved or continued as it is asked to be."""
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


@notes_after_text()
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


def _print_several(
    prompt: str, completions: "list[Completion]", seed: int | None, logprobs: int | None, as_json: bool
) -> None:
    """Print several texts: each with its prompt, parted by empty lines, or all as JSON."""
    assert seed is not None
    if not as_json:
        write("\n".join(f"{prompt}{completion.text}\n" for completion in completions))
        note(f"{len(completions)} texts, {sum(len(completion.events) for completion in completions)} tokens")
        return
    write_json({"prompt": prompt, "texts": _text_reports(completions, seed, logprobs)})


def _text_reports(completions: "list[Completion]", seed: int, logprobs: int | None) -> list[dict[str, Any]]:
    """Several texts for JSON, each with its seed."""
    texts: list[dict[str, Any]] = []
    for number, completion in enumerate(completions):
        report: dict[str, Any] = {"text": completion.text, "seed": (seed + number) % 2**63}
        report |= {"finish_reason": completion.finish_reason, "tokens": len(completion.events)}
        texts.append(report | ({} if logprobs is None else {"logprobs": logprobs_report(completion.events)}))
    return texts


def _judge(
    text: ContinuationOptions, input_text: str | None, device: str, parse_special: bool
) -> "LanguageModel | None":
    """The reward model of --best-of, None without one; `UserError` for a model that is none."""
    from linnet.inference.language_model import load

    if text.reward is None:
        return None
    if input_text is not None:
        raise UserError("reads texts without an input; leave out --input", field="reward", value=text.reward)
    judge = load(text.reward, device)
    judge.values([""])  # refused before anything is generated
    return judge.parsing_special() if parse_special else judge


def _print_best(
    prompt: str,
    completions: "list[Completion]",
    judge: "LanguageModel | None",
    seed: int | None,
    logprobs: int | None,
    as_json: bool,
) -> None:
    """Print the text with the highest score, or all as JSON, the best first."""
    assert seed is not None
    if judge is None:
        name, scores = "mean log-probability", [completion.mean_logprob for completion in completions]
    else:
        name, scores = "value", judge.values([prompt + completion.text for completion in completions])
    reports = _text_reports(completions, seed, logprobs)
    ranked = sorted(range(len(scores)), key=lambda number: -scores[number])
    if as_json:
        texts = [reports[number] | {"score": json_safe(scores[number])} for number in ranked]
        write_json({"prompt": prompt, "score": name, "texts": texts})
        return
    best = ranked[0]
    write(f"{prompt}{completions[best].text}\n")
    note(f"the best of {len(scores)} texts, that of seed {reports[best]['seed']}: {name} {scores[best]:.3f}")


def _print_json(
    prompt: str, continuation: "Continuation", view: ContextView, settings: dict[str, Any], logprobs: bool
) -> None:
    events: list[TextEvent] = []

    def pieces() -> Iterator[str]:
        for event in continuation.events():
            events.append(event)
            if event.text:
                yield event.text

    with closing(view):
        text = "".join(view.follow(pieces()))
    figures = continuation.figures
    report = {
        "prompt": prompt,
        "text": text,
        "finish_reason": continuation.finish_reason,
        "prompt_tokens": figures.prompt_tokens,
        "tokens": figures.tokens,
        "tokens_per_second": figures.tokens_per_second,
        "seconds_prompt": figures.seconds_prompt,
        "seconds_decode": figures.seconds_decode,
        "state_bytes": figures.state_bytes,
        "speculation": None if figures.speculation is None else figures.speculation.to_dict(),
        "context": [] if continuation.state is None else context_figures(continuation.state),
        **settings,
    }
    write_json(report | ({"logprobs": logprobs_report(events)} if logprobs else {}))


def _print_figures(continuation: "Continuation", view: ContextView, context_length: int, weights_bytes: int) -> None:
    """Print to the standard error: the table of the layers if it is wanted, one line of figures, a note on length."""
    figures = continuation.figures
    view.print_table()
    rate = figures.tokens_per_second
    speed = f", {rate:.1f} tokens/s" if rate else ""
    made, read = (numbers.counted(count, "token") for count in (figures.tokens, figures.prompt_tokens))
    note(
        f"{made}{speed}; prompt of {read} in {figures.seconds_prompt:.2f} s; "
        f"weights of {weights_bytes:,} bytes, state of {figures.state_bytes:,} bytes"
    )
    if figures.speculation is not None:
        note(figures.speculation.label)
    used = figures.prompt_tokens + figures.tokens
    if used > context_length:
        note(f"note: {used} tokens are more than the model's context length of {context_length} (context_length)")
