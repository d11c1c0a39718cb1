"""The interface of the states of a TED layer: all tokens (`full`), those that an eviction policy keeps (`eviction`), or
a bank of sums (`bank`).

The caller chooses one for each stream. Rates are stored in float32 or wider in any precision of the model, because the
rounding of a rate has a large effect on a long-lived token.

Shapes: `B` batch, `T` tokens of the chunk, `E` stored tokens, `N` heads, `C` channels of a head, `D` width, `M` width
of a key.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.state import CachePolicyState
from linnet.ops.decay.reference import Keys
from linnet.ops.support import accumulation_dtype


class Sums(Protocol):
    """The decaying sums of a whole stream: `(rates_BEN, v_BENC, queries) -> [B, queries, N, C]`."""

    def __call__(self, rates_BSN: Tensor, v_BSNC: Tensor, queries: int, /, *, keys: Keys | None) -> Tensor:
        """keys: the queries of the last tokens and the keys of all; None for a layer without keys."""


@dataclass(frozen=True)
class Shape:
    """The shape of a state's tensors: rows, heads, channels of a head; their device, and the dtype of the quantities.

    key: elements of a key, 0 without keys. before: earlier inputs of the convolution, 0 without one.
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
        """The dtype of rates and sums."""
        return torch.promote_types(self.dtype, torch.float32)

    def inputs(self) -> Tensor | None:
        """Zeros `[B, D, before]`; None without a convolution."""
        if not self.before:
            return None
        width = self.heads * self.channels
        return torch.zeros(self.batch, width, self.before, device=self.device, dtype=self.dtype)


@dataclass
class TedState(CachePolicyState):
    """The base of the three states.

    inputs: the last inputs of the convolution, `[B, D, before]`; None without one.
    """

    inputs: Tensor | None = field(default=None, kw_only=True)

    @abstractmethod
    def read(
        self, rates_BTN: Tensor, v_BTD: Tensor, layout: BatchLayout, sums: Sums, keys: Keys | None = None
    ) -> Tensor:
        """Add tokens to the stream and return the decayed sum at each, `[B, T, D]`. Padding has zero quantities.

        keys: queries and keys of the T tokens, `[B, T, N, M]` each, of length at most 1; None without keys.
        """

    @abstractmethod
    def supports(self, layout: BatchLayout, length: int) -> bool:
        """True if `read` can process a chunk of `length` tokens at once."""

    @property
    def inputs_nbytes(self) -> int:
        """The bytes of the convolution's inputs of one row."""
        return 0 if self.inputs is None else self.inputs[0].nbytes


def of_rows(count: int | Tensor, like_B: Tensor) -> Tensor:
    """A count that is the same for all rows, or one for each, as float64 `[B]` (float32 where there is none)."""
    wide = accumulation_dtype(like_B.device)
    return torch.as_tensor(count, dtype=wide, device=like_B.device).expand(len(like_B))


def token_bytes(*of_tokens_BE: Tensor) -> int:
    """The bytes of one token in all of these tensors `[B, E, ...]`."""
    return sum(tensor.itemsize * math.prod(tensor.shape[2:]) for tensor in of_tokens_BE)


def by_head(x_BED: Tensor, rates_BEN: Tensor) -> Tensor:
    """A view `[B, E, N, C]` of `[B, E, D]`, with the number of heads of the rates."""
    return x_BED.view(*x_BED.shape[:2], rates_BEN.shape[2], -1)
