"""What training minimizes: the cross-entropy, losses that sublayers add, and penalties that the run asks for.

Legend: `B` batch, `T` tokens.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.loader import Batch
from linnet.layers.batch_layout import AuxiliaryLoss, AuxiliaryOutputs
from linnet.model.decoder import Decoder
from linnet.model.example_loss import example_loss
from linnet.ops.cross_entropy import IGNORE_INDEX
from linnet.training.spec import TrainingSpec

Penalties = Mapping[str, Mapping[str, float]]
"""Penalties that layers have, by name, with the coefficients of their terms."""


class Loss(NamedTuple):
    """Sums over the targets: `total` is minimized and carries the graph; `nats` is its likelihood part, detached.

    terms: other values to log, by name, detached, and summed over the targets as well (a term that is a mean over the
    batch counts once for each).
    """

    total: Tensor
    nats: Tensor
    terms: Mapping[str, Tensor] = MappingProxyType({})


Objective = Callable[[Decoder, Batch], Loss]
"""`(decoder, batch) -> Loss`, with the batch on the decoder's device."""


def next_token_loss(
    decoder: Decoder,
    batch: Batch,
    penalties: Penalties = MappingProxyType({}),
    z_loss: float = 0.0,
) -> Loss:
    """The cross-entropy of each target given what precedes it in its row, in nats, and the losses of sublayers.

    Never holds all logits at once. Each added loss counts once per target, as the cross-entropy does. Documents do not
    see what precedes them if the batch says where they start. z_loss: the coefficient of `log^2 Z`
    (`ops.cross_entropy`), which is a term of its own.
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
    )
    nats, head_terms = loss.nats.detach(), {} if loss.squared_log_z is None else {"z_loss": loss.squared_log_z}
    if not auxiliary.losses:
        return Loss(loss.total, nats, head_terms)
    count = (labels_BT != IGNORE_INDEX).sum()
    terms = {name: count * value for name, value in mean_losses(auxiliary.losses).items()}
    coefficients = {loss.name: loss.coefficient for loss in auxiliary.losses}
    total = loss.total + sum(coefficients[name] * term for name, term in terms.items() if coefficients[name])
    return Loss(total, nats, head_terms | {name: term.detach() for name, term in terms.items()})


def configure_objective(objective: Callable[..., Loss], spec: TrainingSpec, decoder: Decoder) -> Objective:
    """The objective with the run's settings; `UserError` for a penalty that no layer of the model has."""
    settings = {"penalties": check_penalties(decoder, spec.penalties), "z_loss": spec.z_loss}
    return partial(objective, **{name: value for name, value in settings.items() if value})


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
