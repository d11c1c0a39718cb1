"""The page of the atlas and its plots, from the record alone: `experiments/atlas.jsonl`, rows of the atlas's suites.

`python experiments/atlas/page.py` writes `docs/atlas.md`. A mixer without a figure on a text has a dash there, and no
point in the plot. `--articles wikitext2-train.txt` writes wikitext2.jsonl, the text of a suite, instead.
"""

import argparse
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from linnet.core.files import write_text
from linnet.evaluation.statistics import accuracy
from linnet.experiments.results import (
    ABILITY,
    LIKELIHOOD,
    NAME_RECALL,
    ResultRow,
    ResultTable,
    inputs_of,
)
from linnet.experiments.run import (
    DECODING_SPEED,
    TRAINING_SPEED,
    decoding_speed_inputs,
    training_speed_inputs,
)
from linnet.experiments.suite import Suite, load_suites
from linnet.model.cost import model_cost
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.stories.instructions import KINDS

HERE = Path(__file__).parent
EXPERIMENTS = HERE.parent
RECORD, PAGE = EXPERIMENTS / "atlas.jsonl", EXPERIMENTS.parent / "docs" / "atlas.md"

TEXTS = {"tinystories": "TinyStories", "wikitext2": "WikiText-2"}
ABILITIES = {"recall": "recall", "copying": "copying", "tracking": "following S3"}
SPEED_SUITE, STORIES, TAUGHT = "tinystories", "stories", "instructions"
ALL_PROMPTS = "all"
"""The row of `linnet evaluate --suite instructions` over all prompts."""

SHORT, LONG = 1024, 65_536
SPEEDS = {
    TRAINING_SPEED: ("training, tokens/s", "training_tokens_per_s"),
    DECODING_SPEED: ("decoding, tokens/s", "decode_tokens_per_s"),
}
"""Title and figure of each measure of a speed."""

CAN, CANNOT = 0.95, "no better than chance"
"""From that share of symbols right on, a mixer is said to be able to do a task."""

AHEAD_OF_CHANCE = 3
"""Standard errors above chance from which a seed counts as better than chance."""


def atlas_suites() -> dict[str, Suite]:
    """All suites of the atlas by name, in the order in which they are carried out."""
    suites = load_suites(EXPERIMENTS / "atlas.yaml")
    return {SPEED_SUITE: suites.pop("atlas"), **suites}


class Atlas:
    """The record, asked by suite, mixer and seed."""

    def __init__(self, record: ResultTable, suites: Mapping[str, Suite] | None = None) -> None:
        self.record = record
        self.suites = suites or atlas_suites()
        main = self.suites[SPEED_SUITE]
        self.models = {run.name: main.run_spec(run, 0, Path("data")).model for run in main.runs}
        costs = {name: model_cost(model) for name, model in self.models.items()}
        self.state_bytes = {name: [cost.state_bytes(SHORT), cost.state_bytes(LONG)] for name, cost in costs.items()}

    def rows(self, suite: str, mixer: str, measure: str = LIKELIHOOD) -> list[ResultRow]:
        """The rows of a mixer, by seed."""
        found = [row for row in self.record.of(self.suites[suite].name, measure) if row.run == mixer]
        return sorted(found, key=lambda row: row.seed)

    def row(self, suite: str, mixer: str, measure: str = LIKELIHOOD) -> ResultRow | None:
        return next(iter(self.rows(suite, mixer, measure)), None)

    def bits(self, text: str, mixer: str) -> list[float]:
        """Bits per byte at equal tokens, of each seed."""
        return [row.values["bits_per_byte"] for row in self.rows(text, mixer)]

    def timed(self, text: str, mixer: str) -> ResultRow | None:
        """The row of equal time; attention's is that of its first seed."""
        return self.row(text if mixer == "attention" else f"{text}-time", mixer)

    def speed(self, mixer: str, measure: str) -> float | None:
        """Tokens per second, of a measure of `SPEEDS`; None if it was not measured.

        The figure of decoding in a row of training is not read: such a row is older than compiled steps.
        """
        row = self.row(SPEED_SUITE, mixer, measure)
        return None if row is None else float(row.values[SPEEDS[measure][1]])

    def ranked(self) -> list[str]:
        """Mixers, best on TinyStories first; without a result there, last."""
        means = {name: self.bits(SPEED_SUITE, name) for name in self.models}
        return sorted(self.models, key=lambda name: statistics.fmean(means[name]) if means[name] else math.inf)

    def grows(self, mixer: str) -> bool:
        """True if the state grows with the text."""
        short, long = self.state_bytes[mixer]
        return long > short


