"""What a TED layer keeps of a stream: all of it (`full`), what an eviction policy leaves (`policy`), or a bank of sums
(`bank`).

Three states behind one interface; which one is the caller's choice, per stream, not the model's. Rates are kept in
float32 or wider whatever the model's precision: over a long life a rounded rate is another life.

Shapes: `B` batch, `T` tokens of the chunk, `E` tokens that are held, `N` heads, `C` channels of a head, `D` width,
`M` width of a key.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.state import CachePolicyState
from linnet.ops.decay.reference import Keys, decay_reference


class Sums(Protocol):
    """The decaying sums of a whole stream: `(rates_BEN, v_BENC, queries) -> [B, queries, N, C]`."""

    def __call__(self, rates_BSN: Tensor, v_BSNC: Tensor, queries: int, /, *, keys: Keys | None) -> Tensor:
        """keys: of the readers and of all tokens; None: the layer has none."""


RowReader = Callable[[Tensor, Tensor, int, Keys | None], Tensor]
"""What one token of one stream reads: `(rates_1N, v_1D, position, its query and key) -> [1, D]`."""


@dataclass(frozen=True)
class Shape:
    """Of a state's tensors: rows, heads, channels of a head; where they are, and the precision of the quantities.

    key: numbers of a key. before: inputs of a convolution that come before the current one. 0 where there is none.
    """

    batch: int
    heads: int
    channels: int
    device: torch.device
    dtype: torch.dtype
    key: int = 0
    before: int = 0

    @property
    def wide(self) -> torch.dtype:
        """The precision of rates and sums."""
        return torch.promote_types(self.dtype, torch.float32)

    def values(self, tokens: int) -> Tensor:
        """Zeros `[B, E, D]` for the quantities."""
        width = self.heads * self.channels
        return torch.zeros(self.batch, tokens, width, device=self.device, dtype=self.dtype)

    def rates(self, tokens: int) -> Tensor:
        """Zeros `[B, E, N]`."""
        return torch.zeros(self.batch, tokens, self.heads, device=self.device, dtype=self.wide)

    def keys(self, tokens: int) -> Tensor | None:
        """Zeros `[B, E, N, M]`, as precise as the quantities."""
        if not self.key:
            return None
        return torch.zeros(self.batch, tokens, self.heads, self.key, device=self.device, dtype=self.dtype)

    def inputs(self) -> Tensor | None:
        """Zeros `[B, D, before]`."""
        if not self.before:
            return None
        width = self.heads * self.channels
        return torch.zeros(self.batch, width, self.before, device=self.device, dtype=self.dtype)


@dataclass
class TedState(CachePolicyState):
    """What all three have in common.

    inputs: the last ones of the convolution, `[B, D, before]`; None: the layer has none.
    """

    inputs: Tensor | None = field(default=None, kw_only=True)

    @abstractmethod
    def read(
        self, rates_BTN: Tensor, v_BTD: Tensor, layout: BatchLayout, sums: Sums, keys: Keys | None = None
    ) -> Tensor:
        """Add tokens to the stream and give what each reads, `[B, T, D]`. Padding has quantities of zero.

        keys: queries and keys of the T tokens, `[B, T, N, M]` each, at most 1 long; None: the layer has none.
        """

    @abstractmethod
    def supports(self, layout: BatchLayout, length: int) -> bool:
        """Whether `read` can take in a chunk of `length` tokens at once."""

    @property
    def inputs_nbytes(self) -> int:
        """Bytes that the convolution's inputs of one row take."""
        return 0 if self.inputs is None else self.inputs[0].nbytes

    def row_reader(self) -> RowReader:
        """`read` of the next tokens of one stream, one by one; where it can, in fewer operations."""

        def read(rates_1N: Tensor, v_1D: Tensor, position: int, keys: Keys | None) -> Tensor:
            return self.read(rates_1N[None], v_1D[None], BatchLayout(position), decay_reference, keys)[0]

        return read


def of_rows(count: int | Tensor, like_B: Tensor) -> Tensor:
    """A count of each row, float64 `[B]`."""
    return torch.as_tensor(count, dtype=torch.float64, device=like_B.device).expand(len(like_B))


def token_bytes(*of_tokens_BE: Tensor) -> int:
    """Bytes that one token takes in all of these tensors."""
    return sum(tensor.itemsize * math.prod(tensor.shape[2:]) for tensor in of_tokens_BE)


def by_head(x_BED: Tensor, rates_BEN: Tensor) -> Tensor:
    """`[B, E, D] -> [B, E, N, C]`: a layout."""
    return x_BED.view(*x_BED.shape[:2], rates_BEN.shape[2], -1)
