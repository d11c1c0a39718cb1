"""What a comparison's folder holds: its description, and the hashes of the files that it names."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from linnet.core.errors import UserError
from linnet.core.files import read_json, sha256_of, write_json
from linnet.experiments.comparison.layout import DESCRIPTION, OPERATORS
from linnet.experiments.comparison.spec import ComparisonSpec
from linnet.experiments.comparison.text import file_hashes
from linnet.model.spec import operator_file


def claim(spec: ComparisonSpec, folder: Path, origin: str = "comparison") -> None:
    """Keep the description with what is made from it; `UserError` where the folder holds another comparison's, or
    a file is missing that `origin` names.

    The hashes of the text's files belong to it, and a file of operators is its content, however it is named. Seeds and
    runs may be added: what is there stays true.
    """
    described = {**spec.model_dump(mode="json"), "files": file_hashes(spec.text, origin)}
    hashes = _operator_hashes(described, folder)
    path = folder / DESCRIPTION
    if path.exists():
        before = read_json(path)
        known = before.get("operators", {})
        hashes = {**known, **hashes}  # a file that is gone is taken for what it was
        _check_same(_by_content(before, known), _by_content(described, hashes), folder)
    write_json(path, {**described, "operators": hashes})


def _check_same(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    for field in ("text", "tokenizer", "model", "training", "files"):
        if before.get(field) != now[field]:
            what = "content of the files" if field == "files" else field
            raise UserError(f"{folder}: holds a comparison with another {what}; choose another --out")
    runs = {run["name"]: run for run in now["runs"]}
    for run in before["runs"]:
        if runs.get(run["name"], run) != run:
            raise UserError(f"{folder}: holds another run {run['name']!r}; rename it, or choose another --out")


def _operator_hashes(described: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """SHA-256 of each file of operators that is named, by its name; but of those that the comparison itself makes."""
    found = [described["model"], *(run["set"] for run in described["runs"])]
    names = {name for part in found for name in _strings(part)}
    files = {name: file for name in sorted(names) if (file := operator_file(name)) is not None and file.is_file()}
    own = (folder / OPERATORS).resolve()
    return {name: sha256_of(file) for name, file in files.items() if file.resolve().parent != own}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def _by_content(described: Mapping[str, Any], hashes: Mapping[str, str]) -> dict[str, Any]:
    """The description with the hash of each file of operators in the place of its name."""

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: replaced(part) for key, part in value.items()}
        if isinstance(value, list):
            return [replaced(part) for part in value]
        return hashes.get(value, value) if isinstance(value, str) else value

    runs = [{**run, "set": replaced(run["set"])} for run in described["runs"]]
    return {**described, "model": replaced(described["model"]), "runs": runs}
