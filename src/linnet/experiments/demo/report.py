"""The demo's report: what each model writes, how it learns, what it costs; for a page and for a terminal."""

import shlex
from pathlib import Path

from linnet.experiments.demo.figures import DemoFigures, ModelFigures, Point, demo_table
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Series
from linnet.present.result import Answer, Commands, Facts, Paragraph, Part, Passage, Picture
from linnet.present.table import Table

SMOOTHED_SHARE = 0.05
"""How much of a training curve is averaged into each of its points."""

CHART_INCHES = (5.05, 3.6)


def demo_report(figures: DemoFigures) -> Answer:
    """All of it, for the page."""
    parts: list[Part] = [
        Paragraph("", _introduction(figures)),
        Facts("", {model.title: model.idea for model in figures.models}),
        Paragraph("", _corpus(figures)),
        Paragraph("What each writes", _sampled(figures)),
        *_stories(figures),
        Paragraph("How each learns, and how its memory grows", ""),
        _learning(figures),
        _state(figures),
        demo_table(figures, ratios=True),
        Facts("Time and machine", {**_times(figures), **figures.machine}),
        Commands("Go on", commands(figures)),
    ]
    return Answer("Three ways to remember a text", {}, figures.to_dict(), parts)


def short_parts(figures: DemoFigures) -> list[Table | Passage]:
    """The table and the stories, for a terminal."""
    return [demo_table(figures, ratios=False), *_stories(figures)]


def _introduction(figures: DemoFigures) -> str:
    sizes = sorted(model.parameters for model in figures.models)
    size = " to ".join(dict.fromkeys(numbers.metric(count) for count in (sizes[0], sizes[-1])))
    return (
        f"Three language models of {size} parameters have been trained on this machine, each on the same"
        f" {numbers.metric(figures.models[0].tokens)} tokens of the same short stories in the same order, in"
        f" {numbers.duration(figures.training_s)} altogether. They differ in how they make use of the text that they"
        " have read so far; this page shows what each writes, how well it predicts, and what it costs."
    )


def _corpus(figures: DemoFigures) -> str:
    corpus = figures.corpus
    return (
        f"The stories are built by linnet itself: {numbers.grouped(corpus.train_stories)} to train on"
        f" ({numbers.decimal(corpus.train_bytes)}, {numbers.metric(corpus.train_tokens)} tokens of a vocabulary of"
        f" {numbers.grouped(corpus.vocab_size)}), {numbers.grouped(corpus.validation_stories)} others to test with,"
        " whose plots and settings do not occur in training. Each model was trained once, from one seed"
        f" ({figures.seed}): a small difference may turn round with another."
    )


def _sampled(figures: DemoFigures) -> str:
    prompt = figures.models[0].sample.prompt
    begun = f"continues “{prompt}”" if prompt else "begins a story of its own"
    return (
        f"Each model {begun}, sampled with seed {figures.seed}, temperature {figures.temperature:g} and top-p"
        f" {figures.top_p:g}, until it ends the story."
    )


def _stories(figures: DemoFigures) -> list[Passage]:
    cut = f"Cut at {figures.context_length} tokens, the length that it was trained for."
    return [_story(model, number, cut) for number, model in enumerate(figures.models)]


def _story(model: ModelFigures, number: int, cut: str) -> Passage:
    sample = model.sample
    end, note = ("", "") if sample.complete else (" …", cut)
    return Passage(model.title, sample.prompt, sample.continuation + end, number, note)


def _learning(figures: DemoFigures) -> Picture:
    drawn = []
    for number, model in enumerate(figures.models):
        width = max(1, round(SMOOTHED_SHARE * len(model.training_curve)))
        drawn.append(Series(*_columns(smooth(model.training_curve, width)), color=number, faint=True))
        drawn.append(Series(*_columns(model.validation_curve), model.title, "o-", number))
    x, y = Axis("tokens trained on", format=numbers.metric, low=0), Axis("bits per byte", "log")
    caption = (
        "Bits per byte over the tokens trained on. Lines with dots: held-out text, causal, a part of the whole. Thin"
        " lines: the text being learned, smoothed; PLDR-LLM's looks better than it is, because in training every guess"
        " sees a little of what follows."
    )
    return Picture("learning", "Learning curves", Plot([Panel(x, y, drawn)], CHART_INCHES, names="ends"), caption)


def _state(figures: DemoFigures) -> Picture:
    drawn = [
        Series(*_columns(sorted(model.state_bytes.items())), model.title, "--" if number == 1 else "-", number)
        for number, model in enumerate(figures.models)
    ]
    x = Axis("tokens of text", "log2", lambda value: numbers.tokens(round(value)))
    caption = (
        "Bytes of decode state over the tokens of text, both axes logarithmic. A straight line grows in step with the"
        " text; a level one does not grow at all."
    )
    plot = Plot([Panel(x, Axis("bytes of state", "log2", numbers.binary), drawn)], CHART_INCHES, names="ends")
    return Picture("state", "Decode state", plot, caption)


def _columns(points: list[Point] | list[tuple[int, int]]) -> tuple[list[float], list[float]]:
    return [float(x) for x, _ in points], [float(y) for _, y in points]


def smooth(points: list[Point], width: int) -> list[Point]:
    """The mean of each point's `width` neighbors, itself in the middle; fewer towards the ends, evenly."""
    smoothed = []
    for index, (x, _) in enumerate(points):
        reach = min(width // 2, index, len(points) - 1 - index)
        near = [y for _, y in points[index - reach : index + reach + 1]]
        smoothed.append((x, sum(near) / len(near)))
    return smoothed


def _times(figures: DemoFigures) -> dict[str, str]:
    training = {
        f"training {model.title}": f"{numbers.duration(model.training_s)} for {numbers.grouped(model.tokens)} tokens"
        for model in figures.models
    }
    return training | {name: numbers.duration(seconds) for name, seconds in figures.parts_s.items()}


def commands(figures: DemoFigures) -> dict[str, list[str]]:
    """What can be done next, and the command lines for it."""
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
