"""What is compared, in which words: the rows of the page's table, the columns of the terminal's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from linnet.experiments.demo.figures import LONG_TOKENS, SHORT_TOKENS, DemoFigures, ModelFigures
from linnet.present import numbers
from linnet.present.page import printable

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Measure:
    """One thing that is measured of every model.

    heading: for a narrow column. compared: the quantity of which the page gives the ratio to the first model's.
    """

    name: str
    heading: str
    text: Callable[[ModelFigures], str]
    meaning: Callable[[DemoFigures], str]
    compared: Callable[[ModelFigures], float] | None = None


def _leak(model: ModelFigures) -> str:
    return "none" if model.leak is None else numbers.signed_bits(model.leak)


def _bits_meaning(figures: DemoFigures) -> str:
    corpus = figures.corpus
    return (
        "How many bits the model needs for a byte of text that it was not trained on; fewer is better. Plain text takes"
        f" 8; xz -9, a compressor that has seen no other story, needs {numbers.bits(corpus.xz_bits_per_byte)} here."
        f" Measured on all {numbers.grouped(corpus.validation_stories)} held-out stories; no guess depends on the text"
        " after it. PLDR-LLM is therefore read with a frozen operator, deduced from the start of the training text: its"
        " own pass over a whole text lets every guess see a little of what follows."
    )


def _leak_meaning(figures: DemoFigures) -> str:
    return (
        "By how many bits per byte a model looks better when its pass sees the whole text at once: what seeing the"
        " future gains. None for a model whose pass never does."
    )


def _training_meaning(figures: DemoFigures) -> str:
    return "Tokens that the model learns from in a second: the mean over all steps, without evaluation and saving."


def _decode_meaning(figures: DemoFigures) -> str:
    return (
        f"Tokens that the model writes in a second, one text at a time: the median of {figures.decode_runs} runs of"
        f" {figures.decode_tokens} sampled tokens after a warm-up, the models taking turns; the prompt apart."
    )


def _state_meaning(figures: DemoFigures) -> str:
    return "What the model keeps of a text of this length so as to write the next token; exact, in float32."


MEASURES = (
    Measure(
        "parameters",
        "param-\neters",
        lambda model: numbers.metric(model.parameters),
        lambda figures: "Numbers that training sets; about as many in each, so that the rest can be compared.",
    ),
    Measure("bits per byte", "bits per\nbyte", lambda model: numbers.bits(model.bits_per_byte), _bits_meaning),
    Measure("leak", "leak", _leak, _leak_meaning),
    Measure(
        "training, tokens/s",
        "training\ntokens/s",
        lambda model: numbers.grouped(model.training_tokens_per_s),
        _training_meaning,
        lambda model: model.training_tokens_per_s,
    ),
    Measure(
        "decoding, tokens/s",
        "decode\ntokens/s",
        lambda model: numbers.grouped(model.decode_tokens_per_s),
        _decode_meaning,
        lambda model: model.decode_tokens_per_s,
    ),
    *(
        Measure(
            f"decode state at {numbers.tokens(tokens)} tokens",
            f"state at\n{numbers.tokens(tokens)}",
            lambda model, tokens=tokens: numbers.binary(model.state_bytes[tokens]),  # type: ignore[misc]
            _state_meaning,
            lambda model, tokens=tokens: model.state_bytes[tokens],  # type: ignore[misc]
        )
        for tokens in (SHORT_TOKENS, LONG_TOKENS)
    ),
)


def print_figures(figures: DemoFigures, console: "Console") -> None:
    """Print the table, what its columns mean in short, and the stories."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    for measure in MEASURES:
        table.add_column(measure.heading, justify="right", no_wrap=True)
    for model in figures.models:
        table.add_row(model.title, *(measure.text(model) for measure in MEASURES))
    console.print(table)
    for line in short_meanings(figures):
        console.print(Text(line), style="dim")
    for model in figures.models:
        console.print()
        console.rule(Text(model.title, style="bold"), align="left")
        story = Text.assemble((printable(model.sample.prompt), "bold"), printable(model.sample.continuation.rstrip()))
        if not model.sample.complete:
            story.append(" …", style="dim")
        console.print(Padding(story, (0, 2)))


def short_meanings(figures: DemoFigures) -> Sequence[str]:
    """The least that has to be said about the table."""
    return (
        f"bits per byte: lower is better; causal, on all {numbers.grouped(figures.corpus.validation_stories)} held-out"
        " stories (above, while training: on some of them).",
        "leak: bits per byte that PLDR-LLM's own whole-sequence pass gains by seeing the future.",
        f"state: bytes kept of a text of {numbers.tokens(SHORT_TOKENS)} and {numbers.tokens(LONG_TOKENS)} tokens.",
    )
