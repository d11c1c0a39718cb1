"""A context that forgets: which past tokens a decoding step still reads, and how long a token lasts.

One step (github.com/biuq/ted): every age grows by one, the step reads every token of the context and its own, which
then joins; then tokens are evicted for good. The relevance of a token is the norm of what remains of it,
`||v|| exp(-rate age)`; with several heads (our addition) the norm over all heads,
`sqrt(sum_n (||v_n|| exp(-rate_n age))^2)`. Quantity and rate are known as soon as the token has been read, and so is
its lifetime: the number of steps until its relevance is below a threshold.

Legend: `B` batch, `T` steps, `E` tokens of the context followed by those of the steps, `N` heads; `X` any shape.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.ops.support import accumulation_dtype, is_exporting, widen

MAX_TOKENS = 2**62

MAX_NEWTON_STEPS = 100
"""A few are enough, and about 40 where the last trace of one head decides about another."""

ROUNDING = 1e-13
"""A step of Newton's method that is smaller, relative to the age, ends it."""


@dataclass(frozen=True)
class EvictionPolicy:
    """Which tokens are evicted after each step; the defaults are those of the published demo.

    top_k: only the k most relevant tokens stay; 0: all stay. threshold: tokens below this relevance are evicted; a
    negative one evicts none. min_tokens_to_keep: at least this number of the most relevant tokens stay in any case.
    """

    top_k: int = 0
    threshold: float = 1e-8
    min_tokens_to_keep: int = 1

    def __post_init__(self) -> None:
        for name in ("top_k", "min_tokens_to_keep"):
            count = getattr(self, name)
            if count > MAX_TOKENS:
                raise UserError(field=name, value=count, accepted=f"at most {MAX_TOKENS}")
        if self.top_k < 0:
            raise UserError(field="top_k", value=self.top_k, accepted="at least 0, which keeps all")
        if self.min_tokens_to_keep < 0:
            raise UserError(field="min_tokens_to_keep", value=self.min_tokens_to_keep, accepted="at least 0")
        if self.threshold != self.threshold:
            raise UserError(field="threshold", value=self.threshold, accepted="a number; a negative one keeps all")


def context_relevance(norms_BEN: Tensor, weights_BNTE: Tensor) -> Tensor:
    """The relevance of every token at every step, `[B, T, E]`.

    norms: of the token's quantity, per head. weights: `exp(-rate age)`.
    """
    remaining_BNTE = norms_BEN.mT[:, :, None] * weights_BNTE
    if remaining_BNTE.shape[1] == 1:
        return remaining_BNTE[:, 0]
    # In float64, because the squares of small numbers would be zero.
    norms_BTE: Tensor = torch.linalg.vector_norm(remaining_BNTE, dim=1, dtype=accumulation_dtype(remaining_BNTE.device))
    return norms_BTE


def survivors(relevance_BE: Tensor, present_BE: Tensor, policy: EvictionPolicy) -> Tensor:
    """The tokens among those present that stay after one step: bool `[B, E]`."""
    above_BE = present_BE & (relevance_BE >= policy.threshold)
    if _threshold_decides(above_BE, present_BE, policy):
        return above_BE
    # How many tokens are more relevant; among equal ones the earlier one counts as more relevant.
    ranked_BE = relevance_BE.masked_fill(~present_BE, -torch.inf)
    if is_exporting():  # ONNX has no sort, but a TopK that takes the earlier of equal elements first
        entries = ranked_BE.shape[1]
        ranks_BE = ranked_BE.topk(entries, dim=1).indices.topk(entries, dim=1, largest=False).indices
    else:
        ranks_BE = ranked_BE.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    if policy.top_k:
        above_BE &= ranks_BE < policy.top_k
    return above_BE | (present_BE & (ranks_BE < policy.min_tokens_to_keep))


