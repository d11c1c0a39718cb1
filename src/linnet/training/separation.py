"""A check before the first step of a run on rows: that each is read as it would be read alone.

Rows that share a window or a batch with others must not see them, nor what fills them up: otherwise the loss of a
conversation depends on its company, and a model learns from texts that it is never asked with. Every kind of layer is
tested for that; this check holds for the model, the data and the settings of the run at hand.

Legend: `T` tokens of a row.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch

from linnet.core.errors import UserError
from linnet.data.loader import Batch, Batches
from linnet.data.packing import PackedBatches
from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.model.decoder import Decoder
from linnet.model.example_loss import example_loss

CHECKED_ROWS = 2
"""Rows, or windows of several, that are read together and alone."""

TOLERANCE = 1e-4
"""Relative to the loss: rounding in float32 is far below it, another conversation in sight far above."""


def check_separation(
    decoder: Decoder, batches: Batches | PackedBatches, note: Callable[[str], None] = lambda text: None
) -> None:
    """Compare the loss of the first rows with the sum of their losses alone, in training without gradients.

    `UserError` if they differ in packed windows; a note if they do in padded rows, which may be meant so (experts that
    drop tokens). The decoder is whole, with the weights that the run begins with.
    """
    batch = batches.examples(range(CHECKED_ROWS)).to(decoder.device)
    together, alone = _nats(decoder, batch), sum(_nats(decoder, part) for part in _parts(batch))
    if abs(together - alone) <= TOLERANCE * max(1.0, abs(alone)):
        return
    found = f"the first rows have a loss of {together:.4f} nats together and {alone:.4f} each alone"
    if isinstance(batches, PackedBatches):
        problem = f"{found}: a layer does not keep them apart"
        raise UserError(f"training.windows: packed: {problem}; expected the default, a row of its own")
    note(f"note: {found}: a layer sees the rows of a batch, or what fills them up")


def _parts(batch: Batch) -> Iterator[Batch]:
    """Each row of a batch up to its last target that counts, or each document of it; not what fills a row up."""
    assert batch.weights is not None, "rows have a mask"
    counted_BT = (batch.weights != 0).cpu()
    for row in range(len(batch)):
        begins = (0,) if batch.document_starts is None else batch.document_starts[row]
        for begin, end in pairwise((*begins, batch.tokens.shape[1])):
            places = counted_BT[row, begin:end].nonzero()
            if not len(places):  # padding
                continue
            last = begin + int(places[-1]) + 1 if batch.document_starts is None else end
            part = slice(row, row + 1), slice(begin, last)
            prefixes = None if batch.prefix_lengths is None else batch.prefix_lengths[row : row + 1]
            yield Batch(batch.tokens[part], batch.targets[part], batch.weights[part], None, prefixes)


@torch.no_grad()
def _nats(decoder: Decoder, batch: Batch) -> float:
    record = AuxiliaryOutputs(training=True)
    starts = batch.document_starts
    loss = example_loss(
        decoder, batch.tokens, batch.labels, batch.prefix_lengths, document_starts=starts, record=record
    )
    return float(loss.nats)