def deviation(values: Sequence[float]) -> float:
    """Between seeds; 0 for one."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def noise(atlas: Atlas) -> float:
    """Twice the root of the mean variance of the seeds, of all mixers that have several, as a difference of two."""
    seeds = [atlas.bits(text, name) for name in atlas.models for text in TEXTS]
    spreads = [deviation(bits) ** 2 for bits in seeds if len(bits) > 1]
    return 2 * math.sqrt(2 * statistics.fmean(spreads))


def recall_cell(recall: Mapping[str, Any]) -> str:
    """Name recall in percent, with the binomial standard error of so many mentions."""
    found = accuracy(recall["right"], recall["mentions"])
    return f"{100 * found.value:.1f} ± {100 * (found.standard_error or 0.0):.1f} %"


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def quality_table(atlas: Atlas) -> str:
    """All mixers, best on TinyStories first."""
    heads = ["mixer", *TEXTS.values(), *(f"{title}, attention's time" for title in TEXTS.values())]
    heads += [*(title for title, _ in SPEEDS.values()), "state at 1k", "state at 64k", "name recall"]
    rows = []
    for name in atlas.ranked():
        cells = []
        for text in TEXTS:
            bits = atlas.bits(text, name)
            spread = f" ± {deviation(bits):.3f}" if len(bits) > 1 else ""
            cells.append(f"{statistics.fmean(bits):.3f}{spread}" if bits else "–")
        times = [atlas.timed(text, name) for text in TEXTS]
        cells += ["–" if row is None else f"{row.values['bits_per_byte']:.3f}" for row in times]
        speeds, recall = [atlas.speed(name, measure) for measure in SPEEDS], atlas.row(STORIES, name, NAME_RECALL)
        cells += ["–" if speed is None else numbers.grouped(speed) for speed in speeds]
        cells += [numbers.binary(size) for size in atlas.state_bytes[name]]
        rows.append([name, *cells, "–" if recall is None else recall_cell(recall.values["name_recall"])])
    return markdown(heads, rows)


def scattered(atlas: Atlas, names: Sequence[str], title: str, measure: Callable[[str], float]) -> Plot:
    """A panel for each text: a point with its spread and name for each mixer."""
    panels = []
    for text, text_name in TEXTS.items():
        bits = {name: atlas.bits(text, name) for name in names}
        means = {name: statistics.fmean(own) for name, own in bits.items() if own}
        series = []
        for color, grows in enumerate((True, False)):
            own = [name for name in means if atlas.grows(name) == grows]
            y, spread = [means[name] for name in own], [deviation(bits[name]) for name in own]
            low, high = ([b + sign * s for b, s in zip(y, spread, strict=True)] for sign in (-1, 1))
            kind = "state grows with the text" if grows else "state of constant size"
            series.append(Series([measure(name) for name in own], y, kind, "o", color, low, high, labels=own))
        room = 0.15 * (max(means.values()) - min(means.values()))  # for names above and below the points
        axis = Axis("bits per byte", low=min(means.values()) - room, high=max(means.values()) + room)
        panels.append(Panel(Axis(title, "log"), axis, series, title=text_name))
    return Plot(panels, columns=2, size=(6.5, 5.0))


def abilities_table(atlas: Atlas) -> str:
    """A row for each mixer, the one that is right most often over all tasks first."""
    heads = ["mixer", *(f"{title}, %" for title in ABILITIES.values()), "state, bytes"]
    shares: dict[str, dict[str, list[float]]] = {}
    for run in atlas.suites["recall"].runs:
        shares[run.name] = {task: symbols_right(atlas.rows(task, run.name, ABILITY)) for task in ABILITIES}
    total = {name: sum(statistics.fmean(own) for own in by_task.values() if own) for name, by_task in shares.items()}
    rows = [["*chance*", *(f"{100 * chance(atlas, task):.1f}" for task in ABILITIES), "–"]]
    for name in sorted(shares, key=lambda name: -total[name]):
        of_tasks = [atlas.rows(task, name, ABILITY) for task in ABILITIES]
        state = next((seeds[0].values["state_bytes"] for seeds in of_tasks if seeds), None)
        rows.append([name, *map(ability_cell, of_tasks), "–" if state is None else numbers.grouped(state)])
    return markdown(heads, rows)


def symbols_right(seeds: Sequence[ResultRow]) -> list[float]:
    """Share of symbols that are right, of each seed."""
    return [row.values["ability"]["symbols_right"] for row in seeds]


def chance(atlas: Atlas, task: str) -> float:
    """Chance of a symbol, the same for all mixers."""
    return float(atlas.record.of(atlas.suites[task].name, ABILITY)[0].values["ability"]["symbols_chance"])


def ability_cell(seeds: Sequence[ResultRow]) -> str:
    """Share of symbols right with the range of the seeds, and a verdict: can, or no better than chance."""
    if not seeds:
        return "diverged"
    shares = symbols_right(seeds)
    verdict = ", **can**" if min(shares) >= CAN else ""
    if not any(map(better_than_chance, seeds)):
        verdict = f", {CANNOT}"
    spread = f" ± {50 * (max(shares) - min(shares)):.1f}" if len(shares) > 1 else ""
    return f"{100 * statistics.fmean(shares):.1f}{spread}{verdict}"


def better_than_chance(row: ResultRow) -> bool:
    """By symbols, counting an item as one draw."""
    found = row.values["ability"]
    expected = found["symbols_chance"]
    error = (expected * (1 - expected) / found["items"]) ** 0.5
    return bool(found["symbols_right"] > expected + AHEAD_OF_CHANCE * error)


def abilities_plot(atlas: Atlas) -> Plot:
    """A panel for each task: a point with its range and name for each mixer, and the line of chance."""
    panels = []
    for task, title in ABILITIES.items():
        by_mixer = {run.name: atlas.rows(task, run.name, ABILITY) for run in atlas.suites[task].runs}
        own = {name: seeds for name, seeds in by_mixer.items() if seeds}
        shares = [symbols_right(seeds) for seeds in own.values()]
        states = [seeds[0].values["state_bytes"] for seeds in own.values()]
        y, low, high = map(statistics.fmean, shares), map(min, shares), map(max, shares)
        points = Series(states, list(y), "", "o", 0, list(low), list(high), labels=list(own))
        x = Axis("bytes of state after an item", "log2", format=numbers.binary)
        share = Axis("share of symbols right", low=0.0, high=1.25)
        panels.append(Panel(x, share, [points], title, [Rule(chance(atlas, task), "chance")]))
    return Plot(panels, columns=2, size=(6.5, 5.0))


def followed(atlas: Atlas, mixer: str) -> dict[str, Mapping[str, Any]]:
    """The scores of a mixer's answers by type of instruction, and over all; empty if it was not asked."""
    row = atlas.row(TAUGHT, mixer, TAUGHT)
    return {} if row is None else {score["group"]: score for score in row.values["result"]}


