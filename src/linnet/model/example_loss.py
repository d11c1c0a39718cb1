"""The loss of a batch of examples, for each kind of decoder.

A causal decoder reads a row as it is. With `prefix` in its description the tokens of a row's prefix see all of one
another. With an encoder, the encoder reads the prefix, and the decoder begins with its last token.

Rows of different lengths are read without what fills them up, one behind the other as documents (`JoinedRows`), where
no layer can tell the difference.

Shapes: `B` batch, `T` tokens of the longest row, `S` of the longest prefix, `U` of the longest rest, `M` tokens of all
rows up to their last labels.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.model.decoder import Decoder, Inputs
from linnet.ops.cross_entropy import IGNORE_INDEX, SummedLoss, TokenLosses
from linnet.ops.distillation import SoftTargets

SAVED = 0.1
"""The least share of all places that is left out when rows are joined; finding and moving them costs as much."""


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
    joined = None if document_starts is not None or soft_targets is not None else JoinedRows.of(decoder, batch)
    if joined is not None:
        batch, document_starts = DecoderBatch(joined.read(batch.tokens), joined.read(batch.labels)), joined.starts
        weights_BT = None if weights_BT is None else joined.read(weights_BT)
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


class JoinedRows(NamedTuple):
    """Rows of a batch one behind the other, each up to its last label, as documents of a single row.

    places_M: of the tokens that are read, in `[B, T]` flattened. starts: where rows begin in `[1, M]`.
    """

    places_M: Tensor
    starts: tuple[tuple[int, ...]]

    @classmethod
    def of(cls, decoder: Decoder, batch: DecoderBatch) -> "JoinedRows | None":
        """None where that saves little, or a layer would see a difference.

        On a GPU the lengths would have to be waited for.
        """
        labels_BT, plain = batch.labels, batch.inputs is None and batch.prefixes is None
        if not plain or labels_BT.device.type != "cpu" or torch.compiler.is_compiling():
            return None
        counted_BT = labels_BT != IGNORE_INDEX
        if bool(counted_BT[:, -1].all()) or not decoder.causal or not _reads_rows_alike(decoder):
            return None
        length = labels_BT.shape[1]
        ends_B = (counted_BT * torch.arange(1, length + 1)).amax(dim=1)
        places_M = (torch.arange(length) < ends_B[:, None]).flatten().nonzero().flatten()
        if not 0 < len(places_M) <= (1 - SAVED) * labels_BT.numel():
            return None
        ends = ends_B[ends_B > 0].cumsum(dim=0).tolist()
        return cls(places_M, ((0, *ends[:-1]),))

    def read(self, x_BT: Tensor) -> Tensor:
        """`[B, T] -> [1, M]`."""
        return x_BT.flatten()[self.places_M][None]

    def placed(self, x_1MD: Tensor, shape: torch.Size) -> Tensor:
        """`[1, M, D] -> [B, T, D]`, with zeros where nothing was read. shape: B and T."""
        width = x_1MD.shape[-1]
        flat = x_1MD.new_zeros(shape.numel(), width).index_put((self.places_M,), x_1MD[0])
        return flat.view(*shape, width)


def _reads_rows_alike(decoder: Decoder) -> bool:
    """False if a layer treats a token in training by all tokens of the batch, those that fill rows up included."""
    return not decoder.training or all(sublayer.traits.same_in_training for sublayer in decoder.sublayers)


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
    """The output of `Decoder.hidden`, `[B, U, D]`; anything behind the last label of a row."""
    joined = None if document_starts is not None else JoinedRows.of(decoder, batch)
    if joined is not None:
        hidden_1MD = decoder.hidden(joined.read(batch.tokens), documents=joined.starts, record=record)
        return joined.placed(hidden_1MD, batch.labels.shape)
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
