"""The trainings of the atlas: every mixer on each text, the best with more seeds, all for attention's time, and names.

Each lies in a folder of its own below WORK/TEXT/runs: the same call goes on where it was, and
`linnet compare WORK/TEXT` reads them.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from provenance import hashed, of_run
from record import AtlasRecord, Figure
from wanted import Wanted, to_train, train

from linnet.core.checksum import digest
from linnet.core.files import sha256_of, write_text
from linnet.core.spec import read_yaml
from linnet.evaluation.text import evaluate_folder
from linnet.experiments.comparison.parts import prepare_parts
from linnet.experiments.comparison.spec import ComparisonSpec
from linnet.experiments.runner import Runner
from linnet.experiments.text import built_in_stories
from linnet.model.spec import ModelSpec
from linnet.model.store import RUNS
from linnet.training.spec import RunSpec

DESCRIPTION = Path(__file__).parent.parent / "atlas.yaml"
BEST, MORE_SEEDS = 6, (1, 2)
STORIES, STORIES_TITLE = {"stories": 6000, "names": 3}, "the built-in stories"
TITLES = {"tinystories": "TinyStories", "wikitext2": "WikiText-2"}

Measure = Callable[[Path, Path], Figure]
"""A trained model's figure, from its folder and that of the data."""


@dataclass(frozen=True)
class Text:
    """One of the texts: its folder's name, its name for people, and what a comparison says of it."""

    key: str
    title: str
    described: Mapping[str, Any]
    vocabulary: int = 2048
    steps: int | None = None
    """More than the comparison has."""
    at_hand: bool = True
    """Whether its files can be read."""

    @cached_property
    def hash(self) -> str | None:
        """Of the documents, wherever they lie, and of the tokenizer that is made of them; None: not at hand."""
        if not self.at_hand:
            return None
        described = {name: value for name, value in self.described.items() if name != "files"}
        content = [sha256_of(file) for file in self.described.get("files", [])] or [_stories_hash(described)]
        return hashed([described, content, self.spec.tokenizer.model_dump()])

    @cached_property
    def spec(self) -> ComparisonSpec:
        """The atlas's comparison, on this text."""
        return ComparisonSpec.parse(common(self), "atlas")

    @property
    def tokens(self) -> int:
        """That a training at equal tokens reads."""
        run = next(iter(runs_of(self).values()))
        return int(run.steps * run.training.batch_size * run.model.context_length)

    def runs(self, work: Path) -> Path:
        """The folder of its trainings."""
        return work / self.key / RUNS

    def data(self, work: Path) -> Path:
        """The folder of its tokens, there or not."""
        return self._data(work) / "part-1"

    def prepare(self, work: Path) -> Path:
        """Its tokens, made unless they are there."""
        (data,) = prepare_parts(self.spec, self._data(work))
        assert data == self.data(work)
        return data

    def _data(self, work: Path) -> Path:
        return work / self.key / f"data-{self.hash}"


def _stories_hash(described: Mapping[str, Any]) -> str:
    return digest(json.dumps(built_in_stories(described["stories"], described["names"])).encode())


def texts(files: Path, work: Path) -> list[Text]:
    """TinyStories and WikiText-2 from a folder of `files`, and the built-in stories."""
    at = {"tinystories": files / "tinystories_train.txt", "wikitext2": articles(files / "wikitext2-train.txt", work)}
    *compared, stories = titles()
    found = [replace(text, described={"files": [str(at[text.key])]}, at_hand=True) for text in compared]
    return [*found, replace(stories, at_hand=True)]


def titles() -> list[Text]:
    """The same without their files, for what can be told without them."""
    none = {"files": ["not at hand"]}
    compared = [Text(key, title, none, at_hand=False) for key, title in TITLES.items()]
    return [*compared, Text("stories", STORIES_TITLE, STORIES, vocabulary=1024, steps=700, at_hand=False)]


def articles(file: Path, work: Path) -> Path:
    """WikiText-2 as JSON lines, an article in each: they begin with ` = Title = `."""
    parts = re.split(r"(?m)^(?= = [^=].* = $)", file.read_text(encoding="utf-8"))
    found = [part.strip() for part in parts if part.strip()]
    work.mkdir(parents=True, exist_ok=True)
    write_text(made := work / "wikitext2.jsonl", "".join(_line(part) for part in found))
    return made


def _line(part: str) -> str:
    return json.dumps({"text": part}, ensure_ascii=False) + "\n"


def common(text: Text) -> dict[str, Any]:
    """The atlas's comparison, on that text."""
    plain = dict(read_yaml(DESCRIPTION))
    model = {**plain["model"], "vocab_size": text.vocabulary}
    tokenizer = {**plain["tokenizer"], "vocab_size": text.vocabulary}
    training = {**plain["training"], **({"steps": text.steps} if text.steps else {})}
    return {**plain, "text": dict(text.described), "tokenizer": tokenizer, "model": model, "training": training}


