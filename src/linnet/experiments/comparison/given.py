"""The operators that runs are given: whether they can be read and fit is known before anything is trained."""

from pathlib import Path

from linnet.core.errors import UserError
from linnet.experiments.comparison.layout import run_folder, taught_file
from linnet.experiments.comparison.spec import ComparedSpec, ComparisonSpec
from linnet.model.fixed import check_fixed_operators, check_taught_operators
from linnet.model.spec import operator_file
from linnet.training.checkpoint import checkpoint_steps
from linnet.training.record import RunFolder

ANY_DATA, ANY_FILE = Path("data"), Path("operators.safetensors")
"""What a model's shapes do not depend on."""


def check_operators(spec: ComparisonSpec, out: Path, origin: str) -> None:
    """`UserError` naming `origin`, the run, the field and the file of operators that cannot be read or do not fit.

    Two kinds of files may be missing: what an earlier run will have made by then, and what a run needs no more, as it
    has begun with every seed.
    """
    seed = spec.seeds[0]
    made: set[Path] = set()
    for run in spec.runs:
        where = f"{origin}: runs: {run.name}"
        model = spec.run_of(run, seed, ANY_DATA).model
        source = model.initialisation.operator
        file = operator_file(source)
        if file is None or file.exists() or not (file.resolve() in made or _begun(spec, run, out)):
            check_fixed_operators(model, f"{where}: {_field(run, source)}")
        if run.operator_of is not None:
            teacher = spec.run(run.operator_of)
            _check_taught(spec, run, teacher, f"{where}: operator_of: {teacher.name}")
            made.add(taught_file(out, teacher, seed).resolve())


def _check_taught(spec: ComparisonSpec, run: ComparedSpec, teacher: ComparedSpec, where: str) -> None:
    seed = spec.seeds[0]
    try:
        model = spec.run_of(run, seed, ANY_DATA, ANY_FILE).model
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    check_taught_operators(spec.run_of(teacher, seed, ANY_DATA).model, model, where)


def _field(run: ComparedSpec, source: str) -> str:
    """Where the run's operators are named: in its own `set`, or in the model of all."""
    named = [field for field, value in run.set.items() if value == source]
    return f"set: {named[0]}" if named else "model.initialisation.operator"


def _begun(spec: ComparisonSpec, run: ComparedSpec, out: Path) -> bool:
    """Whether the run has steps, which keep its operators, with every seed."""
    folders = [RunFolder(run_folder(out, run, seed)) for seed in spec.seeds]
    return all(checkpoint_steps(folder.checkpoints) or folder.finished() is not None for folder in folders)
