"""The demo's results: plain figures, a table, and the page with what each model writes, how it learns, and its cost."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linnet.experiments.measures import MemoryFigures, WrittenText
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Series
from linnet.present.result import Commands, Facts, Paragraph, Part, Passage, Picture, Result
from linnet.present.table import MISSING, Table

SHORT_TOKENS, LONG_TOKENS = 1024, 65536
"""The two lengths of text for which the table shows the decode state."""

SMOOTHED_SHARE = 0.05
"""Share of a training curve that is averaged into each of its points."""

CHART_INCHES = (5.05, 3.6)

Point = tuple[float, float]


@dataclass(frozen=True)
class ModelFigures:
    """One model. leak: None for a causal model; name_recall: None if nobody is mentioned twice.

    training_curve, validation_curve: points of (tokens trained on, bits per byte). memory: of weights and decode state,
    by tokens of text. training_s: time in training steps.
    """

    key: str
    title: str
    idea: str
    folder: str
    parameters: int
    bits_per_byte: float
    whole_sequence_bits_per_byte: float | None
    leak: float | None
    name_recall: float | None
    tokens: int
    training_s: float
    training_tokens_per_s: float
    decode_tokens_per_s: float
    memory: MemoryFigures
    training_curve: list[Point]
    validation_curve: list[Point]
    sample: WrittenText

    def to_dict(self) -> dict[str, Any]:
        """The model's row of the table, ready for JSON."""
        return {
            "model": self.key,
            "folder": self.folder,
            "parameters": self.parameters,
            "bits_per_byte": self.bits_per_byte,
            "whole_sequence_bits_per_byte": self.whole_sequence_bits_per_byte,
            "leak": self.leak,
            "name_recall": self.name_recall,
            "training_tokens": self.tokens,
            "training_seconds": self.training_s,
            "training_tokens_per_s": self.training_tokens_per_s,
            "decode_tokens_per_s": self.decode_tokens_per_s,
            "state_bytes": _shown_lengths(self.memory.state_bytes),
            "policy_state_bytes": {
                label: _shown_lengths(sizes) for label, sizes in self.memory.policy_state_bytes.items()
            },
            "sample": self.sample.prompt + self.sample.text,
            "sample_complete": self.sample.complete,
        }

    def policy_state(self, tokens: int) -> str:
        """The size of the state with each cache policy, and the policy's label below it."""
        sizes = [f"{numbers.binary(sizes[tokens])}\n{label}" for label, sizes in self.memory.policy_state_bytes.items()]
        return "\n".join(sizes) or MISSING


def _shown_lengths(sizes: dict[int, int]) -> dict[str, int]:
    return {str(tokens): sizes[tokens] for tokens in (SHORT_TOKENS, LONG_TOKENS)}


@dataclass(frozen=True)
class CorpusFigures:
    """The text: stories, tokens and bytes for training and held out. names: number of names in them."""

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
class DemoFigures(Result):
    """All results. parts_s: seconds of each part except training; machine: facts by name.

    command: how `linnet` is called here; invocation: the command line that made this; made: day and minute.
    """

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
    invocation: str
    made: str

    @property
    def training_s(self) -> float:
        """Seconds in training steps, all models together."""
        return sum(model.training_s for model in self.models)

    def to_dict(self) -> dict[str, Any]:
        """The table and its origin, ready for JSON."""
        return {
            "models": [model.to_dict() for model in self.models],
            "corpus": vars(self.corpus),
            "seed": self.seed,
            "seconds": {"training": self.training_s, **self.parts_s},
            "machine": self.machine,
        }

    def title(self) -> str:
        return "Three ways to remember a text"

    def tables(self) -> list[Part]:
        """The table and the stories, for a terminal."""
        return [demo_table(self, ratios=False), *_stories(self)]

    def page(self) -> list[Part]:
        return _page(self)


@dataclass(frozen=True)
class TableRow:
    """One figure of every model. meaning: with fields of `DemoFigures` in braces; compared: shown as a ratio too."""

    name: str
    shown: Callable[[ModelFigures], str]
    meaning: str = ""
    compared: Callable[[ModelFigures], float] | None = None


