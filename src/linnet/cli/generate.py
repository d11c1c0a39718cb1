"""`linnet generate`: a model continues a prompt."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from linnet.cli.console import note, note_replaced
from linnet.cli.context_view import ContextView
from linnet.cli.layer_options import GenerateCommand, StateOptions
from linnet.cli.options import MachineOptions, with_option_groups
from linnet.cli.print_text import (
    print_beams,
    print_best,
    print_conversation,
    print_figures,
    print_json,
    print_several,
    print_text,
)
from linnet.cli.text_options import ContinuationOptions, PromptOptions, SamplingOptions, TextAsJson, ToolOptions
from linnet.core.errors import UserError

if TYPE_CHECKING:
    from linnet.inference.continuation import Continuation
    from linnet.inference.language_model import LanguageModel
    from linnet.inference.sampling import Sampling
    from linnet.inference.session import Session

USUAL = (
    "--prompt", "--max-tokens", "--temperature", "--top-p", "--seed", "--stream",
    "--device", "--precision", "--save-state", "--json",
)  # fmt: skip
"""The options that the short help shows."""

COMMAND = GenerateCommand


@dataclass(frozen=True)
class _Generation:
    """A text that is about to be written: its tokens as they come, and what is printed of the model.

    session: the stream that it belongs to, if that is saved or was loaded.
    """

    continuation: "Continuation"
    context_length: int
    weights_bytes: int
    session: "Session | None" = None


@with_option_groups
def generate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or the folder of a training run.")],
    *,
    given: PromptOptions,
    next_token: SamplingOptions,
    text: ContinuationOptions,
    calling: ToolOptions,
    stream: Annotated[bool, typer.Option(help="Print the text while it is generated, or all at the end.")] = True,
    machine: MachineOptions,
    state: StateOptions,
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
    from linnet.inference.language_model import load

    tools, rounds = calling.load()
    if tools is not None:
        _refuse_beside_tools(given, text, state, engine)
        machine.set_up()
        language_model, sampling = load(model, machine.device, machine.precision), next_token.sampling()
        messages = [{"role": "user", "content": given.read().prompt}]
        print_conversation(language_model, messages, tools, rounds, given.max_tokens, sampling, stream, as_json)
        return
    text.check(as_json, {"--engine onnx": engine == "onnx", **state.of_one_text})
    ending = text.ending()
    state.check(has_input=given.input_text is not None)
    sampling = next_token.sampling(draws_seed=state.load_state is None)
    machine.set_up()
    given = given.read()
    if engine == "onnx":
        generation = _start_with_graphs(model, given, machine, state, sampling, ending)
    else:
        language_model = _prepared(load(model, machine.device), given, machine, state, sampling)
        if text.beams is not None or text.best_of is not None or text.n > 1:
            _print_whole_texts(language_model, given, next_token, text, machine, state, sampling, ending, as_json)
            return
        generation = _start(language_model, given, text, machine, state, sampling, ending)
    _print(generation, given, state, text.logprobs is not None, sampling, stream, as_json)
    if generation.session is not None and state.save_state is not None:
        note_replaced(state.save_state)
        generation.session.save(state.save_state)
        note(f"stream: {state.save_state}")


def _refuse_beside_tools(given: PromptOptions, text: ContinuationOptions, state: StateOptions, engine: str) -> None:
    """Raise `UserError` for an option that a conversation does not have."""
    typed = {"--engine onnx": engine == "onnx", "--input": given.input_text is not None, **state.of_one_text}
    typed |= {"--ignore-eos": given.ignore_eos, "--cache-policy": state.cache_policy is not None}
    typed |= {"--calibration": state.calibration is not None, **text.asked()}
    for name in (name for name, is_typed in typed.items() if is_typed):
        raise UserError("--tools: a conversation has no such option; leave one of them out", field=name)


def _start_with_graphs(
    model: str,
    given: PromptOptions,
    machine: MachineOptions,
    state: StateOptions,
    sampling: "Sampling",
    ending: dict[str, Any],
) -> _Generation:
    """A text that exported graphs write; `UserError` for options that they do not have."""
    torch_options = {
        "--input": given.input_text is not None,
        "--device": machine.device != "auto",
        "--precision": machine.precision is not None,
        "--calibration": state.calibration is not None,
        f"--cache-policy {state.cache_policy}": state.cache_policy is not None,
        **state.of_one_text,
    }
    for name, is_typed in torch_options.items():
        if is_typed:
            raise UserError(f"{name}: --engine onnx runs graphs as they were exported; leave it out")
    from linnet.interop.onnx.engine import OnnxLanguageModel

    graphs = OnnxLanguageModel(model, machine.threads)
    if given.parse_special:
        graphs.tokenizer = graphs.tokenizer.parsing_special()
    continuation = graphs.stream(given.prompt, given.max_tokens, sampling, given.ignore_eos, **ending)
    weights_bytes = sum(path.stat().st_size for path in Path(model).glob("model.onnx*"))
    return _Generation(continuation, graphs.graphs.description.model.context_length, weights_bytes)


def _prepared(
    model: "LanguageModel", given: PromptOptions, machine: MachineOptions, state: StateOptions, sampling: "Sampling"
) -> "LanguageModel":
    """A model as the options want it: its tokenizer, its calibration, its precision."""
    from linnet.inference.weights_gain import convert_and_report

    if given.parse_special:
        model = model.parsing_special()
    state.check_layers(model)
    if state.calibration is not None:
        model = model.with_calibration(state.calibration, sampling.seed)
    if machine.precision is not None:
        convert_and_report(model.decoder, machine.precision)
    return model


def _print_whole_texts(
    model: "LanguageModel",
    given: PromptOptions,
    next_token: SamplingOptions,
    text: ContinuationOptions,
    machine: MachineOptions,
    state: StateOptions,
    sampling: "Sampling",
    ending: dict[str, Any],
    as_json: bool,
) -> None:
    """Search for the best text, or draw several, and print what was found."""
    how: dict[str, Any] = {"cache_policy": state.policy, "ignore_eos": given.ignore_eos}
    if text.beams is not None:
        settings = _beam_settings(text, next_token, sampling) | text.search() | {"input": given.input_text} | how
        print_beams(given.prompt, model.beam_search(given.prompt, given.max_tokens, text.beams, **settings), as_json)
        return
    how |= {"inputs": None if given.input_text is None else [given.input_text], **ending}
    if text.best_of is None:
        completions = model.completions([given.prompt], given.max_tokens, sampling, copies=text.n, **how)
        print_several(given.prompt, completions, sampling.seed, text.logprobs, as_json)
        return
    judge = _judge(text, given, machine.device)
    how["logprobs"] = text.logprobs or 0
    completions = model.completions([given.prompt], given.max_tokens, sampling, copies=text.best_of, **how)
    print_best(given.prompt, completions, judge, sampling.seed, text.logprobs, as_json)


def _start(
    model: "LanguageModel",
    given: PromptOptions,
    text: ContinuationOptions,
    machine: MachineOptions,
    state: StateOptions,
    sampling: "Sampling",
    ending: dict[str, Any],
) -> _Generation:
    """A text of its own, or one more part of a stream that is saved or was loaded."""
    from linnet.inference.language_model import load
    from linnet.inference.readers import Caches
    from linnet.inference.session import Session
    from linnet.inference.weights import weights_nbytes

    if text.draft is not None:
        draft = load(text.draft, machine.device)
        ending["draft"] = draft.parsing_special() if given.parse_special else draft
    ending["prompt_lookup"] = text.prompt_lookup
    context_length, weights_bytes = model.spec.context_length, weights_nbytes(model.decoder)
    if state.save_state is None and state.load_state is None:
        how: dict[str, Any] = {"cache_policy": state.policy, "ignore_eos": given.ignore_eos, "input": given.input_text}
        caches = Caches(state.kv_cache)
        continuation = model.stream(given.prompt, given.max_tokens, sampling, caches=caches, **how, **ending)
        return _Generation(continuation, context_length, weights_bytes)
    if state.load_state is None:
        session = Session(model, state.policy, given.input_text)
    else:
        session = Session.load(model, state.load_state)
    session.feed(given.prompt)
    continuation = session.stream(given.max_tokens, sampling, given.ignore_eos, **ending)
    return _Generation(continuation, context_length, weights_bytes, session)


def _print(
    generation: _Generation,
    given: PromptOptions,
    state: StateOptions,
    logprobs: bool,
    sampling: "Sampling",
    stream: bool,
    as_json: bool,
) -> None:
    """Print the text and its figures, or both as JSON; the figures also of a text that is interrupted."""
    continuation = generation.continuation
    view = ContextView(continuation.state if state.show_context else None, given.prompt, stream and not as_json)
    if as_json:
        settings: dict[str, Any] = {"seed": sampling.seed if generation.session is None else generation.session.seed}
        settings |= {"ignore_eos": given.ignore_eos, "calibration": state.calibration, "kv_cache": state.kv_cache}
        settings |= {"cache_policy": state.policy, "weights_bytes": generation.weights_bytes}
        print_json(given.prompt, continuation, view, settings, logprobs)
        view.print_table()
        return
    try:
        print_text(given.prompt, continuation, view, stream)
    except KeyboardInterrupt:
        print_figures(continuation, view, generation.context_length, generation.weights_bytes)
        raise
    print_figures(continuation, view, generation.context_length, generation.weights_bytes)


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


def _judge(text: ContinuationOptions, given: PromptOptions, device: str) -> "LanguageModel | None":
    """The reward model of --best-of, None without one; `UserError` for a model that is none."""
    from linnet.inference.language_model import load

    if text.reward is None:
        return None
    if given.input_text is not None:
        raise UserError("reads texts without an input; leave out --input", field="reward", value=text.reward)
    judge = load(text.reward, device)
    judge.values([""])  # refused before anything is generated
    return judge.parsing_special() if given.parse_special else judge
