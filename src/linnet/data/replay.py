"""Batches of rows, such as conversations, among which stand windows of a text, so that a model does not forget it.

Legend: `B` rows of a batch, `T` tokens of a row.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.loader import Batch, Batches
from linnet.data.mixed_batches import Interleaving
from linnet.data.packing import PackedBatches
from linnet.data.token_data import TokenData, read_manifest


def open_replayed(folder: str | Path, data: TokenData) -> TokenData:
    """A data folder of text that is read beside the rows of `data`.

    `UserError` for one of rows, and for a tokenizer that is not that of the rows without its control tokens.
    """
    check_replayed(folder)
    text = TokenData.open(folder)
    if text.is_rows:
        raise UserError("holds rows", field="training.replay.data", value=folder, accepted="a data folder of text")
    if data.tokenizer.added_to(text.tokenizer) is None:
        problem = f"its tokens were made with another tokenizer than those of {data.folder}"
        accepted = "a text prepared with the tokenizer of the model that the run starts from"
        raise UserError(problem, field="training.replay.data", value=folder, accepted=accepted)
    return text


def check_replayed(folder: str | Path) -> None:
    """`UserError` that names the field unless there is a data folder."""
    try:
        read_manifest(Path(folder))
    except UserError as error:
        raise UserError(str(error), field="training.replay.data") from error


class ReplayBatches:
    """Batches of rows of which a share are windows of a text; the number of a batch determines its content.

    Rows and windows follow each other as evenly as the share allows, each with epochs of its own.
    """

    def __init__(
        self, rows: Batches | PackedBatches, text: Batches | PackedBatches, share: float, per_row: bool = False
    ) -> None:
        """share: of the sequences of a batch. per_row: a window counts as much as a row, whose weights have the sum 1;
        else each of its targets counts as much as a target of weight 1.
        """
        self.rows, self.text, self.share, self._per_row = rows, text, share, per_row
        self.batch_size, self.context_length = rows.batch_size, rows.context_length
        self._order = Interleaving(np.array([1 - share, share]))

    @property
    def tokens_per_batch(self) -> int:
        """Places of a batch at most: `B * T`."""
        return self.rows.tokens_per_batch

    @property
    def mean_lengths(self) -> tuple[float, float] | None:
        """The mean number of targets of a sequence that do not count, and that count; None for packed windows."""
        if self.rows.mean_lengths is None:
            return None
        others, counted = self.rows.mean_lengths
        return (1 - self.share) * others, (1 - self.share) * counted + self.share * self.text.mean_targets

    @property
    def counted_share(self) -> float:
        """The share of the places of packed windows whose targets count in the loss."""
        if self.rows.mean_lengths is not None:
            return 1.0
        filled = self.text.mean_targets / self.context_length
        return (1 - self.share) * self.rows.counted_share + self.share * filled

    @property
    def share_of_targets(self) -> float:
        """The share of the targets that count that are of the text."""
        if self.rows.mean_lengths is None:
            counted = self.rows.counted_share * self.context_length
        else:
            counted = self.rows.mean_lengths[1]
        of_text, of_rows = self.share * self.text.mean_targets, (1 - self.share) * counted
        return of_text / (of_text + of_rows)

    def batch(self, number: int) -> Batch:
        """Batch `number`, from 0."""
        chosen = self._order.order(number * self.batch_size, (number + 1) * self.batch_size)
        parts = [
            each.examples(numbers)
            for source, each in enumerate((self.rows, self.text))
            if (numbers := [at for of, at in chosen if of == source])
        ]
        width, is_weighted = max(part.tokens.shape[1] for part in parts), any(p.loss_weights is not None for p in parts)
        padded = [self._padded(part, width, is_weighted) for part in parts]
        order = torch.tensor(sorted(range(len(chosen)), key=lambda row: chosen[row][0])).argsort()
        tokens, targets, weights = (torch.cat(tensors)[order] for tensors in zip(*padded, strict=True))
        starts = None
        if any(part.document_starts is not None for part in parts):
            listed = [each for part in parts for each in _starts(part, width)]
            starts = tuple(listed[row] for row in order.tolist())
        return Batch(tokens, targets, weights, starts)

    def _padded(self, part: Batch, width: int, is_weighted: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, targets and weights `[B, T]` of rows that are filled up with end tokens, which do not count."""
        room, end_id = width - part.tokens.shape[1], self.rows.sequence.end_id
        weights_BT = torch.ones(part.tokens.shape, dtype=torch.bool) if part.weights is None else part.weights
        if is_weighted and weights_BT.dtype == torch.bool:
            weights_BT = weights_BT.float()
            if self._per_row:
                weights_BT = weights_BT / weights_BT.sum(dim=1, keepdim=True)
        tokens_BT, targets_BT = (F.pad(each, (0, room), value=end_id) for each in (part.tokens, part.targets))
        return tokens_BT, targets_BT, F.pad(weights_BT, (0, room))


def _starts(part: Batch, width: int) -> Sequence[tuple[int, ...]]:
    """Where documents begin in rows that are filled up to a width; what fills them up begins like a document."""
    own = part.tokens.shape[1]
    if own == width:
        return part.document_starts or [(0,)] * len(part)
    # Rows of one conversation: those that were shorter than others have a beginning behind them already.
    return [each if len(each) > 1 else (0, own) for each in part.document_starts or [(0,)] * len(part)]
