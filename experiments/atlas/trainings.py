"""The trainings of the atlas: one comparison on each text, and those that follow from what it found.

Each is a comparison in a folder of its own: the same call goes on where it was, and `linnet compare FOLDER` reads it.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import linnet
from linnet.core.files import write_text
from linnet.core.spec import read_yaml
from linnet.experiments.comparison.spec import ComparisonSpec
from linnet.model.spec import ModelSpec
from linnet.training.spec import RunSpec

DESCRIPTION = Path(__file__).parent.parent / "atlas.yaml"
BEST, MORE_SEEDS = 6, (1, 2)
STORIES = {"stories": 6000, "names": 3}


@dataclass(frozen=True)
class Text:
    """One of the texts: its folder's name, its name for people, and what a comparison says of it."""

    key: str
    title: str
    described: Mapping[str, Any]
    vocabulary: int = 2048
    steps: int | None = None
    """More than the comparison has."""


def texts(files: Path, work: Path) -> list[Text]:
    """TinyStories and WikiText-2 from a folder of `files`, and the built-in stories."""
    return [
        Text("tinystories", "TinyStories", {"files": [str(files / "tinystories_train.txt")]}),
        Text("wikitext2", "WikiText-2", {"files": [str(articles(files / "wikitext2-train.txt", work))]}),
        Text("stories", "the built-in stories", STORIES, vocabulary=1024, steps=700),
    ]


def articles(file: Path, work: Path) -> Path:
    """WikiText-2 as JSON lines, an article in each: they begin with ` = Title = `. Made once."""
    made = work / "wikitext2.jsonl"
    if not made.is_file():
        parts = re.split(r"(?m)^(?= = [^=].* = $)", file.read_text(encoding="utf-8"))
        found = [part.strip() for part in parts if part.strip()]
        work.mkdir(parents=True, exist_ok=True)
        write_text(made, "".join(json.dumps({"text": part}, ensure_ascii=False) + "\n" for part in found))
    return made


def common(text: Text) -> dict[str, Any]:
    """The atlas's comparison, on that text."""
    plain = dict(read_yaml(DESCRIPTION))
    model = {**plain["model"], "vocab_size": text.vocabulary}
    tokenizer = {**plain["tokenizer"], "vocab_size": text.vocabulary}
    training = {**plain["training"], **({"steps": text.steps} if text.steps else {})}
    return {**plain, "text": dict(text.described), "tokenizer": tokenizer, "model": model, "training": training}


def runs_of(text: Text, data: Path) -> dict[str, RunSpec]:
    """Every run of a text's comparison, resolved, with its first seed. data: the tokens made of the text."""
    spec = ComparisonSpec.parse(common(text), "atlas")
    return {run.name: spec.run_of(run, spec.seeds[0], data).resolved() for run in spec.runs}


def models_of(text: Text) -> dict[str, ModelSpec]:
    """The description of every mixer's model."""
    return {name: run.model for name, run in runs_of(text, Path("no data")).items()}


def equal_tokens(text: Text, work: Path, without: Collection[str]) -> None:
    """Every mixer, one seed, but for those that are known already."""
    plain = common(text)
    carry_out({**plain, "runs": [run for run in plain["runs"] if run["name"] not in without]}, work / text.key)


def more_seeds(text: Text, work: Path, known: Mapping[str, Sequence[float]]) -> None:
    """The best six of a text with two more seeds. known: bits per byte of each mixer by seed."""
    plain = common(text)
    best = sorted(known, key=lambda name: known[name][0])[:BEST]
    runs = [run for run in plain["runs"] if run["name"] in best and len(known[run["name"]]) == 1]
    carry_out({**plain, "seeds": list(MORE_SEEDS), "runs": runs}, work / f"{text.key}-seeds")


def equal_time(text: Text, work: Path, seconds: Mapping[str, float], without: Collection[str]) -> None:
    """Every timed mixer but attention, and those that are known, for as long as attention's training takes.

    seconds: of a step of each, measured.
    """
    plain = common(text)
    steps = plain["training"]["steps"]
    runs = [run for run in plain["runs"] if run["name"] in seconds and run["name"] not in without]
    del plain["training"]["steps"]
    carry_out({**plain, "runs": list(shorter_or_longer(runs, steps, seconds))}, work / f"{text.key}-time")


def shorter_or_longer(runs: list[dict[str, Any]], steps: int, seconds: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """The runs with as many steps as go into the time of `steps` of attention."""
    for run in runs:
        if run["name"] != "attention":
            own = round(steps * seconds["attention"] / seconds[run["name"]])
            yield {**run, "set": {**run.get("set", {}), "training.steps": own}}


def carry_out(plain: dict[str, Any], folder: Path) -> None:
    """Train what is not trained yet; nothing is left to do where there are no runs."""
    if plain["runs"]:
        linnet.compare(plain, folder, print)
