"""Where things lie in a comparison's folder."""

from pathlib import Path

from linnet.experiments.comparison.spec import ComparedSpec
from linnet.model.store import RUNS

FIGURES, CURVES, DESCRIPTION = "comparison.json", "curves.png", "description.json"
DATA, OPERATORS = "data", "operators"


def run_folder(out: Path, run: ComparedSpec, seed: int) -> Path:
    """Where a run lies."""
    return out / RUNS / f"{run.folder}-seed-{seed}"


def taught_file(out: Path, teacher: ComparedSpec, seed: int) -> Path:
    """Where the operators lie that a run taught others."""
    return out / OPERATORS / f"{teacher.folder}-seed-{seed}.safetensors"
