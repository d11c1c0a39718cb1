"""Training-free scores of a model's shape, which a search maximizes.

A score is a function of a part (a block, a projection, embedding and head); the scores of all parts are added and
multiplied by a penalty for depth, `1 - beta * depth / width`. To add a score, write the function and add a line to
`SCORES`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import inf, log, log1p, sqrt
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, NonNegativeFloat, NonNegativeInt, PositiveInt

from linnet.core.arrays import Numbers
from linnet.core.errors import UserError, did_you_mean
from linnet.core.spec import Spec
from linnet.design.metrics import joined_widths
from linnet.layers.contract import Place
from linnet.model.cost import block_cost, model_cost, projection_cost
from linnet.model.spec import BlockSpec, ModelSpec

Matrix = tuple[int, int]
"""Inputs and outputs of a linear map."""

Width = Literal["mean", "geometric", "minimum"]


@dataclass(frozen=True)
class Part:
    """A block, a projection between widths, or what lies outside the blocks of the decoder.

    depth: layers that a token passes. mixer, feed_forward: the linear maps of all these layers, a shared one as often
    as it is passed. parameters: shared ones count once. outside: True for embedding and head.
    """

    depth: int
    width: int
    mixer: tuple[Matrix, ...]
    feed_forward: tuple[Matrix, ...]
    parameters: int
    outside: bool = False


def block_part(block: BlockSpec, spec: ModelSpec) -> Part:
    """Return the part of a block, without the projection before it."""
    width = block.width or spec.d_model
    place = Place(width, spec.context_length)
    mixer = block.mixer.cost(place).active_matrices
    feed_forward = block.feed_forward.cost(place).active_matrices if block.feed_forward is not None else ()
    parameters = block_cost(block, spec).parameters
    return Part(block.repeat, width, mixer * block.repeat, feed_forward * block.repeat, parameters)


def unit_part(blocks: Sequence[BlockSpec], spec: ModelSpec) -> Part:
    """Return consecutive blocks of one width as one part."""
    parts = [block_part(block, spec) for block in blocks]
    return Part(
        depth=sum(part.depth for part in parts),
        width=parts[0].width,
        mixer=tuple(matrix for part in parts for matrix in part.mixer),
        feed_forward=tuple(matrix for part in parts for matrix in part.feed_forward),
        parameters=sum(part.parameters for part in parts),
    )


def parts_of(spec: ModelSpec) -> tuple[Part, ...]:
    """Return all parts of a model in the order of a token's path; their parameters add up to the model's."""
    # Embedding and head, with both projections of token vectors that are narrower than the model.
    cost, narrow = model_cost(spec), spec.embedding.width or spec.d_model
    back = projection_cost(spec.d_model, narrow).parameters if spec.head.tied else 0
    outside = Part(0, spec.d_model, (), (), cost.parameters - cost.blocks.parameters + back, outside=True)
    first, *joins = (
        Part(0, after, (), (), projection_cost(before, after).parameters) for before, after in joined_widths(spec)
    )
    inner = (part for block, join in zip(spec.blocks, joins, strict=True) for part in (block_part(block, spec), join))
    return (outside, first, *inner)


def _scale(value: float) -> float:
    # The fourth power of a quotient of two scales must still be an ordinary float.
    if not 1e-30 <= value <= 1e30:
        raise ValueError("must lie between 1e-30 and 1e30")
    return value


Scale = Annotated[float, AfterValidator(_scale)]


class ScoreSettings(Spec):
    """alpha: weights of mixers and of feed-forwards. beta: strength of the depth penalty; null: the score's own.

    sigma, eps: parameters of the entropy of a linear layer. width: definition of a model's width in the penalty: the
    mean over its layers, the geometric mean, or the smallest. samples, seed: of the sampled entropy.
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
    """The contribution of one part, the default beta of the depth penalty, and a description.

    measured: rank correlation with quality on 200 trained decoders of LiteTransformerSearch (Javaheripi et al., arXiv
    2203.02094), and its mean within windows of 20 models with similar decoder parameters; None if not measured.
    """

    of_part: OfPart
    beta: float
    summary: str
    measured: tuple[float, float] | None = None


STEP = 32
"""The sampled entropy draws matrices whose larger side is a multiple of it, and interpolates between them."""


@cache
def entropy(inputs: int, outputs: int, sigma: float = 1.0, eps: float = 1.0) -> float:
    """Entropy of a linear layer (MeRino, arXiv 2403.07921): `H = E sum_j log(1 + s_j^2 / eps^2)`.

    `s_j` are the singular values of a matrix of inputs times outputs with elements from N(0, sigma^2). This is the
    limit of large matrices in closed form (Marchenko and Pastur, 1967; Verdu and Shamai, 1999), with `k` the smaller
    and `n` the larger side, `b = k / n` and `g = n sigma^2 / eps^2`:

        f = (sqrt(g (1 + sqrt b)^2 + 1) - sqrt(g (1 - sqrt b)^2 + 1))^2
        H = n (b log(1 + g - f / 4) + log(1 + g b - f / 4) - f / (4 g))

    For large or small `g` these differences lose all digits; here they are written as sums and quotients, which keep
    them.
    """
    k, n = sorted((inputs, outputs))
    g = n * (sigma / eps) ** 2
    gb, difference = g * (k / n), g * ((n - k) / n)
    root = sqrt(difference**2 + 2 * (g + gb) + 1)  # the product of the two roots in f
    low, high = 1 + root + difference, 1 + root + g + gb
    # 1 + g - f / 4 = 1 + g low / high, 1 + g b - f / 4 = 1 + more, f / (4 g) = more / (1 + more)
    more = 2 * gb / low
    return k * log1p(g * (low / high)) + n * (log1p(more) - more / (1 + more))


