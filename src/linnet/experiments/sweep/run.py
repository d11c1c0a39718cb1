"""Carrying a sweep out: every value's run by the one runner, in a folder of its own, each once."""

from dataclasses import replace
from pathlib import Path

from linnet.core.checksum import read_checked_json
from linnet.core.errors import UserError
from linnet.data.token_data import TokenData
from linnet.experiments.runner import Diverged, Planned, Runner
from linnet.experiments.sweep.asked import Sweep, read_sweep, shortened
from linnet.experiments.sweep.findings import SweepFindings, SweptRun
from linnet.experiments.sweep.output import FIGURES, write_findings
from linnet.training.data import fit_to_data
from linnet.training.run import RunResult
from linnet.training.run_folder import CONFIG, RunFolder, is_longer
from linnet.training.spec import RunSpec


def sweep(text: str, run: RunSpec, out: str | Path, runner: Runner, steps: int | None = None) -> SweepFindings:
    """Train `run` once for each value that `text` asks for (`read_sweep`), in `out`, which gets `sweep.json` and a
    picture.

    steps: so many for each value, with the schedule shrunk to them; None: all of the run's. What is there already is
    not made again; a value that diverges is part of what is found. Raises `UserError` and `ExperimentStopped`.
    """
    folder = Path(out)
    if (folder / CONFIG).is_file():
        raise UserError(
            "holds a run; a sweep makes a folder for each value: choose another `out`", field="out", value=folder
        )
    asked, trained = _with_earlier(read_sweep(text, run), folder), shortened(run, steps)
    runs = [asked.run(trained, value) for value in asked.values]
    plans = [_planned(asked, value, folder, one) for value, one in zip(asked.values, runs, strict=True)]
    _check(plans)
    results = [runner.attempt(planned) for planned in plans]
    swept = [
        _swept(value, planned, result) for value, planned, result in zip(asked.values, plans, results, strict=True)
    ]
    findings = SweepFindings(asked, run, swept, steps)
    write_findings(findings, folder)
    return findings


def _with_earlier(asked: Sweep, folder: Path) -> Sweep:
    """With the values of the same field that the folder has the results of: what is added stands beside them."""
    if not (folder / FIGURES).is_file():
        return asked
    found = read_checked_json(folder / FIGURES)
    try:
        known = [run["value"] for run in found["runs"]] if found["field"] == f"training.{asked.path}" else []
        there = [value for value in known if (folder / asked.label(value)).is_dir()]
        return replace(asked, values=tuple(sorted({*asked.values, *there})))
    except (KeyError, TypeError):
        raise UserError(f"{folder / FIGURES}: expected the results of a sweep; choose another `out`") from None


def _planned(asked: Sweep, value: float, folder: Path, run: RunSpec) -> Planned:
    label = asked.label(value)
    return Planned(label, folder / label, run)


def _check(plans: list[Planned]) -> None:
    """Before the first is trained: whether each is new, or goes on as it began. One that is longer would be extended,
    which is not what a whole one is.
    """
    data = TokenData.open(plans[0].run.data)
    for planned in plans:
        folder, run = RunFolder(planned.folder), fit_to_data(planned.run, data)
        if (planned.folder / CONFIG).is_file() and is_longer(run, folder.configuration()):
            steps = folder.configuration().training.steps
            raise UserError(f"{planned.folder}: holds a run of {steps} steps, not {run.steps}; choose another `out`")
        folder.check(run)


def _swept(value: float, planned: Planned, result: RunResult | Diverged) -> SweptRun:
    if isinstance(result, Diverged):
        return SweptRun(value, planned.folder, diverged=result)
    summary = result.summary
    return SweptRun(
        value,
        planned.folder,
        summary["validation"]["bits_per_byte"],
        summary["seconds"],
        summary["steps"],
        summary["tokens"],
        summary["machine"]["precision"],
    )
