"""Validation of scores on trained models: rank correlation with quality, and the regret of choosing by a score.

Trained models come from folders of runs, or from a CSV file with the columns of LiteTransformerSearch: `n_layer`,
`d_model`, `d_inner` (one number per layer, separated by `|`), `params_attention`, `params_ffn`, `params_total`,
`valid_ppl`; `id` is optional. Its layers are those of GPT-2: four square matrices of attention, two of the
feed-forward.

Rank correlations are computed from the signs of all differences, `S_ij = sign(x_i - x_j)`: Kendall's tau-b is the
cosine between two such matrices. A row's sum is twice its rank up to a constant, equal values sharing the mean of their
ranks, so Spearman's rho is the correlation of row sums.

Legend: `N` models.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from linnet.core import units
from linnet.core.arrays import Indices, Numbers
from linnet.core.errors import UserError
from linnet.core.units import Row, read_rows
from linnet.design.scores import SCORES, Part, ScoreSettings, parts_of, score
from linnet.model.folder import MODEL, RUN
from linnet.model.spec import ModelSpec
from linnet.present.progress import progress
from linnet.training.runs import check_comparable, read_run_folders

MIN_MODELS = 3
MAX_COUNT = 1_000_000
"""Upper bound for layers and widths."""

COUNTS = ("n_layer", "d_model")
AMOUNTS = ("params_attention", "params_ffn", "params_total", "valid_ppl")
NEEDED = (*COUNTS, "d_inner", *AMOUNTS)

INTERVAL = (2.5, 97.5)
"""Percentiles of the resampled values."""
BAND = 20
"""Models in a window of similar parameters."""
RESAMPLES = 1000


@dataclass(frozen=True)
class TrainedModel:
    """A trained model; `losses`: one for each seed, in the unit of the whole set."""

    name: str
    parts: tuple[Part, ...]
    losses: tuple[float, ...]

    @property
    def loss(self) -> float:
        """Mean over the seeds."""
        return fmean(self.losses)

    @property
    def decoder_parameters(self) -> int:
        """Parameters without embedding and head."""
        return sum(part.parameters for part in self.parts if not part.outside)


@dataclass(frozen=True)
class TrainedSet:
    """Models trained alike. `unit`: of their losses. `left_out`: a line for each folder without a finished run."""

    models: list[TrainedModel]
    unit: str
    left_out: list[str]

    @property
    def noise(self) -> float | None:
        """Standard deviation of a loss between seeds, over all models with several; None if there are none."""
        several = [model.losses for model in self.models if len(model.losses) > 1]
        weights = sum(len(losses) - 1 for losses in several)
        if not weights:
            return None
        return math.sqrt(sum((len(losses) - 1) * stdev(losses) ** 2 for losses in several) / weights)


def read_trained(source: Path) -> TrainedSet:
    """Read a CSV file, or a folder that contains folders of runs at any depth; `UserError` if there are too few."""
    if source.is_dir():
        found = _from_folders(source)
    elif source.is_file():
        rows = read_rows(source, [(column,) for column in NEEDED])
        found = TrainedSet(list(map(_from_row, rows)), "nats per token", [])
    else:
        raise UserError("no such file or folder", field="runs", value=source)
    if len(found.models) < MIN_MODELS:
        raise UserError(
            f"{len(found.models)} trained models", field="runs", value=source, accepted=f"at least {MIN_MODELS}"
        )
    return found


def _from_row(row: Row) -> TrainedModel:
    layers, width = (_count(row.cells[column], f"{row.origin}: {column}") for column in COUNTS)
    attention, feed_forward, total, perplexity = map(row.number, AMOUNTS)
    field, text = f"{row.origin}: d_inner", row.cells["d_inner"]
    hidden = [_count(each, field) for each in text.split("|")]
    if len(hidden) != layers:
        raise UserError(f"{field}: {text}: expected {layers} numbers, one for each layer of n_layer")
    inside = round(attention + feed_forward)
    matrices = tuple(shape for inner in hidden for shape in ((width, inner), (inner, width)))
    parts = (
        Part(0, width, (), (), round(total) - inside, outside=True),
        Part(layers, width, ((width, width),) * 4 * layers, matrices, inside),
    )
    return TrainedModel(row.cells.get("id") or row.origin, parts, (math.log(perplexity),))


def _count(text: str, field: str) -> int:
    value = units.parse_amount(text, f"{field}:")
    if value != int(value) or value > MAX_COUNT:
        raise UserError(f"{field}: {text}: expected a whole number from 1 to {MAX_COUNT:,}")
    return int(value)


def _from_folders(folder: Path) -> TrainedSet:
    """Read finished runs on the same amount of one text; runs of equal models and recipes count as seeds of one."""
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


class Correlations(NamedTuple):
    """Spearman's rho and Kendall's tau-b; 0 if all values of one side are equal."""

    spearman: float
    kendall: float


def signs(x_N: Numbers) -> Numbers:
    """Return the sign of every difference, `[N, N]`."""
    return np.sign(x_N[:, None] - x_N)


def correlations(x_NN: Numbers, y_NN: Numbers) -> Correlations:
    """Compute both correlations from the signs of both sides: cosines of their row sums and of all signs."""
    cosines = []
    for x, y in ((x_NN.sum(1), y_NN.sum(1)), (x_NN.ravel(), y_NN.ravel())):
        length = float(np.sqrt((x @ x) * (y @ y)))
        cosines.append(float(x @ y) / length if length else 0.0)
    return Correlations(*cosines)


def windows(order_by_N: Numbers, size: int) -> list[Indices]:
    """Return windows of `size` neighbors in `order_by`; each shares half of its models with the next."""
    order, count = np.argsort(order_by_N, kind="stable"), len(order_by_N)
    if count <= size:
        return [order]
    starts = list(range(0, count - size + 1, max(1, size // 2)))
    if starts[-1] + size < count:
        starts.append(count - size)
    return [order[start : start + size] for start in starts]


def regret(score_N: Numbers, loss_N: Numbers) -> float:
    """Return the loss of the model with the highest score (the mean over ties) minus the lowest loss."""
    return max(0.0, float(loss_N[score_N == score_N.max()].mean() - loss_N.min()))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the middle 95 % of resampled values."""
    low, high = np.percentile(values, INTERVAL)
    return float(low), float(high)


