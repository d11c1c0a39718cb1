"""Runs that exist already, side by side, by what they recorded: no model is read, nothing is trained."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linnet.core.checksum import read_checked_json
from linnet.core.errors import UserError
from linnet.experiments.comparison.figures import Breakdown, ComparedFigures, Findings, validation_curve
from linnet.experiments.comparison.kept import read_description, read_figures
from linnet.experiments.comparison.spec import DESCRIPTION, ComparedSpec, ComparisonSpec, run_folder
from linnet.experiments.side_by_side.record import Beside
from linnet.model.store import MODEL
from linnet.training.run_folder import CONFIG, FILES, RunFolder
from linnet.training.runs import FinishedRun, check_comparable, read_run_folder, runs_of

SEED_AT_THE_END = re.compile(r"([-_. ]*seed)?[-_. ]*\d+$")


@dataclass
class SeedGroup:
    """Runs that differ in their seeds alone. `origin` tells it from another of the same name.

    evaluations: of the whole held-out text, where a comparison made them; so is `beside`.
    """

    name: str
    origin: str
    runs: list[FinishedRun] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    broken_down: list[Breakdown] = field(default_factory=list)
    beside: Beside | None = None


@dataclass(frozen=True)
class Comparison:
    """What the folder of a comparison holds; `broken_down`: among runs that are not shown as well."""

    name: str
    groups: list[SeedGroup]
    broken_down: list[Breakdown]


def recorded(sources: Sequence[Path]) -> Findings:
    """The runs in these folders: of runs, of comparisons, and those that hold `runs/`.

    `UserError` naming one that is missing, not finished, or whose loss is not comparable with the others'.
    """
    for source in sources:
        if not source.is_dir():
            raise UserError(f"{source}: no such folder; expected the folder of a run or of a comparison")
    comparisons = {source: _comparison(source) for source in sources if (source / DESCRIPTION).is_file()}
    alone = _alone([path for source in sources if source not in comparisons for path in runs_of(source)])
    if not comparisons and not alone:
        raise UserError(f"{sources[0]}: no run in it")
    _check_comparable(list(comparisons.values()), alone)
    groups = [group for one in comparisons.values() for group in one.groups] + alone
    name = comparisons[sources[0]].name if len(sources) == len(comparisons) == 1 else "runs compared"
    broken_down = [each for one in comparisons.values() for each in one.broken_down]
    return Findings(name, _figures(groups), broken_down)


def _check_comparable(comparisons: Sequence[Comparison], alone: Sequence[SeedGroup]) -> None:
    """One run for each comparison: its own are measured on the same documents, whatever part they learned from."""
    of_each = [[run for group in one.groups for run in group.runs][:1] for one in comparisons]
    check_comparable([run for runs in [*of_each, *(group.runs for group in alone)] for run in runs])


def _figures(groups: Sequence[SeedGroup]) -> list[ComparedFigures]:
    """By the whole held-out text where that is known of all, else by what all were measured on while they trained."""
    whole = all(len(group.evaluations) == len(group.runs) for group in groups)
    named_so = Counter(group.name for group in groups)
    return [
        ComparedFigures.of(
            group.name if named_so[group.name] == 1 else group.origin,
            group.runs,
            group.evaluations if whole else [_figures_of(run.summary["validation"]) for run in group.runs],
            group.broken_down,
            group.beside,
        )
        for group in groups
    ]


def _figures_of(recorded: dict[str, Any]) -> dict[str, Any]:
    """An evaluation's figures, without the step or the seed that they are kept with."""
    return {name: value for name, value in recorded.items() if name not in ("step", "seed")}


def _comparison(folder: Path) -> Comparison:
    described = read_description(folder)
    fields = {name: described[name] for name in ComparisonSpec.model_fields if name in described}
    spec = ComparisonSpec.parse(fields, str(folder / DESCRIPTION))
    found = read_figures(folder)
    evaluations = {(run["name"], each["seed"]): _figures_of(each) for run in found["runs"] for each in run["seeds"]}
    lost = {(each["run"], each["seed"]): each for each in found["broken_down"]}
    broken_down = [
        _breakdown(folder, run, seed, lost[run.name, seed])
        for seed in spec.seeds
        for run in spec.runs
        if (run.name, seed) in lost
    ]
    groups = [_group(folder, run, spec.seeds, evaluations, broken_down) for run in spec.runs if run.shown]
    beside = {run["name"]: Beside.model_validate(run["beside"]) for run in found["runs"] if "beside" in run}
    for group in groups:
        group.beside = beside.get(group.name)
    return Comparison(spec.name, groups, broken_down)


def _breakdown(folder: Path, run: ComparedSpec, seed: int, lost: dict[str, Any]) -> Breakdown:
    lines = RunFolder(run_folder(folder, run, seed)).metrics.read()
    return Breakdown(run.name, seed, lost["step"], lost["reason"], validation_curve(lines))


def _group(
    folder: Path,
    run: ComparedSpec,
    seeds: Sequence[int],
    evaluations: dict[tuple[str, int], dict[str, Any]],
    broken_down: Sequence[Breakdown],
) -> SeedGroup:
    lost = {each.seed: each for each in broken_down if each.run == run.name}
    group = SeedGroup(run.name, f"{folder}: {run.name}", broken_down=list(lost.values()))
    for seed in seeds:
        if (run.name, seed) in evaluations:
            group.runs.append(read_run_folder(run_folder(folder, run, seed)))
            group.evaluations.append(evaluations[run.name, seed])
        elif seed not in lost:
            raise UserError(
                f"{folder}: the comparison is not finished ({run.name}, seed {seed});"
                " go on with it by the same command that began it"
            )
    return group


def _alone(paths: Sequence[Path]) -> list[SeedGroup]:
    """Runs that differ in their seeds alone together, in the order of their first; each run once."""
    found: dict[str, list[FinishedRun]] = {}
    for path in {folder.resolve(): folder for folder in map(_run_folder, paths)}.values():
        run = read_run_folder(path)
        found.setdefault(_but_the_seed(run), []).append(run)
    return [group for runs in found.values() for group in _by_seed(runs)]


def _run_folder(path: Path) -> Path:
    """The folder of the run, for that of the model in it."""
    return path.parent if path.name == MODEL and (path.parent / CONFIG).is_file() else path


def _but_the_seed(run: FinishedRun) -> str:
    """The configuration and the files that the model began with, as one text; the data is checked by itself."""
    plain = run.spec.to_dict()
    del plain["data"], plain["training"]["seed"]
    files = read_checked_json(run.path / FILES) if (run.path / FILES).is_file() else {}
    return json.dumps([plain, files], sort_keys=True)


def _by_seed(runs: Sequence[FinishedRun]) -> Iterator[SeedGroup]:
    """One group; one for each where two runs share a seed as well: other programs or machines made them."""
    for members in [runs] if len({run.seed for run in runs}) == len(runs) else [[run] for run in runs]:
        names = [run.path.resolve().name for run in members]
        common = {SEED_AT_THE_END.sub("", name) for name in names} if len(members) > 1 else set()
        name = common.pop() if len(common) == 1 else names[0]
        yield SeedGroup(name or names[0], str(members[0].path), list(members))
