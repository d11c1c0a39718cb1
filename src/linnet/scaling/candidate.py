"""Model sizes: parameters counted in three ways, and the plain decoder that a plan assumes for a size.

The plain decoder is what a plan measures and costs as long as no better shape has been designed. Two things follow from
its size: the vocabulary that suits it, since the table of tokens should grow more slowly than the rest of a model (Tao
et al. 2024, arXiv 2407.13623, approach 2: `N_v = 3.15 M (N_nv / 33 M)^0.835`, with `N_v` parameters in the table and
`N_nv` elsewhere; they trained 33 M to 3 B parameters, so smaller models are an extrapolation); and the search space
around its shape, in which `linnet design` looks for a better one for the same data.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from linnet.core.errors import UserError
from linnet.model.cost import model_cost
from linnet.model.decoder import meta_decoder
from linnet.model.spec import ModelSpec
from linnet.training.optimizers import split_by_decay

Counting = Literal["total", "without_embedding", "matrices_and_head"]
COUNTINGS: tuple[Counting, ...] = get_args(Counting)

COUNTING_DESCRIPTIONS: dict[Counting, str] = {
    "total": "all parameters",
    "without_embedding": "without token and position embeddings and the head's matrix",
    "matrices_and_head": "the layers' matrices and the head's",
}

WIDTHS = (*range(16, 128, 16), *range(128, 512, 32), *range(512, 16385, 64))
WIDTH_PER_LAYER = 64
"""As in GPT-2 small (768, 12 layers); within wide bounds the loss hardly depends on it (Kaplan et al., section 3.1)."""

PROPORTIONS_WEIGHT = 0.05
"""Weight of a deviation from the usual proportions, relative to a deviation from the requested size."""

HEAD_WIDTHS = (64, 32, 16)
HIDDEN_RATIO = 8 / 3
"""Of a gated feed-forward, which then has as many parameters as an ungated one of ratio 4."""

PLAIN_BLOCK: dict[str, dict[str, Any]] = {
    "mixer": {"kind": "attention"},
    "feed_forward": {"kind": "glu"},
    "norm": {"kind": "rms"},
}
"""A layer of every plain decoder, without its sizes."""

TABLE, REST, TABLE_EXPONENT = 3_145_728, 33e6, 0.8354
MIN_VOCABULARY, MAX_VOCABULARY = 256, 262_144
"""Tokens: as many as there are bytes, and as many as large models have."""

VOCABULARY_SOURCE = "Tao et al. 2024, arXiv 2407.13623"

WIDTH_FACTORS = (0.5, 0.625, 0.75, 0.875, 1.0, 1.125, 1.25, 1.5, 2.0)
DEPTH_FACTORS = (0.75, 1.0, 1.25, 1.5, 2.0)
MIN_DEPTH = 0.7
"""Least depth relative to the plain decoder. At equal size a score with a penalty for depth always prefers fewer, wider
layers; no trained models support that far from the usual proportions."""

RATIOS = (1, 1.5, 2, 2.667, 4)
"""Hidden width of a feed-forward relative to the block's width."""

