"""What a comparison's folder holds: its description, and the hashes of the files that it names."""

from pathlib import Path
from typing import Any

from linnet.core.atomic import refuse_link
from linnet.core.checksum import write_checked_json
from linnet.core.errors import UserError
from linnet.experiments.comparison.given import by_content, calibration_hashes
from linnet.experiments.comparison.kept import read_description
from linnet.experiments.comparison.parts import file_hashes
from linnet.experiments.comparison.spec import CALIBRATIONS, DESCRIPTION, ComparisonSpec


def claim(spec: ComparisonSpec, folder: Path, origin: str = "comparison") -> None:
    """Keep the description with what is made from it; `UserError` where the folder holds another comparison's, or
    a file is missing that `origin` names.

    The hashes of the text's files belong to it, and a file of calibrations is its content, whatever its name. Seeds and
    runs may be added: what is there stays true.
    """
    described = {**spec.model_dump(mode="json"), "files": file_hashes(spec.text, origin)}
    hashes = calibration_hashes(described, folder)
    path = folder / DESCRIPTION
    refuse_link(folder / CALIBRATIONS)
    if path.exists():
        before = read_description(folder)
        known = before.get("calibrations", {})
        hashes = {**known, **hashes}  # a file that is gone is taken for what it was
        _check_same(by_content(before, known), by_content(described, hashes), folder)
    write_checked_json(path, {**described, "calibrations": hashes})


def _check_same(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    for field in ("text", "tokenizer", "model", "training", "files"):
        if before.get(field) != now[field]:
            what = "content of the files" if field == "files" else field
            raise UserError(f"{folder}: holds a comparison with another {what}; choose another `out`")
    runs = {run["name"]: run for run in now["runs"]}
    for run in before["runs"]:
        if runs.get(run["name"], run) != run:
            raise UserError(f"{folder}: holds another run {run['name']!r}; rename it, or choose another `out`")
