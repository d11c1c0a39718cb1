"""The loss of examples, as each kind of decoder reads them.

A causal decoder reads a row as it stands. With `prefix` in its description the tokens of a row's prefix see all of one
another. With an encoder, the encoder reads the prefix, and the decoder begins with its last token.

Legend: `B` batch, `T` tokens of the longest row, `S` of the longest prefix, `U` of the longest rest.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from linnet.layers.batch_layout import AuxiliaryOutputs, Counts
from linnet.model.decoder import Decoder, Inputs
from linnet.ops.cross_entropy import IGNORE_INDEX, SummedLoss, TokenLosses


class _Read(NamedTuple):
    """What a decoder is given of a batch of examples."""

    tokens: Tensor
    labels: Tensor
    inputs: Inputs | None = None
    prefixes: Sequence[int] | None = None


def example_loss(
    decoder: Decoder,
    tokens_BT: Tensor,
    labels_BT: Tensor,
    prefix_lengths: Sequence[int] | None = None,
    *,
    document_starts: Sequence[Sequence[int]] | None = None,
    record: AuxiliaryOutputs | None = None,
    z_loss: float = 0.0,
) -> SummedLoss:
    """The summed loss of the labels that are not `IGNORE_INDEX`, in nats.

    prefix_lengths: the tokens of each row before its first label that counts; needed where the model reads prefixes
    (`ModelSpec.prefix_field`). The other arguments are those of `Decoder.forward`.
    """
    read = _read(decoder, tokens_BT, labels_BT, prefix_lengths)
    loss: SummedLoss = decoder(
        read.tokens,
        targets=read.labels,
        inputs=read.inputs,
        prefixes=read.prefixes,
        documents=document_starts,
        record=record,
        z_loss=z_loss,
    )
    return loss


class ExampleLosses(NamedTuple):
    """The loss of each label, and the labels, `[B, U]`: in rows as the decoder reads them."""

    each: TokenLosses
    labels: Tensor


@torch.no_grad()
def example_losses(
    decoder: Decoder, tokens_BT: Tensor, labels_BT: Tensor, prefix_lengths: Sequence[int] | None = None
) -> ExampleLosses:
    """What `example_loss` adds up, label by label, without gradients."""
    read = _read(decoder, tokens_BT, labels_BT, prefix_lengths)
    memory = None if read.inputs is None else decoder.encode(*read.inputs)
    hidden = decoder.hidden(read.tokens, prefixes=read.prefixes, memory=memory)
    return ExampleLosses(decoder.each_loss(hidden, read.labels), read.labels)


def _read(decoder: Decoder, tokens_BT: Tensor, labels_BT: Tensor, prefix_lengths: Sequence[int] | None) -> _Read:
    if decoder.spec.prefix_field is None:
        return _Read(tokens_BT, labels_BT)
    assert prefix_lengths is not None, "a model that reads prefixes, and examples without"
    if decoder.encoder is None:
        return _Read(tokens_BT, labels_BT, prefixes=prefix_lengths)
    rows = split_prefixes(tokens_BT, labels_BT, prefix_lengths)
    return _Read(rows.tokens_BU, rows.labels_BU, Inputs(rows.inputs_BS, rows.padding))


class SplitRows(NamedTuple):
    """Rows cut behind their prefixes: the prefixes, padded on the left, and what the decoder reads and predicts."""

    inputs_BS: Tensor
    padding: Counts
    tokens_BU: Tensor
    labels_BU: Tensor


def split_prefixes(tokens_BT: Tensor, labels_BT: Tensor, prefix_lengths: Sequence[int]) -> SplitRows:
    """The prefix of each row, and the rest, which begins with the prefix's last token and ends with the last label."""
    device, length = tokens_BT.device, tokens_BT.shape[1]
    longest = max(prefix_lengths)
    padding = tuple(longest - prefix for prefix in prefix_lengths)
    first_B = torch.tensor(prefix_lengths, device=device) - 1
    last_B = length - 1 - (labels_BT != IGNORE_INDEX).flip(1).int().argmax(dim=1)
    widest = int((last_B - first_B).max()) + 1
    places_BS = torch.arange(longest, device=device) - torch.tensor(padding, device=device)[:, None]
    inputs_BS = tokens_BT.gather(1, places_BS.clamp(min=0))
    places_BU = torch.arange(widest, device=device) + first_B[:, None]
    tokens_BU, labels_BU = (x_BT.gather(1, places_BU.clamp(max=length - 1)) for x_BT in (tokens_BT, labels_BT))
    return SplitRows(inputs_BS, padding, tokens_BU, labels_BU.masked_fill(places_BU >= length, IGNORE_INDEX))
