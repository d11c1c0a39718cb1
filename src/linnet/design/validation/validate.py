"""The worth of every score on trained models: rank correlation with quality, and what its choice would cost.

Rank correlations are taken from the signs of all differences, `S_ij = sign(x_i - x_j)`: Kendall's tau-b is the cosine
between two such matrices; a row's sum is twice its rank but for a constant, equal values having the mean of their
ranks, so Spearman's rho is the correlation of row sums. Intervals are those of models drawn anew.

Legend: `N` models.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from linnet.core.arrays import Indices, Numbers
from linnet.design.scores import SCORES, ScoreSettings, score
from linnet.design.validation.trained import TrainedSet
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Series
from linnet.present.progress import progress
from linnet.present.result import Picture
from linnet.present.table import Table

INTERVAL = (2.5, 97.5)
"""Percentiles of the resampled values."""


class Correlations(NamedTuple):
    """Spearman's rho and Kendall's tau-b; 0 where all values of one side are equal."""

    spearman: float
    kendall: float


def signs(x_N: Numbers) -> Numbers:
    """The sign of every difference, `[N, N]`."""
    return np.sign(x_N[:, None] - x_N)


def correlations(x_NN: Numbers, y_NN: Numbers) -> Correlations:
    """From the signs of both."""
    return Correlations(_cosine(x_NN.sum(1), y_NN.sum(1)), _cosine(x_NN.ravel(), y_NN.ravel()))


def _cosine(x: Numbers, y: Numbers) -> float:
    length = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / length if length else 0.0


def windows(order_by_N: Numbers, size: int) -> list[Indices]:
    """Neighbors in `order_by`: `size` at a time, each window sharing half of its models with the next."""
    order, count = np.argsort(order_by_N, kind="stable"), len(order_by_N)
    if count <= size:
        return [order]
    starts = list(range(0, count - size + 1, max(1, size // 2)))
    if starts[-1] + size < count:
        starts.append(count - size)
    return [order[start : start + size] for start in starts]


def regret(score_N: Numbers, loss_N: Numbers) -> float:
    """How much the model that the score likes best lost against the best one; the mean over its equals."""
    return max(0.0, float(loss_N[score_N == score_N.max()].mean() - loss_N.min()))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The middle 95 % of resampled values."""
    low, high = np.percentile(values, INTERVAL)
    return float(low), float(high)


BAND = 20
"""Models in a band of equal parameters."""
RESAMPLES = 1000


class Figure(NamedTuple):
    """A value and the interval that holds 95 % of its values when the models are drawn anew."""

    value: float
    low: float
    high: float