class Figure(NamedTuple):
    """A value and the interval that holds 95 % of its values over resampled models."""

    value: float
    low: float
    high: float


class ScoreQuality(NamedTuple):
    """How well a score orders trained models, where low loss is high quality.

    spearman, kendall: rank correlation with quality over all models. within_band: mean Spearman correlation over
    windows of neighbors in decoder parameters. regret: loss of the model with the highest score minus the lowest loss;
    regret_within_band: the mean of the same over the windows.
    """

    spearman: Figure
    kendall: Figure
    within_band: Figure
    regret: Figure
    regret_within_band: Figure


NAMES = ScoreQuality._fields


def validate(
    trained: TrainedSet,
    settings: ScoreSettings,
    names: Sequence[str] = tuple(SCORES),
    band: int = BAND,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, ScoreQuality]:
    """Measure the quality of each named score; `band`: models in a window; `seed`: of the bootstrap."""
    scores = {name: np.array([score(model.parts, name, settings) for model in trained.models]) for name in names}
    loss_N = np.array([model.loss for model in trained.models])
    parameters_N = np.array([float(model.decoder_parameters) for model in trained.models])
    values = _figures(scores, loss_N, parameters_N, band, np.arange(len(loss_N)))
    drawn: dict[str, list[list[float]]] = {name: [] for name in names}
    draws = np.random.default_rng(seed)
    with progress("resampling", resamples, "resamples") as advance:
        for _ in range(resamples):
            rows = draws.choice(len(loss_N), len(loss_N))
            for name, figures in _figures(scores, loss_N, parameters_N, band, rows).items():
                drawn[name].append(figures)
            advance(1)
    columns = {name: zip(values[name], *drawn[name], strict=True) for name in names}
    return {name: ScoreQuality(*(Figure(value, *interval(again)) for value, *again in columns[name])) for name in names}


def _figures(
    scores: dict[str, Numbers], loss_N: Numbers, order_by_N: Numbers, size: int, rows: Indices
) -> dict[str, list[float]]:
    """Return the values of `NAMES` for each score on the models `rows`, with windows of `size` neighbors among them."""
    bands = [rows[window] for window in windows(order_by_N[rows], size)]
    quality = [signs(-loss_N[chosen]) for chosen in (rows, *bands)]
    figures = {}
    for name, score_N in scores.items():
        overall = correlations(signs(score_N[rows]), quality[0])
        within = [
            correlations(signs(score_N[band]), of_band).spearman
            for band, of_band in zip(bands, quality[1:], strict=True)
        ]
        regrets = [regret(score_N[chosen], loss_N[chosen]) for chosen in (rows, *bands)]
        figures[name] = [*overall, float(np.mean(within)), regrets[0], float(np.mean(regrets[1:]))]
    return figures
