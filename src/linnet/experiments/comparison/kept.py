"""What a comparison's folder keeps, as far as linnet reads it again.

Where no checksum tells that linnet wrote it, it is held to its kinds.
"""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from linnet.core.checksum import read_checked_json
from linnet.core.errors import UserError
from linnet.core.spec import first_schema_error
from linnet.experiments.comparison.spec import DESCRIPTION, FIGURES
from linnet.experiments.side_by_side.record import Beside


class _Run(BaseModel):
    name: str
    set: dict[str, Any]


class _Description(BaseModel):
    model: str | dict[str, Any]
    runs: list[_Run]
    calibrations: dict[str, str] = Field(default_factory=dict)


class _Evaluated(BaseModel):
    seed: int


class _Group(BaseModel):
    name: str
    seeds: list[_Evaluated]
    beside: Beside | None = None


class _Lost(BaseModel):
    run: str
    seed: int
    step: int | None
    reason: str


class _Figures(BaseModel):
    runs: list[_Group]
    broken_down: list[_Lost]


def read_description(folder: Path) -> dict[str, Any]:
    """What the comparison in a folder is; `UserError` names the file and what is wrong in it."""
    return _read(folder / DESCRIPTION, _Description)


def read_figures(folder: Path) -> dict[str, Any]:
    """What it came to so far; `UserError` as above."""
    if not (folder / FIGURES).is_file():
        return {"runs": [], "broken_down": []}
    return _read(folder / FIGURES, _Figures)


def _read(path: Path, kind: type[BaseModel]) -> dict[str, Any]:
    found: dict[str, Any] = read_checked_json(path)
    if wrong := first_schema_error(found, kind):
        raise UserError(f"{path}: {wrong}")
    return found
