"""The worth of every score on trained models: rank correlation with quality, and what its choice would cost."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from linnet.core.arrays import Indices, Numbers
from linnet.design.scores import SCORES, ScoreSettings, score
from linnet.design.validation.rank import correlations, interval, regret, signs, windows
from linnet.design.validation.trained import TrainedSet
from linnet.present.progress import progress

BAND = 20
"""Models in a band of equal parameters."""
RESAMPLES = 1000


class Figure(NamedTuple):
    """A value and the interval that holds 95 % of its values when the models are drawn anew."""

    value: float
    low: float
    high: float


class Worth(NamedTuple):
    """What a score says about trained models; quality is a low loss.

    spearman, kendall: rank correlation with quality over all models. within_band: the mean of Spearman's over windows
    of neighbours in decoder parameters. regret: the loss of the model that the score likes best, less the lowest;
    regret_within_band: the same in each window, the mean.
    """

    spearman: Figure
    kendall: Figure
    within_band: Figure
    regret: Figure
    regret_within_band: Figure


NAMES = Worth._fields


def validate(
    trained: TrainedSet,
    settings: ScoreSettings,
    names: Sequence[str] = tuple(SCORES),
    band: int = BAND,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Worth]:
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
    return {name: Worth(*(Figure(value, *interval(again)) for value, *again in columns[name])) for name in names}


class _Bands:
    """The models, or a draw of them (`rows`), and the windows among them, of `size` neighbours in `order_by`."""

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
