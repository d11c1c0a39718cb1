"""The demo's table: what is compared, and in which words."""

from collections.abc import Callable
from dataclasses import dataclass

from linnet.experiments.demo.figures import LONG_TOKENS, SHORT_TOKENS, DemoFigures, ModelFigures
from linnet.present import numbers
from linnet.present.table import Table


@dataclass(frozen=True)
class Measure:
    """One thing that is measured of every model. compared: the quantity whose ratio to the first model's is given."""

    name: str
    said: Callable[[ModelFigures], str]
    meaning: Callable[[DemoFigures], str]
    compared: Callable[[ModelFigures], float] | None = None


def _leak(model: ModelFigures) -> str:
    return "none" if model.leak is None else numbers.signed(model.leak, 3)


def _bits_meaning(figures: DemoFigures) -> str:
    corpus = figures.corpus
    return (
        "How many bits the model needs for a byte of text that it was not trained on; fewer is better. Plain text takes"
        f" 8; xz -9, a compressor that has seen no other story, needs {corpus.xz_bits_per_byte:.3f} here."
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


def _state_measure(tokens: int, meaning: str) -> Measure:
    return Measure(
        f"state at {numbers.tokens(tokens)} tokens",
        lambda model: numbers.binary(model.state_bytes[tokens]),
        lambda figures: meaning,
        lambda model: model.state_bytes[tokens],
    )


MEASURES = (
    Measure(
        "parameters",
        lambda model: numbers.metric(model.parameters),
        lambda figures: "Numbers that training sets; about as many in each, so that the rest can be compared.",
    ),
    Measure("bits per byte", lambda model: f"{model.bits_per_byte:.3f}", _bits_meaning),
    Measure("leak", _leak, _leak_meaning),
    Measure(
        "training, tokens/s",
        lambda model: numbers.grouped(model.training_tokens_per_s),
        _training_meaning,
        lambda model: model.training_tokens_per_s,
    ),
    Measure(
        "decoding, tokens/s",
        lambda model: numbers.grouped(model.decode_tokens_per_s),
        _decode_meaning,
        lambda model: model.decode_tokens_per_s,
    ),
    _state_measure(SHORT_TOKENS, ""),  # two lengths of the same thing are explained once
    _state_measure(
        LONG_TOKENS, "What the model keeps of a text of this length so as to write the next token; exact, in float32."
    ),
)


def demo_table(figures: DemoFigures, ratios: bool) -> Table:
    """A row for each measure, a column for each model. ratios: to the first model, in a second line of the cells."""
    models = figures.models
    rows = [(one.name, *(_cell(one, model, models[0], ratios) for model in models)) for one in MEASURES]
    notes = {measure.name: text for measure in MEASURES if (text := measure.meaning(figures))}
    columns = ("", *(model.title for model in models))
    return Table("What each costs, and how good it is", columns, rows, _short_meaning(figures), notes=notes)


def _cell(measure: Measure, model: ModelFigures, first: ModelFigures, ratios: bool) -> str:
    said = measure.said(model)
    if not ratios or measure.compared is None or model is first:
        return said
    return f"{said}\n{numbers.ratio(measure.compared(model), measure.compared(first))} × {first.title}"


def _short_meaning(figures: DemoFigures) -> str:
    """The least that has to be said about the table."""
    return (
        f"Bits per byte: lower is better; causal, on all {numbers.grouped(figures.corpus.validation_stories)} held-out"
        " stories (above, while training: on some of them). Leak: bits per byte that PLDR-LLM's own whole-sequence pass"
        " gains by seeing the future. State: bytes kept of a text of so many tokens."
    )
