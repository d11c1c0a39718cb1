"""The demo's folder: whose it is, and with which settings it was begun."""

from dataclasses import asdict, dataclass
from pathlib import Path

from linnet.core.errors import UserError
from linnet.core.files import read_json, write_json

SETTINGS, DATA = "demo.json", "data"


@dataclass(frozen=True)
class Settings:
    """What decides the corpus and the models: a demo goes on only with the same."""

    stories: int
    steps: int
    seed: int


def claim(out: Path, settings: Settings) -> None:
    """Make `out` this demo's folder; `UserError` where it is a file, another demo's, or holds anything else."""
    if out.exists() and not out.is_dir():
        raise UserError("is a file", field="out", value=out, accepted="a new folder or that of a demo")
    if (out / SETTINGS).is_file():
        _check_same(out, settings)
        return
    if out.is_dir() and any(not _left_half_written(path) for path in out.iterdir()):
        raise UserError(
            f"holds other files (no {SETTINGS})", field="out", value=out, accepted="a new folder or that of a demo"
        )
    write_json(out / SETTINGS, asdict(settings))


def _check_same(out: Path, settings: Settings) -> None:
    found = read_json(out / SETTINGS)
    for field, wanted in asdict(settings).items():
        value = found.get(field) if isinstance(found, dict) else None
        if value != wanted:
            raise UserError(
                f"holds a demo with {field}: {value!r}, not {wanted!r}; choose another `out`, the same settings to go"
                " on, or remove the folder",
                field="out",
                value=out,
            )


def _left_half_written(path: Path) -> bool:
    """What a process that was killed while claiming the folder leaves."""
    return path.name.startswith(f".{SETTINGS}.")
