"""Fresh streams of a decoder that is to be measured, causal ones and those that a frozen calibration makes causal.

Legend: `B` batch, `T` tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.evaluation.frozen import frozen_state
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState, rows_of


class StateFactory:
    """States that have seen no token. Of a decoder that is not causal by itself they hold a frozen calibration.

    It is frozen from a calibration text, so that no score depends on what else is read, nor on how it is cut.
    """

    def __init__(self, decoder: Decoder, calibration_1T: Tensor) -> None:
        """calibration_1T: int64 `[1, T]`; the empty prompt is the end token alone.

        `UserError` for a model that reads pairs.
        """
        if decoder.encoder is not None or decoder.spec.prefix:
            raise UserError("a model of pairs (an encoder or a prefix): tasks are for decoders that read a text")
        self.decoder = decoder
        self._calibration_1T = calibration_1T
        self._frozen: DecoderState | None = None

    @property
    def context_length(self) -> int:
        """Tokens that are read at once at most: those of the model's description."""
        return self.decoder.spec.context_length

    def new_state(self, batch: int, capacity: int) -> DecoderState:
        """A state for `batch` streams of at most `capacity` tokens."""
        if self.decoder.causal:
            return self.decoder.initial_state(batch, capacity)
        if self._frozen is None or self._frozen.capacity < capacity:
            self._frozen = frozen_state(self.decoder, self._calibration_1T, 1, capacity)
        return rows_of(self._frozen, batch)

    def single_pass_state(self, batch: int, length: int) -> DecoderState | None:
        """The same for streams that are read at once; None where a pass without a state is causal."""
        return None if self.decoder.causal else self.new_state(batch, length)


def right_pad(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Token ids `[B, T]`, id 0 behind the shorter rows: what is causal does not see it."""
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
