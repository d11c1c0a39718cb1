"""A model whose predictions another one learns (distillation)."""

from dataclasses import dataclass
from typing import Self

from linnet.core.errors import UserError
from linnet.data.loader import Batch
from linnet.data.token_data import TokenData
from linnet.model.decoder import Decoder
from linnet.model.example_loss import example_logits
from linnet.model.folder import TOKENIZER, model_folder
from linnet.model.store import load_decoder
from linnet.ops.distillation import SoftTargets
from linnet.training.sections import DistillationSpec


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
