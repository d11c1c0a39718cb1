"""What a demo found, as plain figures, which the page and the JSON are written from, and as a table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from linnet.present import numbers
from linnet.present.table import MISSING, Table

SHORT_TOKENS, LONG_TOKENS = 1024, 65536
"""The two lengths of text whose decode state the table gives."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Sample:
    """A story: the prompt and its continuation. `complete`: the model ended it itself."""

    prompt: str
    continuation: str
    complete: bool

    @property
    def text(self) -> str:
        """The whole story."""
        return self.prompt + self.continuation


@dataclass(frozen=True)
class ModelFigures:
    """One model. `leak` is None for a model that is causal by itself, `names_kept` where nobody is mentioned twice.

    training_curve, validation_curve: points of (tokens trained on, bits per byte). state_bytes: by tokens of text.
    training_s: time in steps.
    """

    key: str
    title: str
    idea: str
    folder: str
    parameters: int
    bits_per_byte: float
    whole_sequence_bits_per_byte: float | None
    leak: float | None
    names_kept: float | None
    tokens: int
    training_s: float
    training_tokens_per_s: float
    decode_tokens_per_s: float
    state_bytes: dict[int, int]
    training_curve: list[Point]
    validation_curve: list[Point]
    sample: Sample

    def to_dict(self) -> dict[str, Any]:
        """The model's row of the table, ready for JSON."""
        return {
            "model": self.key,
            "folder": self.folder,
            "parameters": self.parameters,
            "bits_per_byte": self.bits_per_byte,
            "whole_sequence_bits_per_byte": self.whole_sequence_bits_per_byte,
            "leak": self.leak,
            "names_kept": self.names_kept,
            "training_tokens": self.tokens,
            "training_seconds": self.training_s,
            "training_tokens_per_s": self.training_tokens_per_s,
            "decode_tokens_per_s": self.decode_tokens_per_s,
            "state_bytes": {str(tokens): self.state_bytes[tokens] for tokens in (SHORT_TOKENS, LONG_TOKENS)},
            "sample": self.sample.text,
            "sample_complete": self.sample.complete,
        }


@dataclass(frozen=True)
class CorpusFigures:
    """The text: stories, tokens and bytes to train on and held out; bits per byte of xz for the latter.

    names: how many there are that somebody in them may have.
    """

    folder: str
    vocab_size: int
    names: int
    train_stories: int
    train_tokens: int
    train_bytes: int
    validation_stories: int
    validation_tokens: int
    validation_bytes: int
    xz_bits_per_byte: float


@dataclass(frozen=True)
class DemoFigures:
    """Everything. `parts_s`: seconds of each part that is not training; `machine`: what it is by name of the fact."""

    models: list[ModelFigures]
    corpus: CorpusFigures
    context_length: int
    seed: int
    temperature: float
    top_p: float
    decode_tokens: int
    decode_runs: int
    parts_s: dict[str, float]
    machine: dict[str, str]
    command: str
    """How `linnet` is called here."""
    invocation: str
    """The command line that made this."""
    made: str
    """The day and minute."""

    @property
    def training_s(self) -> float:
        """Seconds in steps, all models together."""
        return sum(model.training_s for model in self.models)

    def to_dict(self) -> dict[str, Any]:
        """The table and where it comes from, ready for JSON."""
        return {
            "models": [model.to_dict() for model in self.models],
            "corpus": vars(self.corpus),
            "seed": self.seed,
            "seconds": {"training": self.training_s, **self.parts_s},
            "machine": self.machine,
        }


@dataclass(frozen=True)
class Measure:
    """One thing that is measured of every model.

    meaning: with fields of `DemoFigures` in braces. compared: the quantity whose ratio to the first model's is given.
    """

    name: str
    said: Callable[[ModelFigures], str]
    meaning: str = ""
    compared: Callable[[ModelFigures], float] | None = None


def _state_measure(tokens: int, meaning: str = "") -> Measure:
    return Measure(
        f"state at {numbers.tokens(tokens)} tokens",
        lambda model: numbers.binary(model.state_bytes[tokens]),
        meaning,
        lambda model: model.state_bytes[tokens],
    )


MEASURES = (
    Measure(
        "parameters",
        lambda model: numbers.metric(model.parameters),
        "Numbers that training sets; about as many in each, so that the rest can be compared.",
    ),
    Measure(
        "bits per byte",
        lambda model: f"{model.bits_per_byte:.3f}",
        "How many bits the model needs for a byte of text that it was not trained on; fewer is better. Plain text takes"
        " 8; xz -9, a compressor that has seen no other story, needs {corpus.xz_bits_per_byte:.3f} here."
        " Measured on all {corpus.validation_stories:,} held-out stories; no guess depends on the text after it."
        " PLDR-LLM is therefore read with a frozen operator, deduced from the start of the training text: its own pass"
        " over a whole text lets every guess see a little of what follows.",
    ),
    Measure(
        "leak",
        lambda model: "none" if model.leak is None else numbers.signed(model.leak, 3),
        "By how many bits per byte a model looks better when its pass sees the whole text at once: what seeing the"
        " future gains. None for a model whose pass never does.",
    ),
    Measure(
        "names kept",
        lambda model: MISSING if model.names_kept is None else f"{model.names_kept:.0%}",
        "How often the model, where a held-out story mentions somebody again, takes the right name for the likeliest;"
        " one in {names} by chance. A story whose names change is nobody's story.",
    ),
    Measure(
        "training, tokens/s",
        lambda model: numbers.grouped(model.training_tokens_per_s),
        "Tokens that the model learns from in a second: the mean over all steps, without evaluation and saving.",
        lambda model: model.training_tokens_per_s,
    ),
    Measure(
        "decoding, tokens/s",
        lambda model: numbers.grouped(model.decode_tokens_per_s),
        "Tokens that the model writes in a second, one text at a time: the median of {decode_runs} runs of"
        " {decode_tokens} sampled tokens after a warm-up, the models taking turns; the prompt apart.",
        lambda model: model.decode_tokens_per_s,
    ),
    _state_measure(SHORT_TOKENS),  # two lengths of the same thing are explained once
    _state_measure(
        LONG_TOKENS, "What the model keeps of a text of this length so as to write the next token; exact, in float32."
    ),
)


def demo_table(figures: DemoFigures, ratios: bool) -> Table:
    """A row for each measure, a column for each model. ratios: to the first model, in a second line of the cells."""
    models = figures.models
    rows = [(one.name, *(_cell(one, model, models[0], ratios) for model in models)) for one in MEASURES]
    facts = {**vars(figures), "names": figures.corpus.names}
    notes = {measure.name: measure.meaning.format_map(facts) for measure in MEASURES if measure.meaning}
    columns = ("", *(model.title for model in models))
    meaning = (
        f"Bits per byte: lower is better; causal, on all {numbers.grouped(figures.corpus.validation_stories)} held-out"
        " stories (above, while training: on some of them). Leak: bits per byte that PLDR-LLM's own whole-sequence pass"
        " gains by seeing the future. Names kept: how often the right name is the likeliest where somebody is mentioned"
        " again. State: bytes kept of a text of so many tokens."
    )
    return Table("What each costs, and how good it is", columns, rows, meaning, notes=notes)


def _cell(measure: Measure, model: ModelFigures, first: ModelFigures, ratios: bool) -> str:
    said = measure.said(model)
    if not ratios or measure.compared is None or model is first:
        return said
    return f"{said}\n{numbers.ratio(measure.compared(model), measure.compared(first))} × {first.title}"