ROWS = (
    TableRow(
        "parameters",
        lambda model: numbers.metric(model.parameters),
        "Numbers that training sets; about as many in each model, so that the rest can be compared.",
    ),
    TableRow(
        "bits per byte",
        lambda model: f"{model.bits_per_byte:.3f}",
        "Bits that the model needs for a byte of text that it was not trained on; fewer is better. Plain text takes"
        " 8; xz -9, a compressor that has seen no other story, needs {corpus.xz_bits_per_byte:.3f} here."
        " Measured on all {corpus.validation_stories:,} held-out stories; no prediction depends on the text after it."
        " PLDR-LLM is therefore read with a frozen operator, deduced from the start of the training text: its own pass"
        " over a whole text lets every prediction see a little of what follows.",
    ),
    TableRow(
        "leak",
        lambda model: "none" if model.leak is None else numbers.signed(model.leak, 3),
        "Bits per byte by which a model looks better when its pass sees the whole text at once: the gain from seeing"
        " the future. None for a model whose pass never does.",
    ),
    TableRow(
        "name recall",
        lambda model: MISSING if model.name_recall is None else f"{model.name_recall:.0%}",
        "How often the right name is the likeliest where a held-out story mentions somebody again; one in {names} by"
        " chance. If the names in a story change, it does not make sense.",
    ),
    TableRow(
        "training, tokens/s",
        lambda model: numbers.grouped(model.training_tokens_per_s),
        "Tokens that the model learns from in a second: the mean over all steps, without evaluation and saving.",
        lambda model: model.training_tokens_per_s,
    ),
    TableRow(
        "decoding, tokens/s",
        lambda model: numbers.grouped(model.decode_tokens_per_s),
        "Tokens that the model writes in a second, one text at a time: the median of {decode_runs} runs of"
        " {decode_tokens} sampled tokens after a warm-up, the models taking turns, without the prompt.",
        lambda model: model.decode_tokens_per_s,
    ),
    TableRow(
        f"state at {numbers.tokens(SHORT_TOKENS)} tokens",
        lambda model: numbers.binary(model.memory.state_bytes[SHORT_TOKENS]),
        "",  # explained at the next row
        lambda model: model.memory.state_bytes[SHORT_TOKENS],
    ),
    TableRow(
        f"state at {numbers.tokens(LONG_TOKENS)} tokens",
        lambda model: numbers.binary(model.memory.state_bytes[LONG_TOKENS]),
        "Memory that the model needs of a text of this length to write the next token, with every token kept; exact,"
        " in float32.",
        lambda model: model.memory.state_bytes[LONG_TOKENS],
    ),
    TableRow(f"with policy, {numbers.tokens(SHORT_TOKENS)}", lambda model: model.policy_state(SHORT_TOKENS)),
    TableRow(
        f"with policy, {numbers.tokens(LONG_TOKENS)}",
        lambda model: model.policy_state(LONG_TOKENS),
        "The same with a cache policy that the model's layers bring (--cache-policy of `linnet generate`): old tokens"
        " are summed or dropped, so that the memory hardly grows.",
    ),
)


def demo_table(figures: DemoFigures, ratios: bool) -> Table:
    """A row for each figure, a column for each model. ratios: to the first model, in a second line of the cells."""
    models, rows = figures.models, []
    for row in ROWS:
        cells = []
        for model in models:
            cell = row.shown(model)
            if ratios and row.compared is not None and model is not models[0]:
                cell += f"\n{numbers.ratio(row.compared(model), row.compared(models[0]))} × {models[0].title}"
            cells.append(cell)
        rows.append((row.name, *cells))
    facts = {**vars(figures), "names": figures.corpus.names}
    notes = {row.name: row.meaning.format_map(facts) for row in ROWS if row.meaning}
    meaning = (
        f"Bits per byte: lower is better; causal, on all {numbers.grouped(figures.corpus.validation_stories)} held-out"
        " stories (above, while training: on some of them). Leak: bits per byte that PLDR-LLM's own whole-sequence pass"
        " gains by seeing the future. Name recall: how often the right name is the likeliest where somebody is"
        " mentioned again. State: bytes kept for a text of that many tokens; with a cache policy: those kept if old"
        " tokens are summed or dropped."
    )
    return Table("Quality and cost", ("", *(model.title for model in models)), rows, meaning, notes=notes)


def _page(figures: DemoFigures) -> list[Part]:
    corpus, models = figures.corpus, figures.models
    sizes = sorted(model.parameters for model in models)
    size = " to ".join(dict.fromkeys(numbers.metric(count) for count in (sizes[0], sizes[-1])))
    introduction = (
        f"Three language models of {size} parameters have been trained on this machine, each on the same"
        f" {numbers.metric(models[0].tokens)} tokens of the same short stories in the same order, in"
        f" {numbers.duration(figures.training_s)} altogether. They differ in how they use the text that they have read"
        " so far; this page shows what each writes, how well it predicts, and what it costs."
    )
    about_corpus = (
        f"The stories are generated by linnet: {numbers.grouped(corpus.train_stories)} to train on"
        f" ({numbers.decimal(corpus.train_bytes)}, {numbers.metric(corpus.train_tokens)} tokens of a vocabulary of"
        f" {numbers.grouped(corpus.vocab_size)}), {numbers.grouped(corpus.validation_stories)} others to test with,"
        " whose plots and settings do not occur in training. Each model was trained once, from one seed"
        f" ({figures.seed}): a small difference may be reversed with another seed."
    )
    prompt = models[0].sample.prompt
    sampled = (
        f"Each model {f'continues “{prompt}”' if prompt else 'begins a story'}, sampled with seed {figures.seed},"
        f" temperature {figures.temperature:g} and top-p {figures.top_p:g}, until it ends the story."
    )
    times = {
        f"training {model.title}": f"{numbers.duration(model.training_s)} for {numbers.grouped(model.tokens)} tokens"
        for model in models
    }
    times |= {name: numbers.duration(seconds) for name, seconds in figures.parts_s.items()}
    return [
        Paragraph("", introduction),
        Facts("", {model.title: model.idea for model in models}),
        Paragraph("", about_corpus),
        Paragraph("A story by each model", sampled),
        *_stories(figures),
        Paragraph("Learning curves and memory", ""),
        _learning_curves(figures),
        _state_curves(figures),
        demo_table(figures, ratios=True),
        Facts("Time and machine", {**times, **figures.machine}),
        Commands("Next steps", commands(figures)),
    ]