class ScoreQuality(NamedTuple):
    """What a score says about trained models; quality is a low loss.

    spearman, kendall: rank correlation with quality over all models. within_band: the mean of Spearman's over windows
    of neighbors in decoder parameters. regret: the loss of the model that the score likes best, less the lowest;
    regret_within_band: the same in each window, the mean.
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
    """The worth of each named score; `band`: models in a window. The seed decides what the bootstrap draws."""
    scores = {name: np.array([score(model.parts, name, settings) for model in trained.models]) for name in names}
    loss_N = np.array([model.loss for model in trained.models])
    parameters_N = np.array([float(model.decoder_parameters) for model in trained.models])
    bands = _Bands(loss_N, parameters_N, band)
    values = {name: bands.figures(own) for name, own in scores.items()}
    drawn: dict[str, list[list[float]]] = {name: [] for name in names}
    draws = np.random.default_rng(seed)
    with progress("resampling", resamples, "resamples") as advance:
        for _ in range(resamples):
            sample = bands.resampled(draws)
            for name, own in scores.items():
                drawn[name].append(sample.figures(own))
            advance(1)
    columns = {name: zip(values[name], *drawn[name], strict=True) for name in names}
    return {name: ScoreQuality(*(Figure(value, *interval(again)) for value, *again in columns[name])) for name in names}


class _Bands:
    """The models, or a draw of them (`rows`), and the windows among them, of `size` neighbors in `order_by`."""

    def __init__(self, loss_N: Numbers, order_by_N: Numbers, size: int, rows: Indices | None = None) -> None:
        self.loss_N, self._order_by_N, self._size = loss_N, order_by_N, size
        self.overall = np.arange(len(loss_N)) if rows is None else rows
        self.inside = [self.overall[window] for window in windows(order_by_N[self.overall], size)]
        self.quality = [signs(-loss_N[rows]) for rows in (self.overall, *self.inside)]

    def resampled(self, draws: np.random.Generator) -> "_Bands":
        """As many models drawn with replacement, and the windows among these."""
        rows = draws.choice(len(self.loss_N), len(self.loss_N))
        return _Bands(self.loss_N, self._order_by_N, self._size, rows)

    def figures(self, score_N: Numbers) -> list[float]:
        """Those of `NAMES`."""
        overall = correlations(signs(score_N[self.overall]), self.quality[0])
        bands = [
            correlations(signs(score_N[rows]), quality).spearman
            for rows, quality in zip(self.inside, self.quality[1:], strict=True)
        ]
        regrets = [regret(score_N[rows], self.loss_N[rows]) for rows in (self.overall, *self.inside)]
        return [*overall, float(np.mean(bands)), regrets[0], float(np.mean(regrets[1:]))]


COLUMNS = 3


def rank_figures(trained: TrainedSet, worth: Mapping[str, ScoreQuality], band: int) -> dict[str, Any]:
    """Ready for JSON."""
    return {
        "models": len(trained.models),
        "loss_unit": trained.unit,
        "noise_between_seeds": trained.noise,
        "band": band,
        "scores": {name: _plain(one._asdict()) for name, one in worth.items()},
    }


def _plain(figures: Mapping[str, Figure]) -> dict[str, Any]:
    intervals = {name: [figure.low, figure.high] for name, figure in figures.items()}
    return {**{name: figure.value for name, figure in figures.items()}, "intervals": intervals}


def rank_table(trained: TrainedSet, worth: Mapping[str, ScoreQuality], band: int) -> Table:
    """A row for each score."""
    band = min(band, len(trained.models))
    columns = ["score", "Spearman", "Kendall", f"within {band}", "regret", f"regret within {band}"]
    rows = [[name, *map(_said, one)] for name, one in worth.items()]
    noise = "" if trained.noise is None else f" Between seeds losses differ by {numbers.significant(trained.noise, 2)}."
    meaning = (
        f"Rank correlation with quality over all {len(trained.models)} models, and the mean over windows of {band} with"
        f" about as many decoder parameters. Regret: how much worse, in {trained.unit}, the model is that the score"
        f" likes best.{noise} In brackets: the middle 95 % when the models are drawn anew."
    )
    return Table("Scores against trained models", columns, rows, meaning)


def _said(figure: Figure) -> str:
    return f"{figure.value:.3f} [{figure.low:.3f}, {figure.high:.3f}]"


def rank_plots(trained: TrainedSet, worth: Mapping[str, ScoreQuality], settings: ScoreSettings) -> list[Picture]:
    """The loss over each score."""
    loss = [model.loss for model in trained.models]
    parameters = [model.decoder_parameters for model in trained.models]
    panels = []
    for name, one in worth.items():
        values = [score(model.parts, name, settings) for model in trained.models]
        x = Axis("", "log", numbers.metric) if min(values) > 0 else Axis()
        title = f"{name}: {one.spearman.value:.3f}, within bands {one.within_band.value:.3f}"
        dots = Series(values, loss, style="o", values=parameters)
        panels.append(Panel(x, Axis(f"measured loss, {trained.unit}"), [dots], title))
    caption = "Each dot a trained model, its color the parameters of its decoder. A good score makes one falling line."
    plot = Plot(panels, (4.4, 3.2), min(COLUMNS, len(panels)), values="decoder parameters", shared="y")
    return [Picture("scores", "Measured loss over each score", plot, caption)]
