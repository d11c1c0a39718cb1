"""Fill-in-the-middle that is drawn for each batch, and so anew in each epoch: the documents of windows, rearranged.

What of a document lies in a window is cut and reordered as a whole document is in `fill_in_the_middle`, so that no part
of it is torn off by the end of a window (context-level: Bavarian et al. 2022, section 4.4). The control tokens and the
parts, which are encoded anew, take more room than the document did: what then does not fit into the window is left out
at its end.

Legend: `B` rows of a batch, `T` tokens of a row.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch

from linnet.data.fill_in_the_middle import FillInTheMiddle, Rearranger, Section
from linnet.data.loader import Batch
from linnet.data.tokenizer import Tokenizer

NOT_TEXT = "\ufffd"
"""What stands for bytes that are no character, as those at the cut of a window."""


class BatchRearranger:
    """Rearranges documents of batches of text; the seeds and the number of a batch determine what becomes of it."""

    def __init__(self, spec: FillInTheMiddle, tokenizer: Tokenizer, seed: int) -> None:
        """seed: of the run. `UserError` if the tokenizer does not have a control token of `spec`."""
        self._rearranger = Rearranger(spec, tokenizer, "training.fill_in_the_middle.tokens")
        self._tokenizer, self._seeds = tokenizer, (spec.seed, seed)
        self._special = frozenset(tokenizer.special_ids.values())

    def rearranged(self, batch: Batch, number: int) -> Batch:
        """Batch `number` of windows, with some of its documents rearranged, as wide as it was.

        Its weights are bool, False for what fills a row up; where documents begin is as it is now.
        """
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([*self._seeds, number])))
        rows = [list(self._pieces(batch, row)) for row in range(len(batch))]
        drawn = [[self._sections(piece, random) for piece in row] for row in rows]
        texts = [section.text for row in drawn for sections in row for section in sections]
        encoded = iter(self._tokenizer.encode_batch(texts))
        shape = batch.tokens.shape
        tokens_BT, targets_BT = (np.full(shape, self._tokenizer.end_id, dtype=np.int64) for _ in range(2))
        weights_BT, begins = np.zeros(shape, dtype=np.bool_), list[tuple[int, ...]]()
        for row, (pieces, of_pieces) in enumerate(zip(rows, drawn, strict=True)):
            filled, starts = 0, list[int]()
            for piece, sections in zip(pieces, of_pieces, strict=True):
                ids = np.array(self._joined(piece, sections, encoded), dtype=np.int64)[: shape[1] - filled + 1]
                place = slice(filled, filled + len(ids) - 1)
                tokens_BT[row, place], targets_BT[row, place], weights_BT[row, place] = ids[:-1], ids[1:], True
                starts.append(filled)
                filled = place.stop
            begins.append((0, *(start for start in [*starts, filled] if 0 < start < shape[1])))
        return Batch(
            torch.from_numpy(tokens_BT),
            torch.from_numpy(targets_BT),
            torch.from_numpy(weights_BT),
            None if batch.document_starts is None else tuple(begins),
        )

    def _pieces(self, batch: Batch, row: int) -> Iterator[list[int]]:
        """The documents of a row, or what of them is in it, each with the end tokens around it that the row has."""
        count = batch.tokens.shape[1] if batch.weights is None else int(batch.weights[row].count_nonzero())
        tokens, targets = (each[row, :count].numpy() for each in (batch.tokens, batch.targets))
        # Another document begins with an end token; the rest of a long one, in packed windows, with any other.
        breaks = np.flatnonzero((tokens[1:] == self._tokenizer.end_id) | (targets[:-1] != tokens[1:])) + 1
        bounds: list[int] = [0, *breaks.tolist(), count] if count else []
        for start, stop in pairwise(bounds):
            yield [*tokens[start:stop].tolist(), int(targets[stop - 1])]

    def _sections(self, piece: list[int], random: np.random.Generator) -> list[Section]:
        """The sections of what was drawn to be rearranged; none: it stays as it is."""
        order, body = self._rearranger.drawn_order(random), self._body(piece)
        if order is None or not body or self._special.intersection(body):
            return []
        text = self._tokenizer.decode(body)
        return [] if NOT_TEXT in text or not text else self._rearranger.cut(text, order, random)

    def _body(self, piece: list[int]) -> list[int]:
        """The tokens between the end tokens."""
        end_id = self._tokenizer.end_id
        return piece[piece[0] == end_id : len(piece) - (piece[-1] == end_id)]

    def _joined(self, piece: list[int], sections: list[Section], encoded: Iterator[list[int]]) -> list[int]:
        """The tokens of a piece, with its sections, which take their tokens from `encoded`, in place of its body."""
        if not sections:
            return piece
        end_id = self._tokenizer.end_id
        ids = piece[:1] if piece[0] == end_id else []
        for section in sections:
            ids += [*section.controls, *next(encoded)]
        return ids + (piece[-1:] if piece[-1] == end_id else [])
