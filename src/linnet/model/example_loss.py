"""The loss of a batch of examples, for each kind of decoder.

A causal decoder reads a row as it is. With `prefix` in its description the tokens of a row's prefix see all of one
another. With an encoder, the encoder reads the prefix, and the decoder begins with its last token.

Shapes: `B` batch, `T` tokens of the longest row, `S` of the longest prefix, `U` of the longest rest.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.model.decoder import Decoder, Inputs
from linnet.ops.cross_entropy import IGNORE_INDEX, SummedLoss, TokenLosses
from linnet.ops.distillation import SoftTargets


class DecoderBatch(NamedTuple):
    """A batch of examples as arguments of `Decoder.forward`; the labels are its `targets`."""

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
    soft_targets: SoftTargets | None = None,
    weights_BT: Tensor | None = None,
) -> SummedLoss:
    """The summed loss of the labels that are not `IGNORE_INDEX`, in nats.

    prefix_lengths: the tokens of each row before its first label that counts; needed where the model reads prefixes
    (`ModelSpec.prefix_field`). weights_BT: of the labels in the total, for a model without an encoder. The other
    arguments are those of `Decoder.forward`.
    """
    assert weights_BT is None or decoder.encoder is None, "weights of the rest of a row behind its prefix"
    batch = _decoder_batch(decoder, tokens_BT, labels_BT, prefix_lengths)
    loss: SummedLoss = decoder(
        batch.tokens,
        targets=batch.labels,
        inputs=batch.inputs,
        prefixes=batch.prefixes,
        documents=document_starts,
        record=record,
        z_loss=z_loss,
        soft_targets=soft_targets,
        target_weights=weights_BT,
    )
    return loss


class ExampleLosses(NamedTuple):
    """The loss of each label, and the tokens and labels, `[B, U]`, of the rows that the decoder reads."""

    each: TokenLosses
    tokens: Tensor
    labels: Tensor


@torch.no_grad()
def example_losses(
    decoder: Decoder, tokens_BT: Tensor, labels_BT: Tensor, prefix_lengths: Sequence[int] | None = None
) -> ExampleLosses:
    """The losses that `example_loss` sums, of each label, without gradients."""
    batch = _decoder_batch(decoder, tokens_BT, labels_BT, prefix_lengths)
    hidden = _hidden(decoder, batch)
    return ExampleLosses(decoder.each_loss(hidden, batch.labels), batch.tokens, batch.labels)


def example_nats(
    decoder: Decoder,
    tokens_BT: Tensor,
    labels_BT: Tensor,
    prefix_lengths: Sequence[int] | None = None,
    *,
    document_starts: Sequence[Sequence[int]] | None = None,
    record: AuxiliaryOutputs | None = None,
) -> Tensor:
    """`-log p` of each label that `example_loss` sums, with gradients, in nats `[B, U]`, 0 where it is ignored.

    U is T unless the model has an encoder, whose decoder reads shorter rows. The arguments are those of
    `example_loss`.
    """
    batch = _decoder_batch(decoder, tokens_BT, labels_BT, prefix_lengths)
    return decoder.token_nats(_hidden(decoder, batch, document_starts, record), batch.labels)


class ExampleValues(NamedTuple):
    """values_B: with gradients, float32. nats: the sum that `example_loss` returns, without gradients."""

    values_B: Tensor
    nats: Tensor


def example_values(
    decoder: Decoder,
    tokens_BT: Tensor,
    labels_BT: Tensor,
    prefix_lengths: Sequence[int] | None = None,
    *,
    document_starts: Sequence[Sequence[int]] | None = None,
    record: AuxiliaryOutputs | None = None,
) -> ExampleValues:
    """The value of each row (`Decoder.values`) at the token before its last label, which ends the text.

    The arguments are those of `example_loss`.
    """
    batch = _decoder_batch(decoder, tokens_BT, labels_BT, prefix_lengths)
    hidden_BUD = _hidden(decoder, batch, document_starts, record)
    last_B = batch.labels.shape[1] - 1 - (batch.labels != IGNORE_INDEX).flip(1).int().argmax(dim=1)
    rows_B = torch.arange(len(last_B), device=last_B.device)
    values_B = decoder.values(hidden_BUD[rows_B, last_B])
    with torch.no_grad():
        nats = decoder.each_loss(hidden_BUD, batch.labels).nats.sum()
    return ExampleValues(values_B, nats)


@torch.no_grad()
def example_logits(
    decoder: Decoder,
    tokens_BT: Tensor,
    labels_BT: Tensor,
    prefix_lengths: Sequence[int] | None = None,
    document_starts: Sequence[Sequence[int]] | None = None,
) -> Callable[[slice], Tensor]:
    """The logits, `slice -> [n, V]`, of the tokens whose labels `example_loss` reads, `[B, U]` flattened."""
    batch = _decoder_batch(decoder, tokens_BT, labels_BT, prefix_lengths)
    hidden_ND = _hidden(decoder, batch, document_starts).flatten(0, 1)

    @torch.no_grad()
    def logits(part: slice) -> Tensor:
        return decoder.logits(hidden_ND[part])

    return logits


def _hidden(
    decoder: Decoder,
    batch: DecoderBatch,
    document_starts: Sequence[Sequence[int]] | None = None,
    record: AuxiliaryOutputs | None = None,
) -> Tensor:
    memory = None if batch.inputs is None else decoder.encode(*batch.inputs, record)
    return decoder.hidden(
        batch.tokens, documents=document_starts, prefixes=batch.prefixes, memory=memory, record=record
    )


def _decoder_batch(
    decoder: Decoder, tokens_BT: Tensor, labels_BT: Tensor, prefix_lengths: Sequence[int] | None
) -> DecoderBatch:
    if decoder.spec.prefix_field is None:
        return DecoderBatch(tokens_BT, labels_BT)
    assert prefix_lengths is not None, "the model reads prefixes, but the examples have none"
    if decoder.encoder is None:
        return DecoderBatch(tokens_BT, labels_BT, prefixes=prefix_lengths)
    return split_prefixes(tokens_BT, labels_BT, prefix_lengths)


def split_prefixes(tokens_BT: Tensor, labels_BT: Tensor, prefix_lengths: Sequence[int]) -> DecoderBatch:
    """Split rows after their prefixes, for a model with an encoder.

    `inputs`: the prefixes `[B, S]`, padded on the left. `tokens`, `labels`: the rest `[B, U]`, from the prefix's last
    token to the last label.
    """
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
    labels_BU = labels_BU.masked_fill(places_BU >= length, IGNORE_INDEX)
    return DecoderBatch(tokens_BU, labels_BU, Inputs(inputs_BS, padding))