def taught_table(atlas: Atlas) -> str:
    """A row for each mixer that was trained on conversations, the one that follows most instructions first."""
    scores = {run.name: found for run in atlas.suites[TAUGHT].runs if (found := followed(atlas, run.name))}
    types = [name for name in KINDS if any(name in found for found in scores.values())]
    first = next(iter(scores.values()), {})
    chances = [first.get(name, {}).get("chance") for name in types]
    rows = [["*chance*", "–", *("–" if each is None else f"{100 * each:.0f}" for each in chances), "–"]]
    for name in sorted(scores, key=lambda name: -scores[name][ALL_PROMPTS]["followed"]):
        whole = scores[name][ALL_PROMPTS]
        cells = [f"{100 * scores[name][each]['followed']:.0f}" for each in types]
        error = 100 * (whole["standard_error"] or 0.0)
        rows.append(
            [name, f"{100 * whole['followed']:.1f} ± {error:.1f}", *cells, numbers.binary(taught_state(atlas, name))]
        )
    return markdown(["mixer", "all, %", *types, "state"], rows)


def taught_state(atlas: Atlas, mixer: str) -> int:
    """Bytes of state behind a whole context of the models that were taught, in float32."""
    suite = atlas.suites[TAUGHT]
    model = suite.run_spec(suite.run(mixer), 0, Path("data")).model
    return model_cost(model).state_bytes(model.context_length)


