"""The cross-entropy of the next token, with the divergence from a teacher, losses of sublayers, and penalties.

Legend: `B` batch, `T` tokens.
"""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.loader import Batch
from linnet.layers.batch_layout import AuxiliaryLoss, AuxiliaryOutputs
from linnet.model.decoder import Decoder
from linnet.model.example_loss import example_loss
from linnet.ops.cross_entropy import IGNORE_INDEX
from linnet.ops.support import accumulation_dtype
from linnet.training.objectives import Loss
from linnet.training.objectives.teacher import Teacher

Penalties = Mapping[str, Mapping[str, float]]
"""Penalties that layers have, by name, with the coefficients of their terms."""


def next_token_loss(
    decoder: Decoder,
    batch: Batch,
    penalties: Penalties = MappingProxyType({}),
    z_loss: float = 0.0,
    teacher: Teacher | None = None,
) -> Loss:
    """The cross-entropy of each target given what precedes it in its row, in nats, and the losses of sublayers.

    Never holds all logits at once. Each added loss counts once per target, as the cross-entropy does; the weights of a
    batch hold for both in the total, and in nothing else. Documents do not see what precedes them if the batch says
    where they start. z_loss: the coefficient of `log^2 Z` (`ops.cross_entropy`), which is a term of its own. teacher:
    the model learns its predictions as well; the divergence from them is a term.
    """
    auxiliary = AuxiliaryOutputs(requested_penalties=penalties, training=True)
    labels_BT = batch.labels
    loss = example_loss(
        decoder,
        batch.tokens,
        labels_BT,
        batch.prefix_lengths,
        document_starts=batch.document_starts,
        record=auxiliary,
        z_loss=z_loss,
        soft_targets=None if teacher is None else teacher.soft_targets(batch),
        weights_BT=batch.loss_weights,
    )
    measured = {"z_loss": loss.squared_log_z, "distillation": loss.divergence}
    nats, head_terms = loss.nats.detach(), {name: value for name, value in measured.items() if value is not None}
    if not auxiliary.losses:
        return Loss(loss.total, nats, head_terms)
    means, count = mean_losses(auxiliary.losses), (labels_BT != IGNORE_INDEX).sum()
    weight = count if batch.loss_weights is None else batch.loss_weights.sum(dtype=accumulation_dtype(count.device))
    coefficients = {loss.name: loss.coefficient for loss in auxiliary.losses}
    total = loss.total + sum(coefficients[name] * (weight * mean) for name, mean in means.items() if coefficients[name])
    return Loss(total, nats, head_terms | {name: (count * mean).detach() for name, mean in means.items()})


def mean_losses(losses: list[AuxiliaryLoss]) -> dict[str, Tensor]:
    """The mean of each loss over the sublayers that added it."""
    values: dict[str, list[Tensor]] = {}
    for loss in losses:
        values.setdefault(loss.name, []).append(loss.value)
    return {name: torch.stack(each).mean() for name, each in values.items()}


def check_penalties(decoder: Decoder, requested: Penalties) -> Penalties:
    """The coefficient of each term of the requested penalties that is not 0.

    `UserError` for a penalty that no layer of the model has, or a term that it does not have.
    """
    offered = {name: terms for sublayer in decoder.sublayers for name, terms in sublayer.penalties.items()}
    found = {}
    for name, terms in requested.items():
        if name not in offered:
            accepted = ", ".join(offered) or "none, as the model has no layer with a penalty"
            raise UserError(f"training.penalties.{name}: no layer of the model has it; expected {accepted}")
        for term in terms:
            if term not in offered[name]:
                raise UserError(f"training.penalties.{name}.{term}: expected one of {', '.join(offered[name])}")
        found[name] = {term: value for term, value in {**offered[name], **terms}.items() if value}
    return found
