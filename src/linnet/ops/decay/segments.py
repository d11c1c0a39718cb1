"""A batch in segments of whole chunks, each with the chunk before it, taken in turn.

Legend: `B` batch, `S` tokens, `N` heads, `H` channels of a head, `P` rows times heads, `K` chunks of a segment, `C`
tokens of a chunk.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

SEGMENT_NUMBERS = 2**20
"""Numbers of a segment's quantities on a processor: 4 MiB in float32. A GPU takes all at once."""


@dataclass(frozen=True)
class Segment:
    """Tokens `start` to `end` of some rows of the batch; `start` is a multiple of the chunk."""

    rows: slice
    start: int
    end: int
    chunk: int

    def cut(self, x_BSNH: Tensor) -> Tensor:
        """The segment's chunks behind the one before them, zeros where the stream has none: `[P, K + 1, C, H]`.

        A view where it can be: of one row and head, from the second segment on.
        """
        first = max(0, self.start - self.chunk)
        before, after = first + self.chunk - self.start, (self.start - self.end) % self.chunk
        x_BNSH = x_BSNH[self.rows, first : self.end].transpose(1, 2)
        if before or after:
            x_BNSH = F.pad(x_BNSH, (0, 0, before, after))
        return x_BNSH.reshape(x_BNSH.shape[0] * x_BNSH.shape[1], -1, self.chunk, x_BNSH.shape[3])

    def put(self, x_PKCH: Tensor, out_BSNH: Tensor) -> None:
        """Write the chunks of the segment to their place."""
        out_BSNH = out_BSNH[self.rows]
        batch, _, heads, channels = out_BSNH.shape
        x_BNSH = x_PKCH.reshape(batch, heads, -1, channels)[:, :, : self.end - self.start]
        out_BSNH[:, self.start : self.end] = x_BNSH.transpose(1, 2)

    def add(self, x_PKCH: Tensor, out_BSNH: Tensor) -> None:
        """Add the chunks of the segment and the one before to their place."""
        out_BSNH = out_BSNH[self.rows]
        batch, _, heads, channels = out_BSNH.shape
        first = max(0, self.start - self.chunk)
        x_BNSH = x_PKCH.reshape(batch, heads, -1, channels)[:, :, first + self.chunk - self.start :]
        out_BSNH[:, first : self.end] += x_BNSH[:, :, : self.end - first].transpose(1, 2)


def segments(v_BSNH: Tensor, chunk: int, times: int = 1) -> Iterator[Segment]:
    """The segments of a batch: rows by rows, in turn. Long rows come one by one, which saves copies.

    times: how many numbers lie between inputs and outputs for each of the quantities.
    """
    batch, length = v_BSNH.shape[:2]
    most = SEGMENT_NUMBERS // times if v_BSNH.device.type == "cpu" else v_BSNH.numel()
    at_once = max(1, min(batch, most // max(1, v_BSNH[0].numel()))) if batch else 1
    chunks = max(1, most // max(1, v_BSNH[:at_once, 0].numel() * chunk))
    if v_BSNH.device.type != "cpu":
        chunks = max(1, -(-length // chunk))
    for row in range(0, batch, at_once):
        for start in range(0, length, chunks * chunk):
            yield Segment(slice(row, row + at_once), start, min(start + chunks * chunk, length), chunk)
