"""Suites of tasks, YAML files that say how tasks are prompted, scored and averaged; items are files of the user."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from linnet.core.bounds import MAX_TASK_SHOTS
from linnet.core.errors import UserError, did_you_mean, printable
from linnet.core.spec import Spec, read_yaml
from linnet.evaluation.tasks.items import ScoreName, TaskItem, parse_item, parse_minimal_pair, read_rows

SUITES = Path(__file__).parent / "suites"

SHOTS_FILE = "{name}_train.jsonl"
"""The file with the examples of a task, beside its items; without it, examples are the first other items."""

MINIMAL_PAIRS, ABILITIES, INSTRUCTIONS = "minimal-pairs", "abilities", "instructions"
"""Suites without a description: of one file, and of generated questions (`evaluation.abilities`, `.instructions`)."""

PHENOMENON = "UID"
"""The field of minimal pairs that groups rows into tasks, if they have it; BLiMP's name."""

AVERAGE = "mean"
"""Name of the average over all phenomena."""


class TaskSpec(Spec):
    """One task of a suite.

    context: the prompt before each choice, with `{field}` for a field of the row; None if rows have `contexts`.
    choices: the choices of every row; None if each row has its own. shots: a fixed number of examples before each item,
    which overrides the requested number.
    """

    name: str = Field(pattern=r"^[^/]+$")
    context: str | None = None
    choices: list[str] | None = Field(None, min_length=2)
    score: ScoreName
    shots: int | None = Field(None, ge=0, le=MAX_TASK_SHOTS)


class SuiteSpec(Spec):
    """Tasks and named averages of their scores. shots: default number of examples before each item."""

    name: str
    tasks: list[TaskSpec] = Field(min_length=1)
    averages: dict[str, list[str]] = Field(default_factory=dict)
    shots: int = Field(0, ge=0, le=MAX_TASK_SHOTS)

    @model_validator(mode="after")
    def _averages_of_tasks(self) -> Self:
        known = {task.name for task in self.tasks}
        for average, names in self.averages.items():
            if not names or not known.issuperset(names):
                raise ValueError(f"averages.{average}: {names}: expected some of {', '.join(sorted(known))}")
        return self


@dataclass(frozen=True)
class SuiteTask:
    """A task with its items in order, and the score that counts (the harness's tasks have scores of any name).

    shots: examples before each item. shots_from: the name of the file that they are from; of a task of the harness,
    where the harness takes them from.
    """

    name: str
    score: ScoreName | str
    items: Sequence[TaskItem]
    shots: int = 0
    shots_from: str | None = None
    shots_of_harness: bool = False


@dataclass(frozen=True)
class TaskSuite:
    """Tasks, and the names of the tasks of each average. missing: files of tasks that the user does not have."""

    name: str
    tasks: Sequence[SuiteTask]
    averages: dict[str, list[str]]
    missing: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        """Names of the tasks and averages."""
        return [*(task.name for task in self.tasks), *self.averages]


def suite_names() -> list[str]:
    """The suites that linnet contains."""
    return sorted(path.stem for path in SUITES.glob("*.yaml"))


def suite_spec(name: str) -> SuiteSpec:
    """A suite that linnet contains; `UserError` for an unknown name."""
    if name not in suite_names():
        if name in (ABILITIES, INSTRUCTIONS):
            raise UserError(f"its questions are generated, by `evaluation.{name}`", field="suite", value=name)
        known = [*suite_names(), MINIMAL_PAIRS, ABILITIES, INSTRUCTIONS]
        raise UserError(did_you_mean(name, known, f"expected one of {', '.join(known)}"), field="suite", value=name)
    path = SUITES / f"{name}.yaml"
    return SuiteSpec.parse(read_yaml(path), str(path))


def load_tasks(
    suite: str | None,
    files: str | Path | None,
    task_file: str | Path | None = None,
    shots: int | None = None,
    limit: int | None = None,
) -> TaskSuite:
    """The tasks of a suite with `files`, or of a `task_file`; `UserError` if the arguments do not fit each other."""
    if (suite is None) == (task_file is None):
        raise UserError("expected one of `suite`, with `files`, and `task_file`")
    if task_file is not None:
        if files is not None:
            raise UserError("goes with a suite; the rows are in `task_file`", field="files", value=files)
        return load_task_file(Path(task_file), shots, limit)
    assert suite is not None
    spec = None if suite == MINIMAL_PAIRS else suite_spec(suite)
    if files is None:
        accepted = "a file of pairs" if spec is None else "a folder with a file NAME.jsonl for each task"
        raise UserError("`files` is missing", field="suite", value=suite, accepted=accepted)
    if spec is not None:
        return load_suite(spec, Path(files), shots, limit)
    if shots:
        raise UserError("minimal pairs have no examples; leave it out", field="shots", value=shots)
    return load_minimal_pairs(Path(files), limit)


