"""Suites: which tasks, asked how, scored how, averaged how. They are YAML files; the items are the user's files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from linnet.core.errors import UserError
from linnet.core.guess import did_you_mean
from linnet.core.spec import Spec, read_yaml
from linnet.evaluation.tasks.items import ScoreName, TaskItem
from linnet.evaluation.tasks.row_files import parse_item, parse_minimal_pair, read_rows

SUITES = Path(__file__).parent / "suites"

MOST_SHOTS = 100
SHOTS_FILE = "{name}_train.jsonl"
"""Where the examples of a task lie, beside its items; without it they are the first other items."""

MINIMAL_PAIRS, ABILITIES = "minimal-pairs", "abilities"
"""Suites without a description: of one file, and of generated questions (`evaluation.abilities`)."""

PHENOMENON = "UID"
"""The field by which rows of minimal pairs are parted into tasks, where they have it; BLiMP's name."""

AVERAGE = "mean"
"""Of all phenomena."""

TASK_FILE_CONTEXT = "{context}"


class TaskSpec(Spec):
    """One task of a suite.

    context: what is read before each choice, with `{field}` for a field of the row; None where rows have `contexts`.
    choices: those of every row; None where each has its own. shots: so many examples before each item, whatever is
    asked for.
    """

    name: str = Field(pattern=r"^[^/]+$")
    context: str | None = None
    choices: list[str] | None = Field(None, min_length=2)
    score: ScoreName
    shots: int | None = Field(None, ge=0, le=MOST_SHOTS)


class SuiteSpec(Spec):
    """Tasks, and the means of their scores by name. shots: examples before each item, where nothing else is said."""

    name: str
    tasks: list[TaskSpec] = Field(min_length=1)
    averages: dict[str, list[str]] = Field(default_factory=dict)
    shots: int = Field(0, ge=0, le=MOST_SHOTS)

    @model_validator(mode="after")
    def _averages_of_tasks(self) -> Self:
        known = {task.name for task in self.tasks}
        for average, names in self.averages.items():
            if not names or not known.issuperset(names):
                raise ValueError(f"averages.{average}: {names}: expected some of {', '.join(sorted(known))}")
        return self


@dataclass(frozen=True)
class SuiteTask:
    """A task that can be asked: its items, in order, and the score that counts, which of the harness's tasks may have
    any name.

    shots: examples before each item. shots_from: the name of the file that they are from.
    """

    name: str
    score: ScoreName | str
    items: Sequence[TaskItem]
    shots: int = 0
    shots_from: str | None = None


@dataclass(frozen=True)
class Suite:
    """Tasks, and which of them each average takes. missing: files of tasks that the user has not."""

    name: str
    tasks: Sequence[SuiteTask]
    averages: dict[str, list[str]]
    missing: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        """Of its tasks and averages."""
        return [*(task.name for task in self.tasks), *self.averages]


def suite_names() -> list[str]:
    """The suites that are shipped."""
    return sorted(path.stem for path in SUITES.glob("*.yaml"))


def suite_spec(name: str) -> SuiteSpec:
    """A shipped suite; `UserError` for an unknown name."""
    if name not in suite_names():
        if name == ABILITIES:
            raise UserError("its questions are generated, by `evaluation.abilities`", field="suite", value=name)
        known = [*suite_names(), MINIMAL_PAIRS, ABILITIES]
        raise UserError(did_you_mean(name, known, f"expected one of {', '.join(known)}"), field="suite", value=name)
    path = SUITES / f"{name}.yaml"
    return SuiteSpec.parse(read_yaml(path), str(path))


def load_suite(spec: SuiteSpec, folder: Path, shots: int | None = None, limit: int | None = None) -> Suite:
    """The tasks of a suite whose files, `NAME.jsonl`, lie in the folder; `UserError` where there is none of them.

    shots: examples before each item; those of the suite if not given. limit: so many items of each task, the first. An
    average of which a task is missing is left out.
    """
    shots = spec.shots if shots is None else shots
    missing = [f"{task.name}.jsonl" for task in spec.tasks if not (folder / f"{task.name}.jsonl").exists()]
    if len(missing) == len(spec.tasks):
        raise UserError(f"no {', '.join(missing)}; suite {spec.name} needs them", field="files", value=str(folder))
    tasks = [_task(task, folder, shots, limit) for task in spec.tasks if f"{task.name}.jsonl" not in missing]
    known = {task.name for task in tasks}
    return Suite(spec.name, tasks, {name: of for name, of in spec.averages.items() if known.issuperset(of)}, missing)


def load_task_file(path: Path, shots: int | None = None, limit: int | None = None) -> Suite:
    """Any multiple choice: rows of `context`, `choices` and `gold`; or `labels`, or `contexts` and `continuation`."""
    spec = TaskSpec(name=path.stem, context=TASK_FILE_CONTEXT, score="acc_bytes")
    task = _read(spec, path, shots or 0, limit)
    several = any(sum(item.labels) > 1 for item in task.items)
    return Suite(path.stem, [replace(task, score="mc2") if several else task], {})


def load_minimal_pairs(path: Path, limit: int | None = None) -> Suite:
    """Rows of `sentence_good` and `sentence_bad`; each value of a field `UID` is a task of its own.

    `UserError` for a row that is none, and for a value that the average has for its name.
    """
    tasks: dict[str, list[TaskItem]] = {}
    for place, row in read_rows(path):
        tasks.setdefault(str(row.get(PHENOMENON, path.stem)), []).append(parse_minimal_pair(row, place))
    names = list(tasks)
    if AVERAGE in names and len(names) > 1:
        raise UserError(f"{path}: {PHENOMENON}: {AVERAGE}: is what the average of all is called; expected another name")
    found = [SuiteTask(name, "acc", items[:limit]) for name, items in tasks.items()]
    return Suite(MINIMAL_PAIRS, found, {AVERAGE: names} if len(names) > 1 else {})


def _task(spec: TaskSpec, folder: Path, shots: int, limit: int | None) -> SuiteTask:
    return _read(spec, folder / f"{spec.name}.jsonl", shots if spec.shots is None else spec.shots, limit)


def _read(spec: TaskSpec, path: Path, shots: int, limit: int | None) -> SuiteTask:
    """With the first rows of `NAME_train.jsonl` as examples; where there is none, with the first other ones of its own
    file.
    """
    items = _items(spec, path, limit)
    if not shots:
        return SuiteTask(spec.name, spec.score, items)
    apart = path.with_name(SHOTS_FILE.format(name=spec.name))
    known = apart.exists()
    first = _items(spec, apart, shots, shots) if known else _items(spec, path, shots + 1, shots + 1)
    asked = []
    for number, item in enumerate(items):
        others = first if known else [one for place, one in enumerate(first) if place != number]
        asked.append(_with_shots(item, others[:shots]))
    return SuiteTask(spec.name, spec.score, asked, shots, (apart if known else path).name)


def _items(spec: TaskSpec, path: Path, limit: int | None, least: int = 1) -> list[TaskItem]:
    rows = islice(read_rows(path), limit)
    found = [parse_item(spec.name, spec.context, row, place, spec.choices) for place, row in rows]
    if len(found) < least:
        raise UserError(f"{path}: {len(found)} rows; expected at least {least} for as many examples")
    return found


def _with_shots(item: TaskItem, examples: Sequence[TaskItem]) -> TaskItem:
    """With the examples, rightly answered, before its context, a blank line behind each."""
    before = "".join(f"{''.join(example.pairs[example.labels.index(1)])}\n\n" for example in examples)
    return replace(item, pairs=tuple((before + context, continuation) for context, continuation in item.pairs))