def runs_of(text: Text, data: Path = Path("no data"), seed: int = 0) -> dict[str, RunSpec]:
    """Every run of a text's comparison, resolved. data: the tokens made of the text."""
    return {run.name: text.spec.run_of(run, seed, data).resolved() for run in text.spec.runs}


def models_of(text: Text) -> dict[str, ModelSpec]:
    """The description of every mixer's model."""
    return {name: run.model for name, run in runs_of(text).items()}


@dataclass(frozen=True)
class Atlas:
    """The record, the folder of the work, and who trains."""

    record: AtlasRecord
    work: Path
    runner: Runner

    def equal_tokens(self, text: Text) -> None:
        """Every mixer, one seed."""
        self._make(f"{text.title}, equal tokens", text, self.seeds_wanted(text, runs_of(text), (0,)), self._keep_seed)

    def more_seeds(self, text: Text) -> None:
        """The best six of a text with two more seeds, and anew those that had them once."""
        wanted = self.seeds_wanted(text, self.best(text), MORE_SEEDS)
        self._make(f"{text.title}, more seeds", text, wanted, self._keep_seed)

    def best(self, text: Text) -> list[str]:
        """The best six by their first seed, and who has more seeds."""
        figures = {name: self.record.seeds(name, text.key) for name in runs_of(text)}
        there = [name for name, seeds in figures.items() if seeds]
        best = sorted(there, key=lambda name: float(figures[name][0]["bits_per_byte"]))[:BEST]
        return [name for name in there if name in best or len(figures[name]) > 1]

    def seeds_wanted(self, text: Text, names: Collection[str], seeds: Sequence[int]) -> list[Wanted]:
        """At equal tokens."""
        known = self.record
        return [
            self._wanted(text, name, seed, run, known.seed(name, text.key, seed))
            for seed in seeds
            for name, run in runs_of(text, text.data(self.work), seed).items()
            if name in names
        ]

    def equal_time(self, text: Text, seconds: Mapping[str, float]) -> None:
        """Every timed mixer but attention, for as long as attention's training takes. seconds: of a step of each."""
        wanted = list(self.time_wanted(text, seconds))
        self._make(f"{text.title}, attention's time", text, wanted, self._keep_timed)

    def time_wanted(self, text: Text, seconds: Mapping[str, float]) -> Iterator[Wanted]:
        """What a figure depends on is the recipe at equal tokens, and the steps that go into the time."""
        for name, run in runs_of(text, text.data(self.work)).items():
            if name != "attention" and {"attention", name} <= seconds.keys():
                assert run.training.steps is not None, "an unresolved run"
                steps = round(run.training.steps * seconds["attention"] / seconds[name])
                yield self._wanted(text, name, 0, run, self.record.timed(name, text.key), steps)

    def names(self, text: Text, measure: Measure) -> None:
        """Every mixer on the stories, and how often each that is trained names the right one again."""
        self._make(f"names on {text.title}", text, self.names_wanted(text), self._keep_names, measure)

    def names_wanted(self, text: Text) -> list[Wanted]:
        """Every mixer."""
        runs = runs_of(text, text.data(self.work)).items()
        return [self._wanted(text, name, 0, run, self.record.mixer(name).get("names")) for name, run in runs]

    def _wanted(
        self, text: Text, name: str, seed: int, run: RunSpec, known: Figure | None, steps: int | None = None
    ) -> Wanted:
        of = of_run(run, text.hash)
        if steps is not None:
            own = text.spec.run(name)
            longer = own.model_copy(update={"set": {**own.set, "training.steps": steps}})
            run = text.spec.run_of(longer, seed, run.data).resolved()
        return Wanted(name, seed, run, of, known, text.runs(self.work), steps)

    def _make(
        self,
        title: str,
        text: Text,
        wanted: Sequence[Wanted],
        keep: Callable[[Text, Wanted, Figure], None],
        measure: Measure | None = None,
    ) -> None:
        """What the record lacks, or has of another description; it is written after each."""
        for one in to_train(title, wanted, self.runner.say):
            data = text.prepare(self.work)
            if origin := train(one, self.runner, self.record.origin):
                figure = (measure or bits_per_byte)(one.folder, data)
                keep(text, one, {**figure, "made": self.record.made(one.of, origin)})
                self.record.write()

    def _keep_seed(self, text: Text, one: Wanted, figure: Figure) -> None:
        self.record.keep_seed(one.mixer, text.key, {"seed": one.seed, **figure})

    def _keep_timed(self, text: Text, one: Wanted, figure: Figure) -> None:
        self.record.keep_timed(one.mixer, text.key, {"steps": one.steps, **figure})

    def _keep_names(self, text: Text, one: Wanted, figure: Figure) -> None:
        self.record.mixer(one.mixer)["names"] = figure


def bits_per_byte(run: Path, data: Path) -> Figure:
    """Of the whole of the held-out text."""
    return {"bits_per_byte": evaluate_folder(run, data).figures()["bits_per_byte"]}