@cache
def sampled_entropy(
    inputs: int, outputs: int, sigma: float = 1.0, eps: float = 1.0, samples: int = 4, seed: int = 0
) -> float:
    """Mean entropy over drawn matrices, as in the paper, which reads a table.

    If the larger side is not a multiple of `STEP`, interpolate between its neighbors with the same smaller side.
    """
    k, n = sorted((inputs, outputs))
    below = n // STEP * STEP
    if below in (0, n):
        return _drawn_entropy(k, n, sigma, eps, samples, seed)
    low, high = (_drawn_entropy(k, side, sigma, eps, samples, seed) for side in (below, below + STEP))
    return low + (high - low) * (n - below) / STEP


@cache
def _drawn_entropy(inputs: int, outputs: int, sigma: float, eps: float, samples: int, seed: int) -> float:
    k, n = sorted((inputs, outputs))
    draws = np.random.default_rng((seed, k, n))
    values = []
    for _ in range(samples):
        matrix = draws.standard_normal((k, n), dtype=np.float32).astype(np.float64)
        squares = np.linalg.eigvalsh(matrix @ matrix.T).clip(min=0.0)
        values.append(float(np.log1p((sigma / eps) ** 2 * squares).sum()))
    return sum(values) / samples


def decoder_parameters(part: Part, settings: ScoreSettings) -> float:
    """Parameters of the blocks and of the projections between them."""
    return 0 if part.outside else part.parameters


def entropy_of_layers(part: Part, settings: ScoreSettings, sampled: bool = False) -> float:
    """`alpha_1 H(mixer) + alpha_2 H(feed-forward)`, each the sum over its linear maps, over all layers.

    sampled: use entropies of drawn matrices instead of the closed form.
    """
    scale, draws = (settings.sigma, settings.eps), (settings.samples, settings.seed)
    mixer, feed_forward = (
        sum(sampled_entropy(*matrix, *scale, *draws) if sampled else entropy(*matrix, *scale) for matrix in matrices)
        for matrices in (part.mixer, part.feed_forward)
    )
    return settings.alpha[0] * mixer + settings.alpha[1] * feed_forward


SCORES: dict[str, Score] = {
    "parameters": Score(lambda part, settings: part.parameters, 0.0, "all parameters", (0.94, 0.63)),
    "decoder_parameters": Score(decoder_parameters, 0.0, "parameters without embedding and head", (0.99, 0.64)),
    "penalized_parameters": Score(
        decoder_parameters, 2.0, "parameters without embedding and head, times 1 - 2 depth / width", (0.99, 0.74)
    ),
    "entropy": Score(entropy_of_layers, 1 / 16, "entropy of the layers, times 1 - depth / (16 width)", (0.98, 0.46)),
    "entropy_beta_0": Score(entropy_of_layers, 0.0, "entropy of the layers, without a penalty", (0.98, 0.45)),
    "entropy_beta_2": Score(entropy_of_layers, 2.0, "entropy of the layers, times 1 - 2 depth / width", (0.99, 0.69)),
    "entropy_sampled": Score(
        partial(entropy_of_layers, sampled=True),
        1 / 16,
        "entropy of drawn matrices, times 1 - depth / (16 width)",
        (0.98, 0.46),
    ),
}
"""`linnet design validate` measures them; a test compares these figures with the published data."""


def find_score(name: str) -> Score:
    """Return the score of that name; `UserError` if there is none."""
    if name not in SCORES:
        instead = did_you_mean(name, SCORES, f"must be one of {', '.join(SCORES)}")
        raise UserError(instead, field="score", value=repr(name))
    return SCORES[name]


def width_term(depth: int, width: int, definition: Width) -> float:
    """Return the term of `depth` layers in the width of the model: terms are added, or the smallest is taken."""
    if definition == "minimum":
        return width if depth else inf
    return depth * (width if definition == "mean" else log(width))


def penalty(depth: Numbers, term: Numbers, beta: float, definition: Width) -> Numbers:
    """`1 - beta * depth / width` of models with `depth` layers and this combined width term; never below 0."""
    if not beta:
        return np.ones_like(depth)
    width = term if definition == "minimum" else term / depth if definition == "mean" else np.exp(term / depth)
    return np.maximum(0.0, 1 - beta * depth / width)


def score(parts: Iterable[Part], name: str, settings: ScoreSettings = DEFAULTS) -> float:
    """Return the score of a model from its parts: the slow reference form of `cost_tables`."""
    parts, chosen = list(parts), SCORES[name]
    depth = float(sum(part.depth for part in parts))
    terms = [width_term(part.depth, part.width, settings.width) for part in parts]
    term = min(terms) if settings.width == "minimum" else sum(terms)
    total = sum(chosen.of_part(part, settings) for part in parts)
    beta = chosen.beta if settings.beta is None else settings.beta
    return float(total * penalty(np.array(depth), np.array(term), beta, settings.width))
