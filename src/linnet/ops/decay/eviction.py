"""A context that forgets: which past tokens a step of decoding still reads.

One step (github.com/biuq/ted): every age grows by one, the step reads every token of the context and its own, which
then joins; then come evictions, which are for ever. Relevance of a token is the norm of what is left of it,
`||v_j|| exp(-rate_j age_j)`; with several heads the norm over all of them.

Legend: `B` batch, `T` steps, `E` tokens of the context followed by those of the steps, `N` heads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.ops.support import is_exporting

MOST_TOKENS = 2**62


@dataclass(frozen=True)
class EvictionPolicy:
    """What is evicted after each step; the defaults are those of the published demo.

    top_k: only the k most relevant stay; 0 for all. threshold: those below this relevance go; negative for none.
    min_tokens_to_keep: whatever the two say, at least so many stay, the most relevant ones.
    """

    top_k: int = 0
    threshold: float = 1e-8
    min_tokens_to_keep: int = 1

    def __post_init__(self) -> None:
        """`UserError` for a value that cannot be."""
        for name in ("top_k", "min_tokens_to_keep"):
            count = getattr(self, name)
            if count > MOST_TOKENS:
                raise UserError(field=name, value=count, accepted=f"at most {MOST_TOKENS}")
        if self.top_k < 0:
            raise UserError(field="top_k", value=self.top_k, accepted="at least 0, which keeps all")
        if self.min_tokens_to_keep < 0:
            raise UserError(field="min_tokens_to_keep", value=self.min_tokens_to_keep, accepted="at least 0")
        if self.threshold != self.threshold:
            raise UserError(field="threshold", value=self.threshold, accepted="a number; a negative one keeps all")


def relevance(norms_BEN: Tensor, weights_BNTE: Tensor) -> Tensor:
    """How much is left of every token at every step, `[B, T, E]`.

    norms: of the token's quantity, per head. weights: `exp(-rate age)`.
    """
    left_BNTE = norms_BEN.mT[:, :, None] * weights_BNTE
    if left_BNTE.shape[1] == 1:
        return left_BNTE[:, 0]
    # In float64, because the squares of small numbers would be zero.
    norms_BTE: Tensor = torch.linalg.vector_norm(left_BNTE, dim=1, dtype=torch.float64)
    return norms_BTE


def survivors(relevance_BE: Tensor, present_BE: Tensor, policy: EvictionPolicy) -> Tensor:
    """Which of the tokens that are present stay after one step: bool `[B, E]`."""
    above_BE = present_BE & (relevance_BE >= policy.threshold)
    if _undisputed(above_BE, present_BE, policy):
        return above_BE
    ranks_BE = _ranks(relevance_BE.masked_fill(~present_BE, -torch.inf))
    if policy.top_k:
        above_BE &= ranks_BE < policy.top_k
    return above_BE | (present_BE & (ranks_BE < policy.min_tokens_to_keep))


def _ranks(relevance_BE: Tensor) -> Tensor:
    """How many are more relevant, the earlier of equal ones among them; int64 `[B, E]`."""
    if is_exporting():  # ONNX has no sort, but a TopK that takes the earlier of equal ones first
        entries = relevance_BE.shape[1]
        return relevance_BE.topk(entries, dim=1).indices.topk(entries, dim=1, largest=False).indices
    return relevance_BE.argsort(dim=1, descending=True, stable=True).argsort(dim=1)


def _undisputed(above: Tensor, present: Tensor, policy: EvictionPolicy) -> bool:
    """Whether the threshold alone decides: there are neither too many nor too few above it, in any row and step.

    A graph cannot ask: there it is taken not to unless the policy has a threshold alone; the long way gives the same.
    """
    if is_exporting():
        return policy.top_k == 0 and policy.min_tokens_to_keep == 0
    staying = above.sum(-1)
    if policy.top_k and int(staying.max()) > policy.top_k:
        return False
    if int(staying.min()) >= policy.min_tokens_to_keep:
        return True
    return bool((staying >= present.sum(-1).clamp(max=policy.min_tokens_to_keep)).all())


def evict_step_by_step(relevance_BTE: Tensor, present_BTE: Tensor, policy: EvictionPolicy) -> tuple[Tensor, Tensor]:
    """Several steps in a row: which tokens each of them reads, `[B, T, E]`, and which stay after it, `[B, T, E]`.

    present: which tokens there would be at each step if none were ever evicted. Where the threshold alone decides, all
    steps are one operation; otherwise one follows another, but only over these numbers.
    """
    # A product of rounded numbers may rise again: what was once below stays evicted.
    above_BTE = present_BTE & ((relevance_BTE < policy.threshold) & present_BTE).cumsum(1).eq(0)
    if _undisputed(above_BTE, present_BTE, policy):
        stay_BTE = above_BTE
    else:
        stay_BTE = _one_after_another(relevance_BTE, present_BTE, policy)
    if present_BTE.shape[1] == 1:
        return present_BTE, stay_BTE
    read_BTE = present_BTE.clone()
    read_BTE[:, 1:] &= stay_BTE[:, :-1] | ~present_BTE[:, :-1]
    return read_BTE, stay_BTE


def _one_after_another(relevance_BTE: Tensor, present_BTE: Tensor, policy: EvictionPolicy) -> Tensor:
    stay_BTE = torch.empty_like(present_BTE)
    before_BE = torch.ones_like(present_BTE[:, 0])
    for step in range(present_BTE.shape[1]):
        present_BE = present_BTE[:, step] & before_BE
        stay_BTE[:, step] = survivors(relevance_BTE[:, step], present_BE, policy)
        # Those that are not born yet are not lost.
        before_BE = stay_BTE[:, step] | ~present_BTE[:, step]
    return stay_BTE
