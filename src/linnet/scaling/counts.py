"""Parameters, counted in three ways: at small sizes the way decides which exponents a law comes out with.

In all three those of a mixture of experts are the ones that one token uses, which is what training takes: `C = 6 N D`.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from linnet.model.cost import model_cost
from linnet.model.decoder import meta_decoder
from linnet.model.spec import ModelSpec
from linnet.training.optimizers import split_by_decay

Counting = Literal["total", "without_embedding", "matrices_and_head"]
COUNTINGS: tuple[Counting, ...] = get_args(Counting)

NGRAM: dict[Counting, str] = {
    "total": "all parameters",
    "without_embedding": "without token and position embeddings and the head's matrix",
    "matrices_and_head": "the layers' matrices and the head's",
}
"""What each way counts, in words."""


@dataclass(frozen=True)
class ParameterCounts:
    """One model's parameters.

    total: all that one token uses, shared ones once (Hoffmann et al.). without_embedding: all of these but token and
    position embeddings and the matrix of the head (Kaplan et al.). matrices_and_head: the matrices that a token is
    multiplied by; the head's counts even where it is the embedding's own. stored: all there are, more than `total`
    where there are experts.
    """

    total: int
    without_embedding: int
    matrices_and_head: int
    stored: int

    def by_name(self) -> dict[Counting, float]:
        """The three by their names."""
        return {counted: float(getattr(self, counted)) for counted in COUNTINGS}


def parameter_counts(spec: ModelSpec) -> ParameterCounts:
    """Count them from the description; no weight is made."""
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