def taught_plot(atlas: Atlas) -> Plot:
    """Instructions followed against bytes of state: a point with its standard error and name for each mixer."""
    names = [run.name for run in atlas.suites[TAUGHT].runs if followed(atlas, run.name)]
    whole = [followed(atlas, name)[ALL_PROMPTS] for name in names]
    y, errors = [each["followed"] for each in whole], [each["standard_error"] or 0.0 for each in whole]
    low, high = ([mean + sign * error for mean, error in zip(y, errors, strict=True)] for sign in (-1, 1))
    least, most = min(low, default=0.0), max(high, default=1.0)
    room = 0.2 * (most - least)  # for names above and below the points
    share = Axis("share of instructions followed", low=max(0.0, least - room), high=most + room)
    points = Series([taught_state(atlas, name) for name in names], y, "", "o", 0, low, high, labels=names)
    x = Axis("bytes of state behind a whole context", "log2", format=numbers.binary)
    return Plot([Panel(x, share, [points], "Instructions")], columns=1, size=(7.5, 5.0))


def origins_table(columns: Mapping[str, Mapping[str, ResultRow]]) -> str:
    """A row for each commit, day and machine, with the figures made there. columns: rows by column and mixer."""
    held: dict[tuple[str, str, str], list[str]] = {}
    for column, rows in columns.items():
        by_origin: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for name, row in rows.items():
            by_origin[origin_cells(row.origin)].append(name)
        most = max(by_origin, key=lambda origin: len(by_origin[origin]), default=None)
        for origin, names in by_origin.items():
            all_names = "all" if len(by_origin) == 1 else "all others" if origin == most else ", ".join(names)
            held.setdefault(origin, []).append(f"{column}: {all_names}")
    lines = ["| commit | day | processor | figures |", "|---|---|---|---|"]
    return "\n".join(lines + [f"| {' | '.join(origin)} | {'; '.join(figures)} |" for origin, figures in held.items()])


def origin_cells(origin: Mapping[str, Any]) -> tuple[str, str, str]:
    """Commit (or the one that brought the figure into the record), day, processor and whether it has AMX."""
    commit = origin.get("commit") or f"unknown; recorded in {origin.get('recorded') or 'unknown'}"
    amx = {True: ", AMX", False: ", no AMX", None: ""}[origin.get("amx")]
    return commit, origin.get("date") or "unknown", f"{origin.get('processor') or 'unknown'}{amx}"


def by_seed(atlas: Atlas, suite: str, title: str, measure: str = LIKELIHOOD) -> dict[str, dict[str, ResultRow]]:
    """The first seed of each mixer, and the others as a column of their own if they have other origins."""
    first, more = {}, {}
    for run in atlas.suites[suite].runs:
        seeds = atlas.rows(suite, run.name, measure)
        first |= {run.name: seeds[0]} if seeds else {}
        more |= {run.name if len(seeds) == 2 else f"{run.name} with seed {row.seed}": row for row in seeds[1:]}
        if len({origin_cells(row.origin) for row in seeds[1:]}) == 1:
            more = {name: row for name, row in more.items() if not name.startswith(f"{run.name} with seed")}
            more[run.name] = seeds[1]
    same = all(
        name in first and origin_cells(first[name].origin) == origin_cells(row.origin) for name, row in more.items()
    )
    return {title: first} if same else {title: first, f"{title}, more seeds": more}


