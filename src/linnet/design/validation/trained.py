"""Models that were trained: their parts, which a score sees, and their measured loss.

A CSV file has the columns of LiteTransformerSearch's: `n_layer`, `d_model`, `d_inner` (each layer's, with `|` between),
`params_attention`, `params_ffn`, `params_total`, `valid_ppl`; `id` is optional. Its layers are those of GPT-2: four
square matrices of attention, two of the feed-forward.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from linnet.core import amounts
from linnet.core.csv_table import Row, read_rows
from linnet.core.errors import UserError
from linnet.design.shape import Part, parts_of
from linnet.model.spec import ModelSpec
from linnet.model.store import MODEL, RUN
from linnet.training.runs import check_comparable, read_run_folders

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
    """Models trained alike. `unit`: of their losses. `left_out`: a line for each folder of no finished run."""

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
        rows = read_rows(source, [(column,) for column in NEEDED])
        found = TrainedSet(list(map(_from_row, rows)), "nats per token", [])
    else:
        raise UserError("no such file or folder", field="runs", value=source)
    if len(found.models) < FEWEST:
        raise UserError(
            f"{len(found.models)} trained models", field="runs", value=source, accepted=f"at least {FEWEST}"
        )
    return found


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
    value = amounts.parse_amount(text, f"{field}:")
    if value != int(value) or value > MOST:
        raise UserError(f"{field}: {text}: expected a whole number from 1 to {MOST:,}")
    return int(value)


def _from_folders(folder: Path) -> TrainedSet:
    """Finished runs, on as much of one text; those of equal models and recipes count as seeds of one."""
    runs, left_out = read_run_folders([file.parent.parent for file in sorted(folder.rglob(f"{MODEL}/{RUN}"))])
    check_comparable(runs)
    losses: dict[str, list[float]] = {}
    models: dict[str, ModelSpec] = {}
    for run in runs:
        if run.tokens != runs[0].tokens:
            raise UserError(
                f"{run.path}: trained on {run.tokens:,} tokens, {runs[0].path} on {runs[0].tokens:,}; expected as many",
                field="runs",
            )
        model, recipe = run.spec.model, run.spec.training.model_copy(update={"seed": 0})
        shape = model.model_copy(update={"name": ""}).model_dump_json() + recipe.model_dump_json()
        models.setdefault(shape, model)
        losses.setdefault(shape, []).append(float(run.summary["validation"]["bits_per_byte"]))
    trained = [
        TrainedModel(models[shape].name, parts_of(models[shape]), tuple(found)) for shape, found in losses.items()
    ]
    return TrainedSet(trained, "bits per byte", left_out)
