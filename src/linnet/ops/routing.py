"""Which experts a token goes to, how much each counts, and what keeps all of them in use.

A router gives each token a score for each expert; the token goes to those with the highest (Shazeer et al., arXiv
1701.06538). The losses are those of Switch Transformers (Fedus et al., arXiv 2101.03961, equations 4 to 6) and ST-MoE
(Zoph et al., arXiv 2202.08906, equation 5).

Legend: `B` batch, `T` tokens, `R` tokens of all rows, `E` experts, `K` experts of a token.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Scoring = Literal["softmax", "sigmoid"]

LEAST_SUM = 1e-20
"""Weights are divided by their sum, which sigmoids may bring to 0 (DeepSeek-V3)."""


class Routes(NamedTuple):
    """Of each token the experts that it goes to, `[..., K]` int64, best first, and what their outputs count.

    score: of every expert, `[..., E]`.
    """

    chosen: Tensor
    weight: Tensor
    score: Tensor


def routes(logits: Tensor, top_k: int, scoring: Scoring, normalize: bool) -> Routes:
    """Routes of tokens with these logits `[..., E]`.

    scoring: the softmax over all experts, or each one's sigmoid (DeepSeek-V3, arXiv 2412.19437, equations 13 to 16).
    normalize: the weights of a token add up to 1; with softmax they are then the softmax over its `top_k` alone.
    """
    score = logits.softmax(dim=-1) if scoring == "softmax" else logits.sigmoid()
    weight, chosen = score.topk(top_k, dim=-1)
    if normalize:
        weight = weight / weight.sum(dim=-1, keepdim=True).clamp_min(LEAST_SUM)
    return Routes(chosen, weight, score)


def counts(chosen: Tensor, experts: int) -> Tensor:
    """How many tokens go to each expert, int64 `[E]`; a choice that is `experts` goes nowhere."""
    return torch.zeros(experts + 1, dtype=torch.int64, device=chosen.device).scatter_add_(
        0, chosen.flatten(), torch.ones_like(chosen.flatten())
    )[:experts]


def balance_loss(score_RE: Tensor, share_E: Tensor) -> Tensor:
    """`E sum_e f_e P_e`: f the shares of the tokens that go to each expert, which add up to K, P the mean scores.

    It is K where all experts are used alike, and more where tokens go where scores are high. Scores of a token are
    taken as shares of their sum, which softmax's are (DeepSeek-V3, equation 19). Gradients reach the scores alone.
    """
    probability_E = (score_RE / score_RE.sum(dim=-1, keepdim=True)).mean(dim=0)
    return len(share_E) * (share_E * probability_E).sum()


def router_z_loss(logits_RE: Tensor) -> Tensor:
    """The mean of `log^2 sum_e exp(logit_e)`, which keeps logits small where rounding would decide the route."""
    return logits_RE.logsumexp(dim=-1).square().mean()


def within_capacity_reference(chosen_BTK: Tensor, experts: int, capacity: int) -> Tensor:
    """The choices, `experts` in the place of those for which an expert has no room in the row any more.

    In each row an expert takes `capacity` tokens: all first choices before all second ones, earlier tokens first
    (Lepikhin et al., "GShard", arXiv 2006.16668, algorithm 1).
    """
    kept_BTK = chosen_BTK.clone()
    batch, length, choices = chosen_BTK.shape
    for row in range(batch):
        taken = [0] * experts
        for choice in range(choices):
            for token in range(length):
                expert = int(chosen_BTK[row, token, choice])
                if expert < experts:
                    taken[expert] += 1
                    if taken[expert] > capacity:
                        kept_BTK[row, token, choice] = experts
    return kept_BTK


def within_capacity(chosen_BTK: Tensor, experts: int, capacity: int) -> Tensor:
    """The same, without a loop: a choice's place in its expert's queue is its place among those sorted by expert."""
    choices_BS = chosen_BTK.transpose(1, 2).flatten(1)
    sorted_BS, order_BS = choices_BS.sort(dim=1, stable=True)
    index_S = torch.arange(choices_BS.shape[1], device=choices_BS.device)
    queue_BS = index_S - torch.searchsorted(sorted_BS, sorted_BS)
    kept_BS = torch.empty_like(choices_BS).scatter_(1, order_BS, sorted_BS.where(queue_BS < capacity, experts))
    return kept_BS.view(chosen_BTK.shape[0], chosen_BTK.shape[2], -1).transpose(1, 2)
