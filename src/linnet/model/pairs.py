"""How a model reads pairs of an input and a target, and the loss of the targets.

A row of pairs is what `data.pairs` makes: an end token, the input, an end token, the target, and an end token that is
predicted last; targets within the input are ignored. A causal decoder reads it as it stands. With `prefix` the tokens
up to the second end see all of one another; an encoder reads these, and the decoder begins at that end.

Legend: `B` batch, `T` tokens of the longest row, `S` of the longest input, `U` of the longest target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from linnet.layers.batch_layout import AuxiliaryOutputs, Counts
from linnet.model.decoder import Decoder
from linnet.model.encoder_decoder import Inputs
from linnet.model.state import DecoderState
from linnet.ops.cross_entropy import IGNORE_INDEX, SummedLoss, TokenLosses


def loss_of_rows(
    decoder: Decoder,
    tokens_BT: Tensor,
    targets_BT: Tensor,
    state: DecoderState | None = None,
    *,
    documents: Sequence[Sequence[int]] | None = None,
    record: AuxiliaryOutputs | None = None,
    z_loss: float = 0.0,
) -> SummedLoss:
    """The summed loss of the targets that count; arguments as those of `Decoder.forward`.

    A model that reads pairs (`ModelSpec.reads_pairs`) does so with the tokens up to the first target that counts.
    """
    rows = _read(decoder, tokens_BT, targets_BT)
    loss: SummedLoss = decoder(
        rows.tokens,
        state,
        targets=rows.targets,
        inputs=rows.inputs,
        prefixes=rows.prefixes,
        documents=documents if rows.inputs is None else None,
        record=record,
        z_loss=z_loss,
    )
    return loss


class RowLosses(NamedTuple):
    """The loss of each target, and the targets, `[B, U]`: in rows as the decoder reads them."""

    each: TokenLosses
    targets: Tensor


@torch.no_grad()
def losses_of_rows(decoder: Decoder, tokens_BT: Tensor, targets_BT: Tensor) -> RowLosses:
    """What `loss_of_rows` adds up, target by target, without a state or gradients."""
    rows = _read(decoder, tokens_BT, targets_BT)
    memory = None if rows.inputs is None else decoder.encode(*rows.inputs)
    hidden = decoder.hidden(rows.tokens, prefixes=rows.prefixes, memory=memory)
    return RowLosses(decoder.each_loss(hidden, rows.targets), rows.targets)


class _Read(NamedTuple):
    """What a decoder is given of rows."""

    tokens: Tensor
    targets: Tensor
    inputs: Inputs | None = None
    prefixes: list[int] | None = None


def _read(decoder: Decoder, tokens_BT: Tensor, targets_BT: Tensor) -> _Read:
    if decoder.encoder is not None:
        rows = split_rows(tokens_BT, targets_BT)
        return _Read(rows.tokens_BU, rows.targets_BU, Inputs(rows.inputs_BS, rows.padding))
    prefixes = (first_targets(targets_BT) + 1).tolist() if decoder.spec.prefix else None
    return _Read(tokens_BT, targets_BT, prefixes=prefixes)


def first_targets(targets_BT: Tensor) -> Tensor:
    """The place of each row's first target that counts, int64 `[B]`; 0 where none does."""
    return (targets_BT != IGNORE_INDEX).int().argmax(dim=1)


@dataclass(frozen=True)
class SplitRows:
    """Rows of pairs taken apart: inputs, padding before the shorter ones, and what the decoder reads and predicts."""

    inputs_BS: Tensor
    padding: Counts
    tokens_BU: Tensor
    targets_BU: Tensor


def split_rows(tokens_BT: Tensor, targets_BT: Tensor) -> SplitRows:
    """The input with the ends before and behind it, and the decoder's part, which begins with the end behind it."""
    device, length = tokens_BT.device, tokens_BT.shape[1]
    counted_BT = targets_BT != IGNORE_INDEX
    first_B = first_targets(targets_BT)
    last_B = length - 1 - counted_BT.flip(1).int().argmax(dim=1)
    longest, widest = int(first_B.max()) + 1, int((last_B - first_B).max()) + 1
    padding_B = longest - 1 - first_B
    inputs_BS = tokens_BT.gather(1, (torch.arange(longest, device=device) - padding_B[:, None]).clamp(min=0))
    places_BU = torch.arange(widest, device=device) + first_B[:, None]
    tokens_BU, targets_BU = (x_BT.gather(1, places_BU.clamp(max=length - 1)) for x_BT in (tokens_BT, targets_BT))
    targets_BU = targets_BU.masked_fill(places_BU >= length, IGNORE_INDEX)
    return SplitRows(inputs_BS, tuple(padding_B.tolist()), tokens_BU, targets_BU)
