"""Which tokens the operator of power-law graph attention is deduced from.

Legend: `B` batch, `T` tokens of the chunk, `H` heads, `K` head width.
"""

from typing import Literal, Self

from pydantic import model_validator
from torch import Tensor

from linnet.core.spec import Amount, Spec
from linnet.layers.contract import Traits
from linnet.nn.cost import Cost


class DensitySpec(Spec):
    """Which tokens the density matrix is summed over.

    sequence: all of the first chunk, in training the whole sequence (the paper), later tokens included.
    prefix: the first `tokens` of a stream alone, 1 if not given (ours). Nothing that comes later moves the operator; it
    is the same in training and in inference, and with 1, the token that begins a document, the mixer is causal.
    """

    scope: Literal["sequence", "prefix"] = "sequence"
    tokens: Amount | None = None

    @model_validator(mode="after")
    def _tokens_of_a_prefix(self) -> Self:
        if self.scope == "sequence" and self.tokens is not None:
            raise ValueError(f"tokens: {self.tokens}: goes with scope: prefix; a sequence is taken whole")
        return self

    @property
    def prefix(self) -> int | None:
        """How many tokens count; None for all."""
        return None if self.scope == "sequence" else self.tokens or 1

    def part(self, q_BHTK: Tensor, real_BT: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The queries that count, and which of them are no padding."""
        if self.prefix is None:
            return q_BHTK, real_BT
        if real_BT is None:
            return q_BHTK[:, :, : self.prefix], None
        return q_BHTK, real_BT & (real_BT.cumsum(dim=1) <= self.prefix)

    @property
    def traits(self) -> Traits:
        """What holds for a mixer whose operator comes from these tokens."""
        one = self.prefix == 1
        return Traits(causal=one, exact_when_split=one, calibrates=True, calibrated_after=self.prefix)


def density_cost(heads: int, head_dim: int, tokens: int | None) -> Cost:
    """`q^T q` of every head over the first so many tokens of a sequence; None: over all."""
    flops = 2 * heads * head_dim**2
    copied = 2 * heads * head_dim if heads > 1 else 0
    if tokens is None:
        return Cost(flops_per_token=flops, activations_per_token=copied)
    return Cost(
        flops_by_length=(lambda length: flops * min(length, tokens),),
        activation_memory=(lambda sequences, length: sequences * copied * min(length, tokens),),
    )
