"""The causal loss of each token of batches of windows, also with several cache policies.

A window that is longer than the tokens computed at once is read in chunks with a state. A decoder that is not causal by
itself reads each window with layers calibrated on another text (`models.frozen_state`).

Shapes: `B` windows of a batch, `T` tokens of the longest of them, `L` layers with a choice of cache policies.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.evaluation.documents import WindowBatch, right_shift
from linnet.evaluation.likelihood import DocumentLosses, LossSums
from linnet.evaluation.models import frozen_state
from linnet.evaluation.statistics import Estimate, paired_difference
from linnet.inference.cache_policy import CachePolicies, cache_policy_state, calibrated_state, chooses
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.registry import CACHE_POLICIES, cache_policy_of, kinds_with_cache_policies
from linnet.layers.state import CachePolicyState
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState, rows_of
from linnet.ops.cross_entropy import TokenLosses


@dataclass(frozen=True)
class WindowEvaluator:
    """Evaluates batches with one decoder.

    frozen: the state of one stream after the calibration text; None for a causal decoder. tokens_at_once: tokens of a
    window in one pass. rounds: True if states are less precise than the computation (keys and values beside weights
    in few bits), so that windows are read with a state to include this loss.
    """

    decoder: Decoder
    frozen: DecoderState | None
    tokens_at_once: int
    rounds: bool

    @classmethod
    def create(cls, decoder: Decoder, calibration_1T: Tensor | None, context_length: int, tokens_at_once: int) -> Self:
        """For windows of at most `context_length` tokens. calibration_1T: required for a decoder that is not causal."""
        rounds = False
        if decoder.encoder is None:
            state = decoder.initial_state(1, 1, device=torch.device("meta"))
            tensors = (tensor for layer in state.layers for tensor in layer.tensors().values())
            itemsize = decoder.dtype.itemsize
            rounds = any(tensor.is_floating_point() and tensor.itemsize < itemsize for tensor in tensors)
        if decoder.causal:
            return cls(decoder, None, tokens_at_once, rounds)
        assert calibration_1T is not None, "a decoder that is not causal needs a calibration text"
        return cls(decoder, frozen_state(decoder, calibration_1T, 1, context_length), tokens_at_once, rounds)

    @torch.no_grad()
    def losses(self, batch: WindowBatch) -> TokenLosses:
        """The losses of the targets, `[B, T]`; the batch is on the decoder's device."""
        rows, length = batch.inputs_BT.shape
        state = None
        if self.frozen is not None:
            state = rows_of(self.frozen, rows)
        elif length > self.tokens_at_once or self.rounds:
            state = self.decoder.initial_state(rows, length)
        return self._read(batch.inputs_BT, batch.targets_BT, state)

    @torch.no_grad()
    def whole_sequence_losses(self, batch: WindowBatch) -> TokenLosses:
        """The losses of the pass that sees all of a window; windows of one length at a time, without padding."""
        nats_BT = torch.zeros(batch.targets_BT.shape, dtype=torch.float64, device=self.decoder.device)
        correct_BT = torch.zeros_like(nats_BT, dtype=torch.bool)
        lengths_B = batch.lengths_B
        for length in sorted(set(lengths_B.tolist())):
            rows = lengths_B == length
            hidden_BTD = self.decoder.hidden(batch.inputs_BT[rows, :length])
            each = self.decoder.each_loss(hidden_BTD, batch.targets_BT[rows, :length])
            nats_BT[rows, :length], correct_BT[rows, :length] = each.nats, each.correct
        return TokenLosses(nats_BT, correct_BT)

    @torch.no_grad()
    def cache_policy_losses(self, batch: WindowBatch, cache_policy: CachePolicies) -> tuple[TokenLosses, Tensor]:
        """The losses with a cache policy, and the bytes of its states, summed over all tokens; a float64 scalar.

        The bytes are those after each token, of all layers with a choice of policies.
        """
        padded, padding_B = batch.left_padded()
        rows, length = batch.inputs_BT.shape
        state = self.policy_state(rows, length, cache_policy)
        each = self._read(padded.inputs_BT, padded.targets_BT, state, padding_B)
        lengths_B = batch.lengths_B.cpu()
        held = [layer for layer in state.layers if isinstance(layer, CachePolicyState)]
        bytes_BL = torch.stack([layer.mean_nbytes(lengths_B).double().cpu() for layer in held], dim=1)
        back_BT = right_shift(length, -padding_B)
        each = TokenLosses(each.nats.gather(1, back_BT), each.correct.gather(1, back_BT))
        return each, (lengths_B.double() @ bytes_BL).sum()

    def policy_state(self, rows: int, length: int, cache_policy: CachePolicies) -> DecoderState:
        """An empty state with a cache policy, calibrated if the decoder is not causal by itself."""
        if self.frozen is None:
            return cache_policy_state(self.decoder, rows, length, cache_policy)
        return calibrated_state(self.decoder, rows_of(self.frozen, rows), length, cache_policy)

    def _read(
        self, inputs_BT: Tensor, targets_BT: Tensor, state: DecoderState | None, padding_B: Tensor | None = None
    ) -> TokenLosses:
        """Read in chunks with the state; rows with padding at their beginning are read in one pass."""
        length = inputs_BT.shape[1]
        padded = padding_B is not None and bool(padding_B.any())
        step = length if state is None or padded else max(1, self.tokens_at_once // len(inputs_BT))
        parts = []
        for first in range(0, length, step):
            chunk = slice(first, first + step)
            hidden_BTD = self.decoder.hidden(inputs_BT[:, chunk], state, padding=padding_B if padded else None)
            parts.append(self.decoder.each_loss(hidden_BTD, targets_BT[:, chunk]))
        return TokenLosses(torch.cat([part.nats for part in parts], 1), torch.cat([part.correct for part in parts], 1))


@dataclass(frozen=True)
class CachePolicyLoss:
    """The loss with one policy. difference: bits per byte more than with `FULL`, over the same documents.

    state_bytes: what the layers that have a choice hold of one stream, averaged over all tokens.
    """

    cache_policy: CachePolicy
    losses: DocumentLosses
    difference: Estimate
    state_bytes: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "cache_policy": self.cache_policy.label,
            **self.cache_policy.to_dict(),
            "bits_per_byte": self.losses.bits_per_byte.value,
            "standard_error": self.losses.bits_per_byte.standard_error,
            "difference": self.difference.value,
            "difference_error": self.difference.standard_error,
            "state_bytes": self.state_bytes,
        }


