"""The atlas's second part: every mixer trained on recall, copying and state tracking, and what became of it.

Each training lies in a folder of its own, two at a time with a thread each: the same call goes on.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from provenance import hashed, here, of_run
from record import AbilityRecord, Figure
from wanted import Wanted, to_train, train

from linnet.core.spec import read_yaml
from linnet.experiments.comparison.abilities import ability_figures
from linnet.experiments.comparison.parts import prepare_parts
from linnet.experiments.comparison.spec import ComparisonSpec
from linnet.experiments.runner import Runner
from linnet.model.store import RUNS
from linnet.training.runs import read_run_folder

HERE = Path(__file__).parent.parent
TASKS = {"recall": "recall", "copying": "copying", "tracking": "following S3"}
"""Descriptions `experiments/NAME.yaml`, and what they are called in a table."""

AT_ONCE = 2
KEPT = ("symbols_right", "symbols_chance", "right", "chance", "items", "above_chance")

Job = tuple[str, Wanted, Path]
"""A task, what is trained, and the task's data."""

Found = tuple[Figure, Figure, Mapping[str, Any]] | None
"""The figures of a seed, those that all seeds share, and the origin; None where it diverged."""


def described(task: str) -> dict[str, Any]:
    """The task's comparison, with one thread for each training."""
    plain = dict(read_yaml(HERE / f"{task}.yaml"))
    return {**plain, "training": {**plain["training"], "threads": 1}}


@cache
def spec_of(task: str) -> ComparisonSpec:
    """The same, checked."""
    return ComparisonSpec.parse(described(task), task)


def text_hash(task: str) -> str:
    """Of what is asked, which decides every item, and of the tokenizer."""
    spec = spec_of(task)
    return hashed([spec.text.model_dump(mode="json"), spec.tokenizer.model_dump(mode="json")])


def carry_out(job: Job) -> Found:
    """One training, from where it stopped, and what it can."""
    task, one, data = job
    origin = train(one, Runner(print, "python experiments/atlas --abilities"), here())
    if origin is None:
        return None
    found = ability_figures(spec_of(task).text, 1, one.folder, data)
    parameters = read_run_folder(one.folder).summary["parameters"]
    seed = {"seed": one.seed, **{name: found["ability"][name] for name in KEPT}}
    return seed, {"state_bytes": found["state_bytes"], "parameters": parameters}, origin


@dataclass(frozen=True)
class Abilities:
    """The record, the folder of the work, and who hears of it."""

    record: AbilityRecord
    work: Path
    say: Callable[[str], None]

    def train(self) -> None:
        """What the record lacks, or has of another description, two processes at a time; the first error ends it.

        The record is written after each.
        """
        self.describe()
        jobs = list(self.jobs())
        with ProcessPoolExecutor(AT_ONCE, get_context("spawn")) as pool:
            for job, found in zip(jobs, pool.map(carry_out, jobs), strict=True):
                self.keep(job, found)

    def jobs(self) -> Iterator[Job]:
        """Whole seeds first: what is stopped early has every task once."""
        wanted = {task: self.wanted(task) for task in TASKS}
        of_task = {task: to_train(spec_of(task).name, all_of_it, self.say) for task, all_of_it in wanted.items()}
        data = {task: self._prepared(task) for task, some in of_task.items() if some}
        places = {task: {seed: place for place, seed in enumerate(spec_of(task).seeds)} for task in TASKS}
        found = [(task, one, data[task]) for task, some in of_task.items() for one in some]
        yield from sorted(found, key=lambda job: places[job[0]][job[1].seed])

    def wanted(self, task: str) -> list[Wanted]:
        """Every mixer with every seed."""
        spec, text = spec_of(task), text_hash(task)
        found = []
        for seed in spec.seeds:
            for each in spec.runs:
                run = spec.run_of(each, seed, self._data(task) / "part-1").resolved()
                known = self.record.seed(task, each.name, seed)
                found.append(Wanted(each.name, seed, run, of_run(run, text), known, self.work / task / RUNS))
        return found

    def keep(self, job: Job, found: Found) -> None:
        """What a training came to; nothing of one that diverged."""
        task, one, _ = job
        if found is not None:
            seed, of_mixer, origin = found
            self.record.keep_seed(task, one.mixer, {**seed, "made": self.record.made(one.of, origin)}, of_mixer)
            self.record.write()
            self.say(f"{task}, {one.name}: done")

    def describe(self) -> None:
        """Each task in short, and its mixers in their order."""
        for task in TASKS:
            mixers = [self.record.mixer(task, run.name) for run in spec_of(task).runs]
            plain = described(task)
            short = {"name": plain["name"], "steps": plain["training"]["steps"], "mixers": mixers}
            self.record.content["tasks"][task] = short

    def _prepared(self, task: str) -> Path:
        (data,) = prepare_parts(spec_of(task), self._data(task))
        return data

    def _data(self, task: str) -> Path:
        return self.work / task / f"data-{text_hash(task)}"