def quality_columns(atlas: Atlas) -> dict[str, dict[str, ResultRow]]:
    """The rows behind the first table, by column and mixer."""
    columns: dict[str, dict[str, ResultRow]] = {}
    for text, title in TEXTS.items():
        columns |= by_seed(atlas, text, title)
        times = {name: atlas.timed(text, name) for name in atlas.models}
        columns[f"{title}, attention's time"] = {name: row for name, row in times.items() if row is not None}
    timed = [(SPEED_SUITE, measure, title) for measure, (title, _) in SPEEDS.items()]
    for suite, measure, title in (*timed, (STORIES, NAME_RECALL, "name recall")):
        rows = {name: atlas.row(suite, name, measure) for name in atlas.models}
        columns[title] = {name: row for name, row in rows.items() if row is not None}
    counted = {title: atlas.row(text, "n-gram") for text, title in TEXTS.items()}
    return columns | {"n-gram": {title: row for title, row in counted.items() if row is not None}}


def timed_on(atlas: Atlas) -> str:
    """A sentence about the processors that the two speeds were measured on, as far as they were."""
    processors = {}
    for measure in SPEEDS:
        rows = [row for name in atlas.models if (row := atlas.row(SPEED_SUITE, name, measure)) is not None]
        processors[measure] = " and ".join(dict.fromkeys(origin_cells(row.origin)[2] for row in rows))
    training, decoding = (processors[measure] or "none yet" for measure in (TRAINING_SPEED, DECODING_SPEED))
    if training == decoding:
        return f"training and decoding were timed on {training}."
    return (
        f"decoding was timed on {decoding}; training, whose times decide the steps of attention's time, on {training}."
        " Figures of a column can be compared with each other, not with those of the other."
    )


def missing_speeds(atlas: Atlas) -> dict[str, list[str]]:
    """Mixers whose speed is missing, or of another model than today's, by the title of the speed."""
    suite, found = atlas.suites[SPEED_SUITE], dict[str, list[str]]()
    inputs_by_measure = {TRAINING_SPEED: training_speed_inputs, DECODING_SPEED: decoding_speed_inputs}
    for measure, (title, _) in SPEEDS.items():
        for run in suite.runs:
            row = atlas.row(SPEED_SUITE, run.name, measure)
            inputs = inputs_by_measure[measure](suite.run_spec(run, 0, Path("data")))
            if row is None or row.outdated_by(inputs):
                found.setdefault(title, []).append(run.name)
    return found


def outdated(atlas: Atlas, keys: Sequence[str]) -> str:
    """A line about results that are missing, or of another model or recipe than today's.

    A change of a text is noticed only by a training, which has its files.
    """
    found: dict[str, list[str]] = {}
    for key in keys:
        suite = atlas.suites[key]
        measure = ABILITY if key in ABILITIES else {STORIES: NAME_RECALL}.get(key, LIKELIHOOD)
        for run in suite.runs:
            inputs = inputs_of(suite.run_spec(run, 0, Path("data")), None)
            rows = atlas.rows(key, run.name, measure)
            missing = not rows and run.name != suite.equal_time_as
            if missing or any(row.outdated_by(inputs) for row in rows):
                found.setdefault(key, []).append(run.name)
    found |= missing_speeds(atlas) if SPEED_SUITE in keys else {}
    if not found:
        return "All results are of today's models and recipes."
    named = "; ".join(f"{key}: {', '.join(names)}" for key, names in found.items())
    return f"Missing, or of other models or recipes than today's, so that the next call makes them: {named}."


