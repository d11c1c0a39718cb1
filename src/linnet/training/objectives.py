"""What training minimizes: the cross-entropy, the divergence from a teacher, losses of sublayers, and penalties.

Legend: `B` batch, `T` tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, Self

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.loader import Batch
from linnet.data.token_data import TokenData
from linnet.layers.batch_layout import AuxiliaryLoss, AuxiliaryOutputs
from linnet.model.decoder import Decoder
from linnet.model.example_loss import example_logits, example_loss
from linnet.model.folder import TOKENIZER, model_folder
from linnet.model.store import load_decoder
from linnet.ops.cross_entropy import IGNORE_INDEX
from linnet.ops.distillation import SoftTargets
from linnet.training.sections import DistillationSpec
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
    teacher: "Teacher | None" = None,
) -> Loss:
    """The cross-entropy of each target given what precedes it in its row, in nats, and the losses of sublayers.

    Never holds all logits at once. Each added loss counts once per target, as the cross-entropy does. Documents do not
    see what precedes them if the batch says where they start. z_loss: the coefficient of `log^2 Z`
    (`ops.cross_entropy`), which is a term of its own. teacher: the model learns its predictions as well; the divergence
    from them is a term.
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
    )
    measured = {"z_loss": loss.squared_log_z, "distillation": loss.divergence}
    nats, head_terms = loss.nats.detach(), {name: value for name, value in measured.items() if value is not None}
    if not auxiliary.losses:
        return Loss(loss.total, nats, head_terms)
    count = (labels_BT != IGNORE_INDEX).sum()
    terms = {name: count * value for name, value in mean_losses(auxiliary.losses).items()}
    coefficients = {loss.name: loss.coefficient for loss in auxiliary.losses}
    total = loss.total + sum(coefficients[name] * term for name, term in terms.items() if coefficients[name])
    return Loss(total, nats, head_terms | {name: term.detach() for name, term in terms.items()})


@dataclass(frozen=True)
class Teacher:
    """A model whose predictions another one learns, as its run says (`training.distillation`)."""

    decoder: Decoder
    spec: DistillationSpec

    @classmethod
    def load(cls, spec: DistillationSpec, student: Decoder, data: TokenData) -> Self:
        """Read the teacher onto the student's device; `UserError` if it predicts other tokens, or sees later ones."""
        folder, field = model_folder(spec.teacher), "training.distillation.teacher"
        data.check_tokenizer(folder / TOKENIZER)
        decoder = load_decoder(folder, student.device).eval().requires_grad_(False)
        theirs, ours = decoder.spec, student.spec
        if not decoder.causal and ours.encoder is None and ours.prefix_field is None:
            problem = "its layers see later tokens while they calibrate"
            raise UserError(problem, field=field, value=spec.teacher, accepted="a causal model")
        for name in ("vocab_size", "prefix_field"):
            if getattr(theirs, name) != getattr(ours, name):
                accepted = f"that of the run's model, {getattr(ours, name)}"
                raise UserError(f"{field}: {spec.teacher}: its {name} is {getattr(theirs, name)}; expected {accepted}")
        if theirs.embedding.positions == "learned" and theirs.context_length < ours.context_length:
            problem = f"its learned positions end at {theirs.context_length:,}"
            accepted = f"at least {ours.context_length:,}, the context of the run's model"
            raise UserError(f"{field}: {spec.teacher}: {problem}; expected {accepted}")
        return cls(decoder, spec)

    def soft_targets(self, batch: Batch) -> SoftTargets:
        """Its predictions for a batch, whose logits are computed in slices."""
        logits = example_logits(
            self.decoder, batch.tokens, batch.labels, batch.prefix_lengths, document_starts=batch.document_starts
        )
        return SoftTargets(logits, self.spec.weight, self.spec.temperature)


def configure_objective(
    objective: Callable[..., Loss], spec: TrainingSpec, decoder: Decoder, data: TokenData
) -> Objective:
    """The objective with the run's settings; `UserError` for a penalty or a teacher that does not fit the model."""
    teacher = None if spec.distillation is None else Teacher.load(spec.distillation, decoder, data)
    settings = {"penalties": check_penalties(decoder, spec.penalties), "z_loss": spec.z_loss, "teacher": teacher}
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