MAX_BLOCKS = 3
MIN_HEADS, NARROW_HEAD = 4, 16
"""With fewer heads the widths of the space go in steps of narrow heads, which divide every width in `WIDTHS`."""


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters of one model, counted in each way of `Counting`; of experts only those that one token uses.

    That is what training costs, `C = 6 N D`. At small sizes the way of counting decides which exponents a law gets.
    total: all parameters, shared ones once (Hoffmann et al.). without_embedding: all except the embeddings and the
    matrix of the head (Kaplan et al.). matrices_and_head: the matrices that a token is multiplied by; the head counts
    even if it is tied to the embedding. stored: all parameters, more than `total` if there are experts.
    """

    total: int
    without_embedding: int
    matrices_and_head: int
    stored: int

    def by_name(self) -> dict[Counting, float]:
        return {counted: float(getattr(self, counted)) for counted in COUNTINGS}


def parameter_counts(spec: ModelSpec) -> ParameterCounts:
    """Count the parameters from the description, without allocating a weight."""
    cost = model_cost(spec)
    head = math.prod(cost.head_matrix)
    decoder = meta_decoder(spec)
    decayed, _ = split_by_decay(decoder)
    matrices = sum(parameter.numel() for parameter in decayed.values())
    own_head = 0 if spec.head.tied else head
    tables = [table for table in (decoder.embedding.tokens, decoder.embedding.positions) if table is not None]
    embeddings = sum(table.weight.numel() for table in tables)
    return ParameterCounts(
        total=cost.active_parameters,
        without_embedding=cost.active_parameters - embeddings - own_head,
        matrices_and_head=matrices + head - own_head - (cost.parameters - cost.active_parameters),
        stored=cost.parameters,
    )


def candidate(parameters: float, counted: Counting, vocab_size: int, context_length: int) -> ModelSpec:
    """Return the plain decoder whose number of parameters, counted as `counted`, has the ratio nearest to 1.

    It has attention with rotary positions, gated feed-forwards and a tied head; its width is about 64 times its layers.
    `UserError` if even the nearest has more than twice or less than half the requested parameters.
    """

    def count(width: int, layers: int | None = None) -> float:
        one, more = _layer_counts(width, counted, vocab_size)
        return one + ((layers or max(1, round(width / WIDTH_PER_LAYER))) - 1) * more

    at = bisect_left(WIDTHS, parameters, key=count)
    shapes: list[tuple[int, int]] = []
    for width in WIDTHS[max(0, at - 2) : at + 2]:
        usual = max(1, round(width / WIDTH_PER_LAYER))
        shapes += [(width, n) for n in range(max(1, math.floor(usual / 1.6)), math.ceil(1.6 * usual) + 1)]
    ratios = [count(*shape) / parameters for shape in shapes]
    distances = [
        abs(math.log(ratio)) + PROPORTIONS_WEIGHT * abs(math.log(width / (WIDTH_PER_LAYER * layers)))
        for ratio, (width, layers) in zip(ratios, shapes, strict=True)
    ]
    best = distances.index(min(distances))
    if not 0.5 < ratios[best] < 2:
        raise UserError(
            f"a model of {parameters:,.0f} parameters: the nearest shape with a vocabulary of {vocab_size:,} has"
            f" {ratios[best] * parameters:,.0f}; expected a {'larger' if ratios[best] > 1 else 'smaller'} budget, or"
            " another vocabulary"
        )
    return _plain_decoder(*shapes[best], vocab_size, context_length)


def min_parameters(vocab_size: int) -> float:
    """Return the number of all parameters of the smallest plain decoder."""
    return _layer_counts(WIDTHS[0], "total", vocab_size)[0]


@lru_cache(maxsize=1024)
def _layer_counts(width: int, counted: Counting, vocab_size: int) -> tuple[float, float]:
    """Return the parameters of a decoder with one layer, and those that each further layer adds."""
    one, two = (parameter_counts(_plain_decoder(width, layers, vocab_size, 1)).by_name()[counted] for layers in (1, 2))
    return one, two - one


def _plain_decoder(width: int, layers: int, vocab_size: int, context_length: int) -> ModelSpec:
    head_width = next(size for size in HEAD_WIDTHS if width % size == 0)
    block = {
        **PLAIN_BLOCK,
        "repeat": layers,
        "mixer": {**PLAIN_BLOCK["mixer"], "heads": width // head_width},
        "feed_forward": {**PLAIN_BLOCK["feed_forward"], "hidden": round(HIDDEN_RATIO * width / 16) * 16},
    }
    plain = {
        "name": f"planned-{layers}x{width}",
        "vocab_size": vocab_size,
        "d_model": width,
        "context_length": context_length,
        "blocks": [block],
        "head": {"tied": True, "norm": {"kind": "rms"}},
    }
    return ModelSpec.parse(plain, "planned")


def fitted_vocabulary(parameters: float, counted: Counting, context_length: int) -> int:
    """Return the power of two nearest to the best vocabulary for a plain decoder with so many parameters."""
    model = candidate(parameters, counted, MIN_VOCABULARY, context_length)
    table = TABLE * (parameter_counts(model).without_embedding / REST) ** TABLE_EXPONENT
    return 1 << round(math.log2(min(max(table / model.d_model, MIN_VOCABULARY), MAX_VOCABULARY)))


def search_space(plain: ModelSpec) -> dict[str, Any]:
    """Return the search space around a plain decoder, ready for YAML: half to twice its width, 0.7 to twice its depth.

    Vocabulary, context length and token width stay those of the plan, so that the model trains on the same data.
    """
    head_width = next(size for size in HEAD_WIDTHS if plain.d_model % size == 0)
    if plain.d_model // head_width < MIN_HEADS:
        head_width = NARROW_HEAD
    # As many blocks as possible whose layers, equally many in each, are not many fewer than those of the plain decoder.
    blocks = next(
        count for count in range(MAX_BLOCKS, 0, -1) if plain.layers // count * count >= MIN_DEPTH * plain.layers
    )
    heads = {max(1, round(plain.d_model / head_width * factor)) for factor in WIDTH_FACTORS}
    repeats = {max(plain.layers // blocks, round(plain.layers / blocks * factor)) for factor in DEPTH_FACTORS}
    return {
        "name": f"around-{plain.name}",
        "model": plain.model_dump(mode="json", exclude={"name", "blocks"}),
        "blocks": blocks,
        "block": {
            "width": [head_width * count for count in sorted(heads)],
            "ratio": list(RATIOS),
            "repeat": sorted(repeats),
            "head_width": head_width,
            **PLAIN_BLOCK,
        },
    }
