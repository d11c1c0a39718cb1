"""Reading windows of text with a context: how likely they are, and how much was held while they were read.

Legend: `B` windows of a batch, `T` tokens of the longest of them, `L` layers that have a choice of cache policies.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from linnet.evaluation.frozen import frozen_state
from linnet.inference.cache_policy import cache_policy_state, calibrated_state
from linnet.layers.cache_policy import CachePolicy
from linnet.layers.state import CachePolicyState
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState, rows_of
from linnet.ops.cross_entropy import IGNORE_INDEX


@dataclass(frozen=True)
class Batch:
    """Windows that end together, padding before the shorter ones, None without any: int64 `[B, T]` and `[B]`.

    So every step of a stream is a token whose prediction counts.
    """

    inputs_BT: Tensor
    targets_BT: Tensor
    lengths_B: Tensor
    padding_B: Tensor | None

    @classmethod
    def left_padded(cls, inputs_BT: Tensor, targets_BT: Tensor) -> Self:
        """From windows that begin together, with targets that are `IGNORE_INDEX` at their ends."""
        lengths_B = (targets_BT != IGNORE_INDEX).sum(dim=1)
        width = targets_BT.shape[1]
        places_BT = (torch.arange(width, device=inputs_BT.device) + lengths_B[:, None]) % width
        padding_B = width - lengths_B
        return cls(
            inputs_BT.gather(1, places_BT),
            targets_BT.gather(1, places_BT),
            lengths_B,
            padding_B if bool(padding_B.any()) else None,
        )


@dataclass(frozen=True)
class Read:
    """What was found, of each window: nats `[B]`; average and largest size of each context, its bytes, `[B, L]`.

    Sizes and bytes are those after every token, averaged over the window. All on the CPU, in float64.
    """

    nats_B: Tensor
    mean_sizes_BL: Tensor
    largest_sizes_BL: Tensor
    nbytes_BL: Tensor

    @classmethod
    def join(cls, reads: Sequence["Read"]) -> "Read":
        """Those of several batches, one after the other."""
        return cls(*(torch.cat([getattr(read, field.name) for read in reads]) for field in fields(cls)))


@dataclass(frozen=True)
class WindowReader:
    """Reads with any context. `frozen`: what the other layers froze from another text, of one stream; None: nothing."""

    decoder: Decoder
    frozen: DecoderState | None

    @classmethod
    def of(cls, decoder: Decoder, calibration_1T: Tensor, context_length: int) -> Self:
        """For windows of so many tokens; a decoder that is not causal by itself freezes the calibration text."""
        return cls(decoder, None if decoder.causal else frozen_state(decoder, calibration_1T, 1, context_length))

    @torch.no_grad()
    def read(self, batch: Batch, context: CachePolicy) -> Read:
        """One pass over every window, which is on the decoder's device, with a state that is empty before it."""
        state = self._state(batch, context)
        hidden_BTD = self.decoder.hidden(batch.inputs_BT, state, padding=batch.padding_B)
        nats = [
            self.decoder.token_loss(hidden_BTD[row : row + 1], batch.targets_BT[row : row + 1]).nats
            for row in range(len(batch.targets_BT))
        ]
        held = [layer for layer in state.layers if isinstance(layer, CachePolicyState)]
        return Read(
            torch.stack(nats).double().cpu(),
            _columns(layer.mean_sizes(batch.lengths_B) for layer in held),
            _columns(layer.largest_sizes(batch.lengths_B) for layer in held),
            _columns(layer.mean_nbytes(batch.lengths_B) for layer in held),
        )

    def _state(self, batch: Batch, context: CachePolicy) -> DecoderState:
        rows, width = batch.inputs_BT.shape
        if self.frozen is None:
            return cache_policy_state(self.decoder, rows, width, context)
        return calibrated_state(self.decoder, rows_of(self.frozen, rows), width, context)


def _columns(of_layers: Iterable[Tensor]) -> Tensor:
    """`[B]` of each layer as `[B, L]`."""
    return torch.stack([of_layer.double().cpu() for of_layer in of_layers], dim=1)
