"""Models that were trained: their parts, which a score sees, and their measured loss.

A CSV file has the columns of LiteTransformerSearch's: `n_layer`, `d_model`, `d_inner` (each layer's, with `|` between),
`params_attention`, `params_ffn`, `params_total`, `valid_ppl`; `id` is optional. Its layers are those of GPT-2: four
square matrices of attention, two of the feed-forward.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from linnet.core import amounts
from linnet.core.csv_table import Row, read_rows
from linnet.core.errors import UserError
from linnet.design.shape import Part, parts_of
from linnet.model.spec import ModelSpec
from linnet.model.store import MODEL, RUN
from linnet.training.record import RunFolder

FEWEST = 3
MOST = 1_000_000
"""Layers, or elements of a width."""

COUNTS = ("n_layer", "d_model")
AMOUNTS = ("params_attention", "params_ffn", "params_total", "valid_ppl")
NEEDED = (*COUNTS, "d_inner", *AMOUNTS)


@dataclass(frozen=True)
class TrainedModel:
    """`losses`: one for each seed, in the unit of the whole set."""

    name: str
    parts: tuple[Part, ...]
    losses: tuple[float, ...]

    @property
    def loss(self) -> float:
        """The mean over seeds."""
        return fmean(self.losses)

    @property
    def decoder_parameters(self) -> int:
        """All but embedding and head."""
        return sum(part.parameters for part in self.parts if not part.outside)


@dataclass(frozen=True)
class TrainedSet:
    """Models trained alike. `unit`: of their losses. `left_out`: folders of runs that are not finished."""

    models: list[TrainedModel]
    unit: str
    left_out: list[str]

    @property
    def noise(self) -> float | None:
        """The standard deviation of a loss between seeds, over all models with several; None where there is none."""
        several = [model.losses for model in self.models if len(model.losses) > 1]
        weights = sum(len(losses) - 1 for losses in several)
        if not weights:
            return None
        return math.sqrt(sum((len(losses) - 1) * stdev(losses) ** 2 for losses in several) / weights)


def read_trained(source: Path) -> TrainedSet:
    """A CSV file, or a folder with folders of runs in it, at any depth; `UserError` where there are too few."""
    if source.is_dir():
        found = _from_folders(source)
    elif source.is_file():
        found = TrainedSet(_from_table(source), "nats per token", [])
    else:
        raise UserError("no such file or folder", field="runs", value=source)
    if len(found.models) < FEWEST:
        raise UserError(
            f"{len(found.models)} trained models", field="runs", value=source, accepted=f"at least {FEWEST}"
        )
    return found


def _from_table(path: Path) -> list[TrainedModel]:
    return [_from_row(row) for row in read_rows(path, [(column,) for column in NEEDED])]


def _from_row(row: Row) -> TrainedModel:
    layers, width = (_count(row.cells[column], f"{row.origin}: {column}") for column in COUNTS)
    attention, feed_forward, total, perplexity = map(row.number, AMOUNTS)
    field, text = f"{row.origin}: d_inner", row.cells["d_inner"]
    hidden = [_count(each, field) for each in text.split("|")]
    if len(hidden) != layers:
        raise UserError(f"{field}: {text}: expected {layers} numbers, as n_layer says")
    inside = round(attention + feed_forward)
    maps = tuple(shape for inner in hidden for shape in ((width, inner), (inner, width)))
    parts = (
        Part(0, width, (), (), round(total) - inside, outside=True),
        Part(layers, width, ((width, width),) * 4 * layers, maps, inside),
    )
    return TrainedModel(row.cells.get("id") or row.origin, parts, (math.log(perplexity),))


def _count(text: str, field: str) -> int:
    value = amounts.parse(text, f"{field}:")
    if value != int(value) or value > MOST:
        raise UserError(f"{field}: {text}: expected a whole number from 1 to {MOST:,}")
    return int(value)


def _from_folders(folder: Path) -> TrainedSet:
    """Finished runs, on as much of one text; those of equal models and recipes count as seeds of one."""
    losses: dict[str, list[float]] = {}
    specs: dict[str, ModelSpec] = {}
    left_out, common = [], _Common()
    for file in sorted(folder.rglob(f"{MODEL}/{RUN}")):
        run = file.parent.parent
        folder_of_run = RunFolder(run)
        summary = folder_of_run.finished()
        loss = None if summary is None else _loss(summary)
        if summary is None or loss is None:
            left_out.append(str(run))
            continue
        common.check(run, summary)
        spec = ModelSpec.load(file.parent)
        shape = spec.model_copy(update={"name": ""}).model_dump_json() + _recipe(folder_of_run)
        specs.setdefault(shape, spec)
        losses.setdefault(shape, []).append(loss)
    models = [TrainedModel(specs[shape].name, parts_of(specs[shape]), tuple(found)) for shape, found in losses.items()]
    return TrainedSet(models, "bits per byte", left_out)


def _recipe(folder: RunFolder) -> str:
    """How a model was trained, but for its seed."""
    return folder.configuration().resolved().training.model_copy(update={"seed": 0}).model_dump_json()


def _loss(summary: Mapping[str, Any]) -> float | None:
    """Bits per byte; None where the run says nothing of them."""
    validation = summary.get("validation")
    found = validation.get("bits_per_byte") if isinstance(validation, dict) else None
    return float(found) if isinstance(found, int | float) else None


class _Common:
    """What all runs must have in common for their losses to be one measure."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Path, str]] = {}

    def check(self, run: Path, summary: Mapping[str, Any]) -> None:
        """`UserError` where this run has another text, or has seen more or less of it, than those before."""
        try:
            own = {"data (manifest)": str(summary["data"]["manifest_sha256"])[:12], "tokens": str(summary["tokens"])}
        except (KeyError, TypeError):
            raise UserError(
                f"{run / MODEL / RUN}: has no data.manifest_sha256 or no tokens; expected a run's"
            ) from None
        for what, value in own.items():
            first, known = self._known.setdefault(what, (run, value))
            if value != known:
                raise UserError(f"{run}: trained on other {what}, {value}, than {first}: {known}", field="runs")
