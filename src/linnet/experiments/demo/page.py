"""The demo's page: one HTML file that needs nothing else, neither files nor network."""

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from linnet.core.files import write_text
from linnet.experiments.demo.charts import Axis, Series, line_chart, linear_ticks, log_ticks, power_ticks, smooth
from linnet.experiments.demo.figures import DemoFigures, ModelFigures
from linnet.experiments.demo.style import CSS
from linnet.experiments.demo.table import MEASURES, Measure
from linnet.present import numbers
from linnet.present.page import escaped, fact_table, html_page

SMOOTHED_SHARE = 0.05
"""How much of a training curve is averaged into each of its points."""


def write_page(figures: DemoFigures, path: Path) -> None:
    """Write the page, atomically."""
    write_text(path, page(figures))


def page(figures: DemoFigures) -> str:
    """The whole page."""
    parts = [
        "<h1>Three ways to remember a text</h1>",
        *_introduction(figures),
        *_stories(figures),
        *_table(figures),
        *_charts(figures),
        *_facts(figures),
        *_commands(figures),
        _end(figures),
    ]
    return html_page("linnet demo: attention, PLDR-LLM and TED side by side", parts, CSS)


def _introduction(figures: DemoFigures) -> Iterator[str]:
    tokens, corpus = figures.models[0].tokens, figures.corpus
    sizes = sorted(model.parameters for model in figures.models)
    size = " to ".join(dict.fromkeys(numbers.metric(count) for count in (sizes[0], sizes[-1])))
    yield (
        f"<p>Three language models of {size} parameters have been trained"
        f" on this machine, each on the same {numbers.metric(tokens)} tokens of the same short stories in the same"
        f" order, in {numbers.duration(figures.training_s)} altogether. They differ in how they make use of the text"
        " that they have read so far; this page shows what each writes, how well it predicts, and what it costs.</p>"
    )
    yield '<ul class="ideas">'
    for model in figures.models:
        yield f'<li class="{model.key}"><span><b>{escaped(model.title)}</b> {escaped(model.idea)}</span></li>'
    yield "</ul>"
    yield (
        f'<p class="soft">The stories are built by linnet itself: {numbers.grouped(corpus.train_stories)} to train on'
        f" ({numbers.decimal(corpus.train_bytes)}, {numbers.metric(corpus.train_tokens)} tokens of a vocabulary of"
        f" {numbers.grouped(corpus.vocab_size)}), {numbers.grouped(corpus.validation_stories)} others to test with,"
        " whose plots and settings do not occur in training. Each model was trained once, from one seed"
        f" ({figures.seed}): a small difference may turn round with another.</p>"
    )


def _table(figures: DemoFigures) -> Iterator[str]:
    yield '<h2>What each costs, and how good it is</h2>\n<table class="figures">\n<thead><tr><th scope="col"></th>'
    for model in figures.models:
        yield f'<th scope="col" class="{model.key}">{escaped(model.title)}</th>'
    yield "</tr></thead>"
    for measure, following in zip(MEASURES, (*MEASURES[1:], None), strict=True):
        # Two lengths of the same thing are explained once.
        meaning = measure.meaning(figures)
        explained = following is None or following.meaning(figures) != meaning
        yield "\n".join(_rows(measure, figures, meaning if explained else None))
    yield "</table>"


def _rows(measure: Measure, figures: DemoFigures, meaning: str | None) -> Iterator[str]:
    yield f'<tbody><tr><th scope="row">{escaped(measure.name)}</th>'
    first = figures.models[0]
    for model in figures.models:
        compared = ""
        if measure.compared is not None and model is not first:
            ratio = numbers.ratio(measure.compared(model), measure.compared(first))
            compared = f" <small>{ratio} × {escaped(first.title)}</small>"
        yield f'<td class="value">{escaped(measure.text(model))}{compared}</td>'
    yield "</tr>"
    if meaning is not None:
        yield f'<tr class="meaning"><td colspan="{len(figures.models) + 1}">{escaped(meaning)}</td></tr>'
    yield "</tbody>"


def _stories(figures: DemoFigures) -> Iterator[str]:
    prompt = figures.models[0].sample.prompt
    begun = f"continues <b>{escaped(prompt)}</b>" if prompt else "begins a story of its own"
    yield (
        f'<h2>What each writes</h2>\n<p class="soft">Each model {begun}, sampled with seed {figures.seed}, temperature'
        f" {figures.temperature:g} and top-p {figures.top_p:g}, until it ends the story.</p>"
        '\n<div class="stories">'
    )
    for model in figures.models:
        yield f'<article class="story {model.key}"><h3>{escaped(model.title)}</h3>\n<div class="text">'
        yield "\n".join(_paragraphs(model))
        yield "</div>"
        if not model.sample.complete:
            yield f'<p class="soft">Cut at {figures.context_length} tokens, the length that it was trained for.</p>'
        yield "</article>"
    yield "</div>"


def _paragraphs(model: ModelFigures) -> Iterator[str]:
    """The story's lines as paragraphs, the prompt in bold."""
    text = model.sample.text + ("" if model.sample.complete else " …")
    prompt_left = len(model.sample.prompt)
    for line in text.split("\n"):
        prompt, rest = escaped(line[:prompt_left]), escaped(line[prompt_left:])
        prompt_left = max(0, prompt_left - len(line) - 1)
        if line.strip():
            yield f"<p><b>{prompt}</b>{rest}</p>" if prompt else f"<p>{rest}</p>"


