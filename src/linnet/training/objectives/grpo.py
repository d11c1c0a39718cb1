"""Learning from rewards by groups of answers to one prompt: GRPO (Shao et al., arXiv 2402.03300, section 4.1).

With `p` the probability of a token of an answer, `q` that at the time when the answer was drawn, `r` that by the
reference (the model that the run starts from), and `A` the advantage of the answer:

    loss of a token = -min(p/q A, clip(p/q, 1 - e, 1 + e) A) + b (r/p - log(r/p) - 1)

`A` is the reward less the mean of the group (equation 21 also divides by its standard deviation: `scale_by_std`; Liu et
al., arXiv 2503.20783, show that this favours prompts that are almost always right or wrong). The loss of a step is the
mean over all tokens of all answers (Yu et al., DAPO, arXiv 2503.14476, section 3.3), not over answers first, so that a
long answer's tokens count as much as those of a short one.

Legend: `B` answers, `G` answers of a group, `T` places of a row.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from linnet.data.loader import Batch
from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.model.decoder import Decoder
from linnet.model.example_loss import example_nats
from linnet.training.objectives import Loss
from linnet.training.objectives.language_modelling import Penalties, mean_losses
from linnet.training.sections import GrpoSpec

ADVANTAGE, DRAWN, REFERENCE_NATS, REWARD, CUT = "advantage", "drawn", "reference_nats", "reward", "cut"
"""In `Batch.extras`: of each answer `[B]` its advantage, its reward and whether it was cut at its longest length; of
each token `[B, T]` `-log q` when it was drawn, and `-log r`."""

SMALLEST_STD = 1e-4
"""Added to the standard deviation of a group's rewards where advantages are divided by it."""


class TokenTerms(NamedTuple):
    """Of each token, `[B, T]`: its loss, its divergence from the reference, and 1 where the ratio was clipped."""

    loss: Tensor
    kl: Tensor
    clipped: Tensor


def advantages(rewards_B: Tensor, group: int, scale_by_std: bool) -> Tensor:
    """The advantage of each answer, `[B]`: its reward compared with its group's; 0 where all rewards are equal."""
    rewards_NG = rewards_B.view(-1, group)
    apart_NG = rewards_NG - rewards_NG.mean(dim=1, keepdim=True)
    # Equal rewards may differ from their mean in the last bits.
    apart_NG = apart_NG.masked_fill(~has_signal(rewards_B, group)[:, None], 0.0)
    if scale_by_std:
        apart_NG = apart_NG / (rewards_NG.std(dim=1, keepdim=True) + SMALLEST_STD)
    return apart_NG.flatten()


def has_signal(rewards_B: Tensor, group: int) -> Tensor:
    """True for groups whose rewards are not all equal, `[B / G]`."""
    rewards_NG = rewards_B.view(-1, group)
    return rewards_NG.amax(dim=1) > rewards_NG.amin(dim=1)


def token_terms(
    nats_BT: Tensor, drawn_BT: Tensor, advantage_B: Tensor, spec: GrpoSpec, reference_BT: Tensor | None = None
) -> TokenTerms:
    """The terms of each token from `-log p`, `-log q` and `-log r`."""
    ratio_BT, advantage_B1 = torch.exp(drawn_BT - nats_BT), advantage_B[:, None]
    inside_BT = ratio_BT.clamp(1 - spec.clip, 1 + spec.clip)
    free_BT, bound_BT = ratio_BT * advantage_B1, inside_BT * advantage_B1
    clipped_BT = (bound_BT < free_BT).to(nats_BT.dtype)
    loss_BT, kl_BT = -torch.minimum(free_BT, bound_BT), torch.zeros_like(nats_BT)
    if reference_BT is not None:
        apart_BT = nats_BT - reference_BT  # log r - log p
        kl_BT = torch.exp(apart_BT) - apart_BT - 1
        loss_BT = loss_BT + spec.kl * kl_BT
    return TokenTerms(loss_BT, kl_BT, clipped_BT)


def grpo_loss(decoder: Decoder, batch: Batch, spec: GrpoSpec, penalties: Penalties = MappingProxyType({})) -> Loss:
    """The summed loss of the tokens of all answers of a batch, and the losses of sublayers, once per token.

    Terms: per token `clipped` and, with a reference, `kl`; per group `reward`, `reward_std`, `signal` (1 where the
    rewards differ), `answer_tokens` (mean length) and `cut` (share of answers that were cut).
    """
    auxiliary = AuxiliaryOutputs(requested_penalties=penalties, training=True)
    nats_BT = example_nats(decoder, batch.tokens, batch.labels, document_starts=batch.document_starts, record=auxiliary)
    assert batch.weights is not None, "prompts that count as answers"
    extras, counts_BT = batch.extras, batch.weights.to(nats_BT.dtype)
    found = token_terms(nats_BT, extras[DRAWN], extras[ADVANTAGE], spec, extras.get(REFERENCE_NATS))
    means, count = mean_losses(auxiliary.losses), counts_BT.sum()
    coefficients = {loss.name: loss.coefficient for loss in auxiliary.losses}
    total = (counts_BT * found.loss).sum() + sum(coefficients[name] * count * mean for name, mean in means.items())
    terms = {name: (count * mean).detach() for name, mean in means.items()}
    terms["clipped"] = (counts_BT * found.clipped).sum().detach()
    if REFERENCE_NATS in extras:
        terms["kl"] = (counts_BT * found.kl).sum().detach()
    return Loss(total, nats_BT.detach().sum(), terms, _group_terms(batch))


def _group_terms(batch: Batch) -> Mapping[str, Tensor]:
    """Values of the groups of a batch, summed over them."""
    group, rewards_B = batch.rows_per_example, batch.extras[REWARD]
    rewards_NG = rewards_B.view(-1, group)
    assert batch.weights is not None
    return {
        "reward": rewards_NG.mean(dim=1).sum(),
        "reward_std": rewards_NG.std(dim=1).sum(),
        "signal": has_signal(rewards_B, group).double().sum(),
        "answer_tokens": batch.weights.double().sum() / group,
        "cut": batch.extras[CUT].double().sum() / group,
    }