def write_page(record: ResultTable, page: Path = PAGE) -> None:
    """Write the page, and its plots beside it."""
    atlas = Atlas(record)
    speeds = {name: atlas.speed(name, TRAINING_SPEED) for name in atlas.ranked()}
    spent_us = {name: 1e6 / speed for name, speed in speeds.items() if speed is not None}
    time_plot = scattered(atlas, list(spent_us), "microseconds of training a token", lambda name: spent_us[name])
    time_plot.write(page.with_name("atlas-time.png"))
    state_plot = scattered(
        atlas, atlas.ranked(), "KiB of state at 65,536 tokens", lambda name: atlas.state_bytes[name][1] / 1024
    )
    state_plot.write(page.with_name("atlas-state.png"))
    abilities_plot(atlas).write(page.with_name("atlas-abilities.png"))
    taught_plot(atlas).write(page.with_name("atlas-instructions.png"))
    counted = {title: atlas.row(text, "n-gram") for text, title in TEXTS.items()}
    known = {title: row for title, row in counted.items() if row is not None}
    tokens = {}
    for key in (SPEED_SUITE, STORIES, TAUGHT):
        run = atlas.suites[key].run_spec(atlas.suites[key].runs[0], 0, Path("data")).resolved()
        tokens[key] = run.steps * run.training.batch_size * run.model.context_length
    suites = [atlas.suites[task] for task in ABILITIES]
    seeds = sorted({len(suite.seeds) for suite in suites})
    ability_columns: dict[str, dict[str, ResultRow]] = {}
    for task, title in ABILITIES.items():
        ability_columns |= by_seed(atlas, task, title, ABILITY)
    text = (
        (HERE / "page.md")
        .read_text(encoding="utf-8")
        .format(
            table=quality_table(atlas),
            noise=f"{noise(atlas):.3f}",
            order=next(iter(known.values())).values["order"],
            counted=" and ".join(f"{row.values['bits_per_byte']:.3f} on {title}" for title, row in known.items()),
            tokens=numbers.grouped(tokens[SPEED_SUITE]),
            timed_on=timed_on(atlas),
            story_tokens=numbers.grouped(tokens[STORIES]),
            origins=origins_table(quality_columns(atlas)),
            outdated=outdated(atlas, [key for key in atlas.suites if key not in (*ABILITIES, TAUGHT)]),
            abilities_table=abilities_table(atlas),
            can=f"{CAN:.0%}",
            cannot=CANNOT,
            tasks="; ".join(suite.name for suite in suites),
            steps=" or ".join(
                numbers.grouped(steps) for steps in sorted({suite.training["steps"] for suite in suites})
            ),
            seeds=" or ".join(map(str, seeds)),
            abilities_origins=origins_table(ability_columns),
            abilities_outdated=outdated(atlas, list(ABILITIES)),
            taught_table=taught_table(atlas),
            taught_tokens=numbers.grouped(tokens[TAUGHT]),
            conversations=numbers.grouped(atlas.suites[TAUGHT].text.instructions or 0),
            taught_origins=origins_table(by_seed(atlas, TAUGHT, "instructions", TAUGHT)),
            taught_outdated=outdated(atlas, [TAUGHT]),
        )
    )
    write_text(page, text)


def write_articles(file: Path) -> Path:
    """Write WikiText-2 as JSON lines, one article in each: articles begin with ` = Title = `; returns the new file."""
    parts = re.split(r"(?m)^(?= = [^=].* = $)", file.read_text(encoding="utf-8"))
    lines = [json.dumps({"text": part.strip()}, ensure_ascii=False) + "\n" for part in parts if part.strip()]
    path = file.with_name("wikitext2.jsonl")
    write_text(path, "".join(lines))
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--articles", type=Path, metavar="FILE", help="write the articles of WikiText-2 beside FILE")
    arguments = parser.parse_args()
    if arguments.articles is not None:
        print(write_articles(arguments.articles))
    else:
        write_page(ResultTable(RECORD))
