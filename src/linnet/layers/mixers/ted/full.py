"""The full state of a TED layer, with every token of the stream.

Shapes: `B` batch, `T` tokens of the chunk, `S` tokens so far, `N` heads, `C` channels of a head, `D` width, `M` width
of a key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Self

import torch
from torch import Tensor

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.mixers.ted.state import Shape, Sums, TedState, by_head, of_rows, token_bytes
from linnet.layers.state import Contents, write_chunk
from linnet.ops.decay.eviction import context_relevance
from linnet.ops.decay.reference import Keys


@dataclass
class FullState(TedState):
    """Quantities `[B, capacity, D]` and rates `[B, capacity, N]` of every token so far, at its position in its row.

    keys: `[B, capacity, N, M]`; None for a layer without keys.
    """

    room: ClassVar[Mapping[str, int]] = MappingProxyType({"values": 1, "rates": 1, "keys": 1})

    values: Tensor
    rates: Tensor
    keys: Tensor | None = None

    @property
    def cache_policy(self) -> CachePolicy:
        return FULL

    def supports(self, layout: BatchLayout, length: int) -> bool:
        return True

    @classmethod
    def empty(cls, shape: Shape, capacity: int) -> Self:
        """Zeros with room for `capacity` tokens."""
        rows, heads, device = (shape.batch, capacity), shape.heads, shape.device
        values = torch.zeros(*rows, heads * shape.channels, device=device, dtype=shape.dtype)
        rates = torch.zeros(*rows, heads, device=device, dtype=shape.wide)
        keys = torch.zeros(*rows, heads, shape.key, device=device, dtype=shape.dtype) if shape.key else None
        return cls(values, rates, keys, inputs=shape.inputs())

    def read(
        self, rates_BTN: Tensor, v_BTD: Tensor, layout: BatchLayout, sums: Sums, keys: Keys | None = None
    ) -> Tensor:
        length = v_BTD.shape[1]
        end = layout.end(length)
        chunk = (v_BTD, rates_BTN, *(keys or ())[1:])
        stored = [write_chunk(*pair, layout) for pair in zip(self._of_tokens, chunk, strict=True)]
        self.values, self.rates, self.keys = stored[0], stored[1], stored[2] if keys else None
        queries_BTNM = None if keys is None else keys.queries
        if layout.in_graph or (length == 1 and not layout.uniform):
            return self._read_places(layout, length, end, queries_BTNM)
        if layout.uniform:
            past = [tensor[:, :end] for tensor in self._of_tokens]
        else:
            past = self._aligned(layout, length, max(end, length))  # end is smaller if all rows have padding
        both = None if queries_BTNM is None else Keys(queries_BTNM, past[2])
        return sums(past[1], by_head(past[0], self.rates), length, keys=both).flatten(2)

    @property
    def _of_tokens(self) -> list[Tensor]:
        """Quantities, rates, and keys if the layer has any."""
        return [tensor for tensor in (self.values, self.rates, self.keys) if tensor is not None]

    def _read_places(self, layout: BatchLayout, length: int, end: int, queries_BTNM: Tensor | None) -> Tensor:
        """The sums `[B, T, D]` for rows at any positions, with a mask of later tokens."""
        device = self.rates.device
        ages_BTS = layout.positions(length, device)[..., None] - torch.arange(end, device=device)
        exponents_BNTS = -self.rates[:, :end].mT[:, :, None] * ages_BTS.clamp(min=0)[:, None]
        weights_BNTS = exponents_BNTS.exp().masked_fill((ages_BTS < 0)[:, None], 0.0).to(self.values.dtype)
        v_BNSC = by_head(self.values[:, :end], self.rates).transpose(1, 2)
        if queries_BTNM is not None:
            assert self.keys is not None
            weights_BNTS = weights_BNTS * (queries_BTNM.transpose(1, 2) @ self.keys[:, :end].permute(0, 2, 3, 1))
        return (weights_BNTS @ v_BNSC).transpose(1, 2).flatten(2)

    def _aligned(self, layout: BatchLayout, length: int, end: int) -> list[Tensor]:
        """The stored tensors with the last token of each row at the end, and zero quantities before shorter rows."""
        device = self.values.device
        missing_B = end - length - layout.offsets_B(device).expand(len(self.values))
        places_BS = torch.arange(end, device=device) - missing_B[:, None]
        empty_BS1 = (places_BS < 0)[..., None]
        rows_B1, places_BS = torch.arange(len(self.values), device=device)[:, None], places_BS.clamp(min=0)
        values_BSD, *rest = (tensor[rows_B1, places_BS] for tensor in self._of_tokens)
        return [values_BSD.masked_fill(empty_BS1, 0.0), *rest]

    def sizes(self, position: int | Tensor) -> Tensor:
        return of_rows(position, self.values).long()

    def mean_sizes(self, position: int | Tensor) -> Tensor:
        steps_B = of_rows(position, self.values)
        return (steps_B + 1) * (steps_B > 0) / 2

    def mean_nbytes(self, position: int | Tensor) -> Tensor:
        return self.mean_sizes(position) * token_bytes(*self._of_tokens) + self.inputs_nbytes

    def observe(self, position: int, row: int = 0) -> Contents:
        rates_1SN = self.rates[row : row + 1, :position]
        by_head_1SNC = by_head(self.values[row : row + 1], self.rates)[:, :position].to(rates_1SN.dtype)
        ages_S = torch.arange(position - 1, -1, -1, device=rates_1SN.device)
        weights_1N1S = (-rates_1SN.mT * ages_S).exp()[:, :, None]
        relevance_S = context_relevance(torch.linalg.vector_norm(by_head_1SNC, dim=-1), weights_1N1S)[0, 0]
        return self.contents(position, 0, ages_S.tolist(), relevance_S.tolist())

    def can_crop(self, length: int) -> bool:
        return self.inputs is None or length == 0

    def crop(self, length: int) -> None:
        """Do nothing, as later tokens are overwritten before they are read.

        `NotImplementedError` with a convolution, whose earlier inputs are not stored, unless the length is 0.
        """
        if self.inputs is not None:
            super().crop(length)
