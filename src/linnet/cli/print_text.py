"""What `linnet generate` prints: a text as it grows, several texts, a conversation, and the figures of each."""

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from linnet.cli.console import note, notes_after_text
from linnet.cli.context_view import ContextView, context_figures
from linnet.cli.text_options import logprobs_report
from linnet.core.files import json_safe
from linnet.present import numbers
from linnet.present.show import write, write_json

if TYPE_CHECKING:
    from linnet.data.tools import Tools
    from linnet.inference.beams import ScoredText
    from linnet.inference.continuation import Completion, Continuation
    from linnet.inference.language_model import LanguageModel
    from linnet.inference.sampling import Sampling
    from linnet.inference.text_events import TextEvent


@notes_after_text()
def print_conversation(
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


def print_beams(prompt: str, found: "list[ScoredText]", as_json: bool) -> None:
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


@notes_after_text()
def print_text(prompt: str, continuation: "Continuation", view: ContextView, stream: bool) -> None:
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


def print_several(
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
    from linnet.inference.sampling import following_seed

    texts: list[dict[str, Any]] = []
    for number, completion in enumerate(completions):
        report: dict[str, Any] = {"text": completion.text, "seed": following_seed(seed, number)}
        report |= {"finish_reason": completion.finish_reason, "tokens": len(completion.events)}
        texts.append(report | ({} if logprobs is None else {"logprobs": logprobs_report(completion.events)}))
    return texts


def print_best(
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


def print_json(
    prompt: str, continuation: "Continuation", view: ContextView, settings: dict[str, Any], logprobs: bool
) -> None:
    """Print one text with its figures as JSON. settings: what it was written with."""
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


def print_figures(continuation: "Continuation", view: ContextView, context_length: int, weights_bytes: int) -> None:
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
