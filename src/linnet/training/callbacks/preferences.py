"""What a run on pairs of answers does besides its steps: the reference, its check, and held-out pairs.

The reference is the model that the run starts from. Its log-probabilities of all answers are computed once, when the
run begins, and stored in the run folder with the hashes of data and weights; every later start reads them.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from linnet.core.arrays import unpack_tensors, write_tensors
from linnet.core.errors import UserError
from linnet.data.loader import Batch, evenly_spaced
from linnet.data.preferences import PreferenceBatches
from linnet.data.split import Split
from linnet.data.token_data import TokenData
from linnet.model.decoder import Decoder
from linnet.present.progress import progress
from linnet.training.callbacks.evaluation import Evaluate, HeldOutMeasure, HeldOutState
from linnet.training.data import preference_batches
from linnet.training.initialization import START_FROM
from linnet.training.lora import reference_decoder, trains_parts_alone, without_parts
from linnet.training.metrics import REFERENCE_LOG_PROBABILITIES
from linnet.training.objectives.preference import REFERENCE, TERMS, answer_scores, pair_losses
from linnet.training.spec import RunSpec

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""How far policy and reference may be apart when a run begins, in nats per token of an answer, by precision."""


class Preferences(HeldOutMeasure):
    """Gives batches their reference, checks it, and measures held-out pairs with each evaluation."""

    name = "preferences"

    def __init__(
        self, run: RunSpec, data: TokenData, batches: PreferenceBatches, evaluate: Evaluate, dtype: torch.dtype
    ) -> None:
        """dtype: of the products of the run."""
        super().__init__(evaluate)
        assert run.training.preference is not None, "a run on other data"
        self._spec, self._dtype = run.training.preference, dtype
        self._sides: dict[Split, PreferenceBatches] = {
            "train": batches, "validation": preference_batches(data, run, "validation")
        }  # fmt: skip
        self._has_reference = not self._spec.has_reference
        self.state: HeldOutState = HeldOutState()

    def on_load(self) -> None:
        """Read or compute the reference; a run that has not taken a step checks that it is equal to it."""
        if self._has_reference:
            return
        path, context = self.context.folder.path / REFERENCE_LOG_PROBABILITIES, self.context
        found = context.processes.broadcast_from_rank0(self._stored)
        if found is None:
            found = self._computed()
            if context.processes.any(context.stop.requested):  # the next start computes it
                return

            def write() -> None:
                write_tensors(path, found, self._notes(), checksum=True)

            context.processes.broadcast_from_rank0(write)
        for side, batches in self._sides.items():
            batches.extras_D = {REFERENCE: found[side]}
        self._has_reference = True
        if context.state.step == 0:
            self._check()

    def _notes(self) -> dict[str, str]:
        weights = self.context.folder.hashes().get(START_FROM, "")
        return {"data": self.context.data.hash, "weights": weights, "precision": str(self._dtype)}

    def _stored(self) -> dict[str, Tensor] | None:
        """The log-probabilities of the run folder by side, if they are there and those of data and reference."""
        path = self.context.folder.path / REFERENCE_LOG_PROBABILITIES
        if not path.is_file():
            return None
        tensors, notes = unpack_tensors(path.read_bytes(), str(path))
        if notes == self._notes():
            return tensors
        self.context.reporter.note(f"{path}: of other data, weights or precision; computed again")
        return None

    def _computed(self) -> dict[str, Tensor]:
        """The log-probabilities of all answers by the model that the run starts from, `[D]` for each side.

        A request to stop ends it early; what it returns then is not whole.
        """
        context = self.context
        decoder, is_changed = context.model.whole(), context.state.step > 0
        if is_changed and trains_parts_alone(decoder):
            with without_parts(decoder):
                return self._scored(decoder)
        return self._scored(reference_decoder(context.run, context.data).to(context.device) if is_changed else decoder)

    def _scored(self, decoder: Decoder) -> dict[str, Tensor]:
        """The log-probabilities of all answers by a decoder, `[D]` for each side."""
        context = self.context
        found, processes, size = dict[str, Tensor](), context.processes, context.spec.batch_size
        total = sum(len(batches.rows) // 2 for batches in self._sides.values())
        with progress("answers by the reference", total, shown=processes.is_rank0) as advance:
            for side, batches in self._sides.items():
                values_D, pairs = torch.zeros(len(batches.rows), dtype=torch.float64), len(batches.rows) // 2
                for first in range(processes.rank * size, pairs, processes.count * size):
                    if context.stop.requested:
                        break
                    batch = batches.pairs(range(first, min(first + size, pairs))).to(context.device)
                    values_D[2 * first : 2 * first + len(batch)] = self._scores(decoder, batch)
                    advance(min(processes.count * size, pairs - first))
                found[side] = processes.total(values_D.to(context.device)).cpu()
        return found

    @torch.no_grad()
    def _scores(self, decoder: Decoder, batch: Batch) -> Tensor:
        """As the objective computes them, so that only a change of the weights makes a difference."""
        with torch.autocast(batch.tokens.device.type, self._dtype, enabled=self._dtype != torch.float32):
            return answer_scores(decoder, batch).sums_B.double().cpu()

    def _check(self) -> None:
        """`UserError` if the model gives the answers of the first batch other probabilities than its reference does.

        Equal models have no margin, so that the loss begins at ln 2 (dpo) or 1 / (2 beta)^2 (ipo).
        """
        context = self.context
        batch = self._sides["train"].batch(0)
        scores = self._scores(context.model.whole(), batch.to(context.device))
        assert batch.weights is not None
        apart = float(((scores - batch.extras[REFERENCE]) / batch.weights.sum(dim=1)).abs().max())
        if apart > TOLERANCE[self._dtype]:
            problem = f"the model differs from its reference by {apart:.2g} nats per token before the first step"
            path = context.folder.path / REFERENCE_LOG_PROBABILITIES
            raise UserError(f"{path}: {problem}; expected at most {TOLERANCE[self._dtype]:g}: remove the file")
        start = math.log(2) if self._spec.kind == "dpo" else 1 / (2 * self._spec.beta) ** 2
        context.reporter.note(
            f"training.preference: the model equals its reference (within {apart:.1g} nats per token), so the loss of"
            f" {self._spec.kind} begins at {start:.4f}"
        )

    def measured(self) -> dict[str, Any]:
        """The means over held-out pairs: all, or as many as `evaluate.tokens` allows, evenly spaced."""
        decoder = self.context.model.whole()
        batches, limit = self._sides["validation"], self.context.spec.evaluate.tokens
        total = len(batches.rows) // 2
        count = total if limit is None else max(1, min(total, round(limit / batches.mean_lengths[1])))
        chosen, size = evenly_spaced(total, count), self.context.spec.batch_size
        sums = dict[str, float]()
        for first in self.context.processes.share_work(self.context.stop, range(0, len(chosen), size)):
            batch = batches.pairs(chosen[first : first + size])
            for name, values_P in self._terms(decoder, batch.to(self.context.device)).items():
                sums[name] = sums.get(name, 0.0) + float(values_P.sum())
        own = torch.tensor([sums.get(name, 0.0) for name in TERMS], dtype=torch.float64, device=self.context.device)
        means = (self.context.processes.total(own) / count).tolist()
        return {"pairs": count, **dict(zip(TERMS, means, strict=True))}

    @torch.no_grad()
    def _terms(self, decoder: Decoder, batch: Batch) -> Mapping[str, Tensor]:
        with torch.autocast(batch.tokens.device.type, self._dtype, enabled=self._dtype != torch.float32):
            scores = answer_scores(decoder, batch, is_reward=self._spec.kind == "reward")
        return pair_losses(self._spec, scores, batch.extras.get(REFERENCE))[1]

    def summary(self) -> dict[str, Any]:
        return {"preferences": self.latest}
