"""Scores of a model's shape, known before any training: what a search maximizes.

A score is a plain function of a part; those of all parts are added, and multiplied by a penalty for depth,
`1 - beta * depth / width`. To add one: write the function and add a line to `SCORES`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf, log
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, NonNegativeFloat, NonNegativeInt, PositiveInt

from linnet.core.arrays import Numbers
from linnet.core.errors import UserError
from linnet.core.guess import did_you_mean
from linnet.core.spec import Spec
from linnet.design.entropy import entropy, sampled_entropy
from linnet.design.shape import Matrix, Part

Width = Literal["mean", "geometric", "minimum"]


def _scale(value: float) -> float:
    """So that the fourth power of a quotient of two of them is still an ordinary number."""
    if not 1e-30 <= value <= 1e30:
        raise ValueError("must lie between 1e-30 and 1e30")
    return value


Scale = Annotated[float, AfterValidator(_scale)]


class ScoreSettings(Spec):
    """alpha: weights of mixers and of feed-forwards. beta: of the penalty for depth; null: the score's own.

    sigma, eps: of the entropy of a linear layer. width: of a whole model, for the penalty: the mean over its layers,
    the geometric mean, or the smallest. samples, seed: of the sampled entropy.
    """

    alpha: tuple[NonNegativeFloat, NonNegativeFloat] = (0.6, 0.4)
    beta: NonNegativeFloat | None = None
    sigma: Scale = 1.0
    eps: Scale = 1.0
    width: Width = "mean"
    samples: PositiveInt = 4
    seed: NonNegativeInt = 0


DEFAULTS = ScoreSettings()

OfPart = Callable[[Part, ScoreSettings], float]


@dataclass(frozen=True)
class Score:
    """What one part adds, the beta of the penalty where none is given, and what it is in words.

    measured: its rank correlation with quality on 200 trained decoders of LiteTransformerSearch (Javaheripi et al.,
    arXiv 2203.02094), and the mean of that within windows of 20 with about as many decoder parameters; None where
    nothing was measured.
    """

    of_part: OfPart
    beta: float
    summary: str
    measured: tuple[float, float] | None = None

    def strength(self, settings: ScoreSettings) -> float:
        """The beta that holds."""
        return self.beta if settings.beta is None else settings.beta


def decoder_parameters(part: Part, settings: ScoreSettings) -> float:
    """Those of the blocks and of the projections between them."""
    return 0 if part.outside else part.parameters


def entropy_of_layers(part: Part, settings: ScoreSettings) -> float:
    """`alpha_1 H(mixer) + alpha_2 H(feed-forward)`, each the sum over its linear maps, over all layers."""
    return _weighted(part, settings, lambda matrix: entropy(*matrix, settings.sigma, settings.eps))


def sampled_entropy_of_layers(part: Part, settings: ScoreSettings) -> float:
    """The same with entropies of matrices that are drawn."""
    drawn = settings.sigma, settings.eps, settings.samples, settings.seed
    return _weighted(part, settings, lambda matrix: sampled_entropy(*matrix, *drawn))


def _weighted(part: Part, settings: ScoreSettings, of_matrix: Callable[[Matrix], float]) -> float:
    mixer, feed_forward = (sum(map(of_matrix, matrices)) for matrices in (part.mixer, part.feed_forward))
    return settings.alpha[0] * mixer + settings.alpha[1] * feed_forward


SCORES: dict[str, Score] = {
    "parameters": Score(lambda part, settings: part.parameters, 0.0, "all parameters", (0.94, 0.63)),
    "decoder_parameters": Score(decoder_parameters, 0.0, "parameters but for embedding and head", (0.99, 0.64)),
    "penalized_parameters": Score(
        decoder_parameters, 2.0, "parameters but for embedding and head, times 1 - 2 depth / width", (0.99, 0.74)
    ),
    "entropy": Score(entropy_of_layers, 1 / 16, "entropy of the layers, times 1 - depth / (16 width)", (0.98, 0.46)),
    "entropy_beta_0": Score(entropy_of_layers, 0.0, "entropy of the layers, without a penalty", (0.98, 0.45)),
    "entropy_beta_2": Score(entropy_of_layers, 2.0, "entropy of the layers, times 1 - 2 depth / width", (0.99, 0.69)),
    "entropy_sampled": Score(
        sampled_entropy_of_layers, 1 / 16, "entropy of matrices drawn, times 1 - depth / (16 width)", (0.98, 0.46)
    ),
}
"""`linnet design validate` measures them; a test holds these figures to the data that they come from."""


def find_score(name: str) -> Score:
    """The score of that name; `UserError` where there is none."""
    if name not in SCORES:
        instead = did_you_mean(name, SCORES, f"must be one of {', '.join(SCORES)}")
        raise UserError(instead, field="score", value=repr(name))
    return SCORES[name]


def width_term(depth: int, width: int, definition: Width) -> float:
    """What `depth` layers of one width bring to the width of the whole: terms are added, or the smallest is taken."""
    if definition == "minimum":
        return width if depth else inf
    return depth * (width if definition == "mean" else log(width))


def penalty(depth: Numbers, term: Numbers, beta: float, definition: Width) -> Numbers:
    """`1 - beta * depth / width` of models of `depth` layers, their width terms put together; never below 0."""
    if not beta:
        return np.ones_like(depth)
    width = term if definition == "minimum" else term / depth if definition == "mean" else np.exp(term / depth)
    return np.maximum(0.0, 1 - beta * depth / width)


def score(parts: Iterable[Part], name: str, settings: ScoreSettings = DEFAULTS) -> float:
    """The score of a model by its parts; the slow and obvious form of `design.tables`."""
    parts, chosen = list(parts), SCORES[name]
    depth = float(sum(part.depth for part in parts))
    terms = [width_term(part.depth, part.width, settings.width) for part in parts]
    term = min(terms) if settings.width == "minimum" else sum(terms)
    total = sum(chosen.of_part(part, settings) for part in parts)
    return float(total * penalty(np.array(depth), np.array(term), chosen.strength(settings), settings.width))