def load_suite(spec: SuiteSpec, folder: Path, shots: int | None = None, limit: int | None = None) -> TaskSuite:
    """The tasks of a suite whose files, `NAME.jsonl`, are in the folder; `UserError` if there are none.

    shots: examples before each item; None: as the suite says. limit: the first `limit` items of each task. An average
    with a missing task is left out.
    """
    shots = spec.shots if shots is None else shots
    missing = [f"{task.name}.jsonl" for task in spec.tasks if not (folder / f"{task.name}.jsonl").exists()]
    if len(missing) == len(spec.tasks):
        raise UserError(f"no {', '.join(missing)}; suite {spec.name} needs them", field="files", value=str(folder))
    tasks = []
    for task in spec.tasks:
        if f"{task.name}.jsonl" not in missing:
            own_shots = shots if task.shots is None else task.shots
            tasks.append(_read_task(task, folder / f"{task.name}.jsonl", own_shots, limit))
    known = {task.name for task in tasks}
    averages = {name: names for name, names in spec.averages.items() if known.issuperset(names)}
    return TaskSuite(spec.name, tasks, averages, missing)


def load_task_file(path: Path, shots: int | None = None, limit: int | None = None) -> TaskSuite:
    """Any multiple choice: rows of `context`, `choices` and `gold`; or `labels`, or `contexts` and `continuation`.

    The names of published sets are accepted too: `question`, `options`, `answer`.
    """
    spec = TaskSpec(name=printable(path.stem), context="{context}", score="acc_bytes")
    task = _read_task(spec, path, shots or 0, limit, any_names=True)
    several = any(sum(item.labels) > 1 for item in task.items)
    return TaskSuite(path.stem, [replace(task, score="mc2") if several else task], {})


def load_minimal_pairs(path: Path, limit: int | None = None) -> TaskSuite:
    """Rows of `sentence_good` and `sentence_bad`; each value of the field `UID` is a task of its own.

    `UserError` for an invalid row, and for a value that is the name of the average.
    """
    tasks: dict[str, list[TaskItem]] = {}
    for place, row in read_rows(path):
        tasks.setdefault(str(row.get(PHENOMENON, path.stem)), []).append(parse_minimal_pair(row, place))
    names = list(tasks)
    if AVERAGE in names and len(names) > 1:
        problem = "is the name of the average of all; expected another name"
        raise UserError(f"{path}: {PHENOMENON}: {AVERAGE}: {problem}")
    found = [SuiteTask(name, "acc", items[:limit]) for name, items in tasks.items()]
    return TaskSuite(MINIMAL_PAIRS, found, {AVERAGE: names} if len(names) > 1 else {})


def _read_task(spec: TaskSpec, path: Path, shots: int, limit: int | None, any_names: bool = False) -> SuiteTask:
    """A task with the first rows of `NAME_train.jsonl` as examples, or without that file the first other items."""

    def read_items(file: Path, count: int | None, required: int = 1) -> list[TaskItem]:
        rows = islice(read_rows(file), count)
        found = [parse_item(spec.name, spec.context, row, place, spec.choices, any_names) for place, row in rows]
        if len(found) < required:
            raise UserError(f"{file}: {len(found)} rows; expected at least {required} for {shots} examples")
        return found

    items = read_items(path, limit)
    if not shots:
        return SuiteTask(spec.name, spec.score, items)
    shots_path = path.with_name(SHOTS_FILE.format(name=spec.name))
    separate = shots_path.exists()
    examples = read_items(shots_path, shots, shots) if separate else read_items(path, shots + 1, shots + 1)
    prompted = []
    for number, item in enumerate(items):
        others = examples if separate else [one for index, one in enumerate(examples) if index != number]
        # Each example is written with its right choice, with a blank line after it.
        solved = (one.pairs[one.labels.index(1)] for one in others[:shots])
        before = "".join(f"{context}{choice}\n\n" for context, choice in solved)
        pairs = tuple((before + context, continuation) for context, continuation in item.pairs)
        prompted.append(replace(item, pairs=pairs))
    return SuiteTask(spec.name, spec.score, prompted, shots, (shots_path if separate else path).name)