def _stories(figures: DemoFigures) -> list[Passage]:
    cut, passages = f"Cut at {figures.context_length} tokens, the length that it was trained for.", []
    for number, model in enumerate(figures.models):
        end, note = ("", "") if model.sample.complete else (" …", cut)
        passages.append(Passage(model.title, model.sample.prompt, model.sample.text + end, number, note))
    return passages


def _learning_curves(figures: DemoFigures) -> Picture:
    drawn = []
    for number, model in enumerate(figures.models):
        width = max(1, round(SMOOTHED_SHARE * len(model.training_curve)))
        drawn.append(Series(*_columns(smooth(model.training_curve, width)), color=number, faint=True))
        drawn.append(Series(*_columns(model.validation_curve), model.title, "o-", number))
    x, y = Axis("tokens trained on", format=numbers.metric, low=0), Axis("bits per byte", "log")
    caption = (
        "Bits per byte over the tokens trained on. Lines with dots: a part of the held-out text, causal. Thin lines:"
        " the training text, smoothed; PLDR-LLM's looks better than it is, because in training every prediction sees a"
        " little of what follows."
    )
    return Picture("learning", "Learning curves", Plot([Panel(x, y, drawn)], CHART_INCHES, names="ends"), caption)


def _state_curves(figures: DemoFigures) -> Picture:
    drawn = []
    for number, model in enumerate(figures.models):
        style = "--" if number == 1 else "-"  # the first two lines lie on each other
        drawn.append(Series(*_columns(sorted(model.memory.state_bytes.items())), model.title, style, number))
        for label, sizes in model.memory.policy_state_bytes.items():
            drawn.append(Series(*_columns(sorted(sizes.items())), f"{model.title}, {label}", ":", number))
    x = Axis("tokens of text", "log2", lambda value: numbers.tokens(round(value)))
    caption = (
        "Bytes of decode state over the tokens of text, both axes logarithmic. A straight line grows in proportion to"
        " the text; a level one does not grow. Dotted: with a cache policy of the model."
    )
    plot = Plot([Panel(x, Axis("bytes of state", "log2", numbers.binary), drawn)], CHART_INCHES, names="ends")
    return Picture("state", "Decode state", plot, caption)


def _columns(points: list[Point] | list[tuple[int, int]]) -> tuple[list[float], list[float]]:
    return [float(x) for x, _ in points], [float(y) for _, y in points]


def smooth(points: list[Point], width: int) -> list[Point]:
    """Moving average over `width` points, centered; over fewer, symmetrically, near the ends."""
    smoothed = []
    for index, (x, _) in enumerate(points):
        reach = min(width // 2, index, len(points) - 1 - index)
        near = [y for _, y in points[index - reach : index + reach + 1]]
        smoothed.append((x, sum(near) / len(near)))
    return smoothed


def commands(figures: DemoFigures) -> dict[str, list[str]]:
    """Command lines for next steps, by purpose."""
    linnet, data = figures.command, figures.corpus.folder
    recurrent = figures.models[-1]

    def command(*words: str | Path) -> str:
        return shlex.join([*shlex.split(linnet), *map(str, words)])

    out = Path(recurrent.folder).parent
    return {
        "Let the models write more:": [
            command("generate", model.folder, "--prompt", "One day, a girl named", "--temperature", "0.7")
            for model in figures.models
        ],
        "Train one of them on your own text, and let it write:": [
            command("prepare", "my-text.txt", "--vocab-size", "1024", "--out", "data/mine"),
            command("train", "--model", f"tiny-{recurrent.key}", "--data", "data/mine", "--out", "runs/mine"),
            command("generate", "runs/mine"),
        ],
        "Measure a model again, on the held-out stories:": [command("evaluate", recurrent.folder, "--data", data)],
        "See whether a difference holds with another seed, or with longer training:": [
            command("demo", "--out", f"{out}-seed-1", "--seed", "1"),
            command("demo", "--out", f"{out}-longer", "--steps", "2000"),
        ],
    }
