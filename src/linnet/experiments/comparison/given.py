"""The calibrations that runs store, from files or from other runs.

Whether they can be read and fit is known before anything is trained.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from linnet.core.errors import UserError
from linnet.core.files import sha256_of
from linnet.data.tokenizer import Tokenizer
from linnet.experiments.comparison.spec import CALIBRATIONS, ComparedSpec, ComparisonSpec, run_folder, taught_file
from linnet.model.calibration import check_calibration, check_calibration_fits, save_calibration
from linnet.model.spec import calibration_file
from linnet.model.store import TOKENIZER, load_decoder
from linnet.training.checkpoint import checkpoint_steps
from linnet.training.run_folder import RunFolder

ANY_DATA, ANY_FILE = Path("data"), Path("calibration.safetensors")
"""What a model's shapes do not depend on."""


def check_calibrations(spec: ComparisonSpec, out: Path, origin: str) -> None:
    """`UserError` naming `origin`, the run, the field and the file of calibrations that cannot be read or do not fit.

    Two kinds of files may be missing: what an earlier run will have made by then, and what a run needs no more, as it
    has begun with every seed.
    """
    seed = spec.seeds[0]
    made: set[Path] = set()
    for run in spec.runs:
        where = f"{origin}: runs: {run.name}"
        model = spec.run_of(run, seed, ANY_DATA).model
        source = model.initialization.calibration
        file = calibration_file(source)
        if file is None or file.exists() or not (file.resolve() in made or _begun(spec, run, out)):
            check_calibration(model, f"{where}: {_field(run, source)}")
        if run.calibration_of is not None:
            teacher = spec.run(run.calibration_of)
            _check_taught(spec, run, teacher, f"{where}: calibration_of: {teacher.name}")
            made.add(taught_file(out, teacher, seed).resolve())


def _check_taught(spec: ComparisonSpec, run: ComparedSpec, teacher: ComparedSpec, where: str) -> None:
    seed = spec.seeds[0]
    try:
        model = spec.run_of(run, seed, ANY_DATA, ANY_FILE).model
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    check_calibration_fits(spec.run_of(teacher, seed, ANY_DATA).model, model, where)


def _field(run: ComparedSpec, source: str) -> str:
    """Where the run's calibration is named: in its own `set`, or in the model of all."""
    named = [field for field, value in run.set.items() if value == source]
    return f"set: {named[0]}" if named else "model.initialization.calibration"


def _begun(spec: ComparisonSpec, run: ComparedSpec, out: Path) -> bool:
    """Whether the run has steps, which keep its calibration, with every seed."""
    folders = [RunFolder(run_folder(out, run, seed)) for seed in spec.seeds]
    return all(checkpoint_steps(folder.checkpoints) or folder.finished() is not None for folder in folders)


def taught_calibration(spec: ComparisonSpec, run: ComparedSpec, seed: int, out: Path) -> Path | None:
    """The file of the calibration that a run takes from another, which has been trained; None where it takes none.

    It is computed on the empty prompt, the end token alone.
    """
    if run.calibration_of is None:
        return None
    teacher = spec.run(run.calibration_of)
    path = taught_file(out, teacher, seed)
    if not path.exists():
        model = RunFolder(run_folder(out, teacher, seed)).model
        end = Tokenizer.load(model / TOKENIZER).end_id
        save_calibration(load_decoder(model), torch.tensor([[end]]), str(path))
    return path


def calibration_hashes(described: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """SHA-256 of each file of calibrations that is named, by name; not of those that the comparison itself makes."""
    found = [described["model"], *(run["set"] for run in described["runs"])]
    names = {name for part in found for name in _strings(part)}
    files = {name: file for name in sorted(names) if (file := calibration_file(name)) is not None and file.is_file()}
    own = (folder / CALIBRATIONS).resolve()
    return {name: sha256_of(file) for name, file in files.items() if file.resolve().parent != own}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def by_content(described: Mapping[str, Any], hashes: Mapping[str, str]) -> dict[str, Any]:
    """The description with the hash of each file of calibrations in the place of its name."""

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: replaced(part) for key, part in value.items()}
        if isinstance(value, list):
            return [replaced(part) for part in value]
        return hashes.get(value, value) if isinstance(value, str) else value

    runs = [{**run, "set": replaced(run["set"])} for run in described["runs"]]
    return {**described, "model": replaced(described["model"]), "runs": runs}