def _charts(figures: DemoFigures) -> Iterator[str]:
    yield '<h2>How each learns, and how its memory grows</h2>\n<div class="charts">'
    yield _figure(
        _learning_chart(figures),
        "Bits per byte over the tokens trained on. Lines with dots: held-out text, causal, a part of the whole. Thin"
        " lines: the text being learned, smoothed; PLDR-LLM's looks better than it is, because in training every guess"
        " sees a little of what follows.",
    )
    yield _figure(
        _state_chart(figures),
        "Bytes of decode state over the tokens of text, both axes logarithmic. A straight line grows in step with the"
        " text; a level one does not grow at all.",
    )
    yield "</div>"


def _figure(chart: str, caption: str) -> str:
    return f"<figure>{chart}\n<figcaption>{escaped(caption)}</figcaption></figure>"


def _learning_chart(figures: DemoFigures) -> str:
    series = []
    for model in figures.models:
        width = max(1, round(SMOOTHED_SHARE * len(model.training_curve)))
        smoothed = smooth(model.training_curve, width)
        series.append(Series(f"{model.title}, training", f"{model.key} training", smoothed))
    for model in figures.models:
        series.append(Series(f"{model.title}, held out", model.key, model.validation_curve, model.title, dots=True))
    values = [y for one in series for _, y in one.points]
    low, high = min(values) * 0.95, max(values) * 1.05
    end = max(model.tokens for model in figures.models)
    return line_chart(
        "Learning curves",
        f"Bits per byte of {_all(model.title for model in figures.models)} while they were trained",
        Axis("tokens trained on", 0, end, linear_ticks(0, end, 4), numbers.metric),
        Axis("bits per byte", low, high, log_ticks(low, high), lambda value: f"{value:.3g}", logarithmic=True),
        series,
    )


def _state_chart(figures: DemoFigures) -> str:
    series = [
        Series(model.title, f"{model.key} state", sorted(model.state_bytes.items()), model.title)
        for model in figures.models
    ]
    lengths = [x for one in series for x, _ in one.points]
    sizes = [y for one in series for _, y in one.points]
    return line_chart(
        "Decode state",
        f"Bytes of decode state of {_all(model.title for model in figures.models)} over the length of the text",
        Axis(
            "tokens of text",
            min(lengths),
            max(lengths),
            power_ticks(min(lengths), max(lengths), 16),
            lambda value: numbers.tokens(round(value)),
            logarithmic=True,
        ),
        Axis(
            "bytes of state",
            min(sizes),
            max(sizes),
            power_ticks(min(sizes), max(sizes), 16),
            numbers.binary,
            logarithmic=True,
        ),
        series,
    )


def _all(titles: Iterable[str]) -> str:
    *others, last = titles
    return f"{', '.join(others)} and {last}" if others else last


def _facts(figures: DemoFigures) -> Iterator[str]:
    yield '<h2>Time and machine</h2>\n<div class="columns">'
    times = {
        f"training {model.title}": f"{numbers.duration(model.training_s)} for {numbers.grouped(model.tokens)} tokens"
        for model in figures.models
    }
    times |= {name: numbers.duration(seconds) for name, seconds in figures.parts_s.items()}
    yield fact_table(times)
    yield fact_table(figures.machine)
    yield "</div>"


def _commands(figures: DemoFigures) -> Iterator[str]:
    yield "<h2>Go on</h2>"
    for purpose, lines in commands(figures):
        yield f"<p>{escaped(purpose)}</p>\n<pre>{escaped(chr(10).join(lines))}</pre>"


def commands(figures: DemoFigures) -> list[tuple[str, list[str]]]:
    """What can be done next, and the command lines for it."""
    linnet, data = figures.command, figures.corpus.folder
    recurrent = figures.models[-1]

    def command(*words: str | Path) -> str:
        return shlex.join([*shlex.split(linnet), *map(str, words)])

    out = Path(recurrent.folder).parent
    return [
        (
            "Let the models write more:",
            [
                command("generate", model.folder, "--prompt", "One day, a girl named", "--temperature", "0.7")
                for model in figures.models
            ],
        ),
        (
            "Train one of them on your own text, and let it write:",
            [
                command("prepare", "my-text.txt", "--vocab-size", "1024", "--out", "data/mine"),
                command("train", "--model", f"tiny-{recurrent.key}", "--data", "data/mine", "--out", "runs/mine"),
                command("generate", "runs/mine"),
            ],
        ),
        (
            "Measure a model again, on the held-out stories:",
            [command("evaluate", recurrent.folder, "--data", data)],
        ),
        (
            "See whether a difference holds with another seed, or with longer training:",
            [
                command("demo", "--out", f"{out}-seed-1", "--seed", "1"),
                command("demo", "--out", f"{out}-longer", "--steps", "2000"),
            ],
        ),
    ]


def _end(figures: DemoFigures) -> str:
    return f"<footer>Made by <code>{escaped(figures.invocation)}</code>, {escaped(figures.made)}.</footer>"
