"""A decoder whose pass without a state sees the future, made causal: its layers are calibrated on another text.

Legend: `B` batch, `T` tokens.
"""

from typing import Literal

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.token_data import TokenData
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState, rows_of

CalibrationText = Literal["train", "empty"]


def calibration_tokens(data: TokenData, source: CalibrationText, context_length: int) -> Tensor:
    """The text that layers calibrate on, int64 `[1, T]`.

    `train`: the first `context_length` tokens of the training split. `empty`: the empty prompt, the end token alone
    (Gokden, arXiv 2502.13502, for inference).
    """
    if source == "empty":
        return torch.tensor([[data.tokenizer.end_id]])
    sequence = data.split("train")
    return torch.from_numpy(sequence.read(0, min(context_length, len(sequence))))[None]


@torch.no_grad()
def frozen_state(decoder: Decoder, calibration_1T: Tensor, batch: int, capacity: int) -> DecoderState:
    """A state for `batch` streams of `capacity` tokens that has seen none, but holds what the calibration text settled.

    The decoder reads the text with a state, then each layer forgets its tokens. `UserError` where a layer sees the
    future and nothing that it settles makes it causal.
    """
    for number, layer in enumerate(decoder.layers):
        for sublayer in (layer.mixer, layer.feed_forward):
            if sublayer is not None and not (sublayer.traits.causal or sublayer.traits.calibrates):
                where = f"layer {number}: {decoder.spec.layer_kinds[number]}"
                raise UserError(f"{where}: sees later tokens always; expected layers that can be causal")
    state = decoder.initial_state(1, max(capacity, calibration_1T.shape[1]))
    decoder.hidden(calibration_1T.to(decoder.device), state)
    return rows_of(state.forget(), batch)