def parse_cache_policies(texts: Sequence[str], context_length: int) -> list[CachePolicy]:
    """`FULL`, those that every comparison shows, then those of `texts`, each once; `UserError` for a wrong text."""
    shown = [policy for kind in CACHE_POLICIES.values() for policy in kind.comparison(context_length)]
    requested = [cache_policy_of(text).for_length(context_length) for text in texts]
    return list(dict.fromkeys([FULL, *shown, *requested]))


def check_chooses(decoder: Decoder, field: str = "cache_policies") -> None:
    """`UserError` about `field` if no layer of the model has a choice of cache policies."""
    if not any(chooses(mixer) for mixer in decoder.mixers):
        kinds = ", ".join(dict.fromkeys(block.mixer.kind for block in decoder.spec.blocks))
        raise UserError(
            f"the model's layers ({kinds}) have one cache policy; expected a model with {kinds_with_cache_policies()}",
            field=field,
        )


def measure_cache_policies(
    evaluator: WindowEvaluator,
    batches: Callable[[], Iterator[WindowBatch]],
    cache_policies: Sequence[CachePolicy],
    new_sums: Callable[[], LossSums],
    losses_of: Callable[[LossSums], DocumentLosses],
    advance: Callable[[int, str], None],
) -> list[CachePolicyLoss]:
    """Read the same batches with each policy, `FULL` first. `advance` is called with the tokens that were read."""
    assert cache_policies[0] == FULL, "what the others are compared with"
    found: list[CachePolicyLoss] = []
    for cache_policy in cache_policies:
        sums, nbytes, tokens = new_sums(), torch.zeros((), dtype=torch.float64), 0
        for batch in batches():
            on_device = batch.to(evaluator.decoder.device)
            each, held = evaluator.cache_policy_losses(on_device, cache_policy)
            read = on_device.inputs_BT, on_device.targets_BT, batch.documents_BT
            advance(sums.add(each, *read), cache_policy.label)
            nbytes, tokens = nbytes + held, tokens + int(batch.lengths_B.sum())
        losses = losses_of(sums)
        full = found[0].losses if found else losses
        difference = paired_difference(full.bits_N, losses.bits_N, losses.bytes_N)
        found.append(CachePolicyLoss(cache_policy, losses, difference, float(nbytes) / tokens))
    return found