def _threshold_decides(above: Tensor, present: Tensor, policy: EvictionPolicy) -> bool:
    """True if the threshold alone decides: neither too many nor too few tokens are above it in any row and step.

    A graph cannot depend on the values: there this is false unless the policy has only a threshold. The general method
    gives the same result.
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
    """Several steps in a row: the tokens that each of them reads, and those that stay after it, bool `[B, T, E]` each.

    present: the tokens that would exist at each step without evictions. Where the threshold alone decides, all steps
    are one operation; otherwise they follow one after another, but only over these numbers.
    """
    # A product of rounded numbers may rise again, but a token that was below the threshold once stays evicted.
    above_BTE = present_BTE & ((relevance_BTE < policy.threshold) & present_BTE).cumsum(1).eq(0)
    if _threshold_decides(above_BTE, present_BTE, policy):
        stay_BTE = above_BTE
    else:
        stay_BTE = torch.empty_like(present_BTE)
        before_BE = torch.ones_like(present_BTE[:, 0])
        for step in range(present_BTE.shape[1]):
            present_BE = present_BTE[:, step] & before_BE
            stay_BTE[:, step] = survivors(relevance_BTE[:, step], present_BE, policy)
            before_BE = stay_BTE[:, step] | ~present_BTE[:, step]  # later tokens are not lost yet
    if present_BTE.shape[1] == 1:
        return present_BTE, stay_BTE
    read_BTE = present_BTE.clone()
    read_BTE[:, 1:] &= stay_BTE[:, :-1] | ~present_BTE[:, :-1]
    return read_BTE, stay_BTE


def relevance(norms_XN: Tensor, rates_XN: Tensor, ages_X: Tensor) -> Tensor:
    """The relevance of each token at its age, `[X]`; the arguments broadcast, and the widest precision is kept.

    norms_XN: the norm of each head's quantity. rates_XN: per step, at least 0. ages_X: steps, at least 0.
    """
    remaining_XN = norms_XN * torch.exp(-rates_XN * ages_X[..., None])
    # Squares alone would underflow; and for one head this is its own norm, bit for bit.
    largest_X1 = remaining_XN.amax(dim=-1, keepdim=True)
    shares_XN = remaining_XN / largest_X1.clamp(min=torch.finfo(remaining_XN.dtype).tiny)
    relevance_X: Tensor = largest_X1[..., 0] * torch.linalg.vector_norm(shares_XN, dim=-1)
    return relevance_X


def lifetimes_definition(norms_XN: Tensor, rates_XN: Tensor, threshold: float, max_steps: int) -> Tensor:
    """The definition of `lifetimes`, step by step up to `max_steps` steps: float64 `[X]`. For tests."""
    norms_XN, rates_XN = widen(norms_XN), widen(rates_XN)
    lifetimes_X = torch.zeros(norms_XN.shape[:-1], dtype=norms_XN.dtype, device=norms_XN.device)
    for age in range(max_steps):
        lifetimes_X += relevance(norms_XN, rates_XN, torch.full_like(lifetimes_X, age)) >= threshold
    return lifetimes_X


def lifetimes(norms_XN: Tensor, rates_XN: Tensor, threshold: float) -> Tensor:
    """The first integer age, in steps, at which the relevance of each token is below the threshold: float64 `[X]`.

    A context that evicts all tokens below the threshold at every step, after the newest token has joined at age 0,
    holds the token for exactly this number of steps. For one head it is `floor(ln(||v|| / threshold) / rate) + 1`, if
    the norm is not below the threshold. Infinite where the relevance always stays above.

    Raises:
        ValueError: the threshold is not a positive, finite number.
    """
    norms_XN, rates_XN = widen(norms_XN), widen(rates_XN)
    if not 0 < threshold < math.inf:
        raise ValueError(f"threshold: {threshold}: must be a finite number above 0")
    crossing_X = fading_ages(norms_XN, rates_XN, torch.full_like(norms_XN[..., 0], threshold))
    # The crossing is rounded, so the relevance itself decides about the integer ages around it.
    whole_X = crossing_X.floor()
    lifetimes_X = whole_X.clone()
    for later in range(2):
        lifetimes_X += relevance(norms_XN, rates_XN, whole_X + later) >= threshold
    return lifetimes_X


def half_lives(norms_XN: Tensor, rates_XN: Tensor) -> Tensor:
    """The age at which half of each token's initial relevance remains, float64 `[X]`; `ln 2 / rate` for one head.

    Not rounded to whole steps; infinite for a rate of 0. For a token without a quantity all heads count equally.
    """
    largest_X1 = widen(norms_XN).amax(dim=-1, keepdim=True)
    shares_XN = torch.where(largest_X1 > 0, norms_XN / largest_X1, 1.0)
    return fading_ages(shares_XN, rates_XN, torch.linalg.vector_norm(shares_XN, dim=-1) / 2)


def fading_ages(norms_XN: Tensor, rates_XN: Tensor, levels_X: Tensor) -> Tensor:
    """The age, not rounded to whole steps, at which the relevance has decreased to a level: float64 `[X]`.

    0 where it begins below the level, infinite where it never reaches it. The logarithm of the relevance is convex and
    decreasing, so Newton's method, started where it is above, approaches the age with each step without passing it;
    for one head it converges in one step.
    """
    rates_XN = widen(rates_XN)
    logs_XN = widen(norms_XN).log() - widen(levels_X).log()[..., None]
    # Up to this age the longest-lasting head alone is above. A head exactly at the level is above forever or never.
    alone_XN = torch.where(logs_XN == 0, torch.where(rates_XN == 0, math.inf, 0.0), logs_XN / rates_XN)
    ages_X = alone_XN.amax(dim=-1).clamp(min=0)
    for _ in range(MAX_NEWTON_STEPS):
        exponents_XN = 2 * (logs_XN - rates_XN * torch.where(ages_X.isinf(), 0.0, ages_X)[..., None])
        above_X = exponents_XN.logsumexp(dim=-1) / 2
        slopes_X = (exponents_XN.softmax(dim=-1) * rates_XN).sum(dim=-1)
        steps_X = torch.where(above_X > 0, above_X / slopes_X, 0.0)  # 0 where the relevance is below the level
        ages_X = ages_X + steps_X
        if (steps_X <= ROUNDING * (1 + ages_X)).all():
            break
    return ages_X
