"""All of a TED layer's stream.

Shapes: `B` batch, `T` tokens of the chunk, `E` tokens that are held, `N` heads, `C` channels of a head, `D` width,
`M` width of a key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Self

import torch
from torch import Tensor

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.mixers.ted.state import Shape, Sums, TedState, by_head, of_rows, token_bytes
from linnet.layers.state import write_chunk
from linnet.ops.decay.reference import Keys
from linnet.ops.support import is_exporting


@dataclass
class FullState(TedState):
    """Every token so far, at its row's position: its quantity `[B, capacity, D]` and its rates `[B, capacity, N]`.

    keys: their keys, `[B, capacity, N, M]`; None: the layer has none.
    """

    room: ClassVar[Mapping[str, int]] = MappingProxyType({"values": 1, "rates": 1, "keys": 1})

    values: Tensor
    rates: Tensor
    keys: Tensor | None = None

    @property
    def cache_policy(self) -> CachePolicy:
        """All."""
        return FULL

    def supports(self, layout: BatchLayout, length: int) -> bool:
        return True

    @classmethod
    def empty(cls, shape: Shape, capacity: int) -> Self:
        """Room for `capacity` tokens."""
        return cls(shape.values(capacity), shape.rates(capacity), shape.keys(capacity), inputs=shape.inputs())

    def read(
        self, rates_BTN: Tensor, v_BTD: Tensor, layout: BatchLayout, sums: Sums, keys: Keys | None = None
    ) -> Tensor:
        """See `TedState`; exact."""
        length = v_BTD.shape[1]
        end = layout.end(length)
        self._write((v_BTD, rates_BTN, *(keys or ())[1:]), layout)
        queries_BTNM = None if keys is None else keys.queries
        if is_exporting() or (length == 1 and not layout.uniform):
            return self._read_places(layout, length, end, queries_BTNM)
        if layout.uniform:
            held = [kept[:, :end] for kept in self._of_tokens]
        else:
            held = self._ending_together(layout, length, max(end, length))  # fewer tokens where all rows are padded
        of_stream = None if queries_BTNM is None else Keys(queries_BTNM, held[2])
        return sums(held[1], by_head(held[0], self.rates), length, keys=of_stream).flatten(2)

    def _write(self, chunk: Sequence[Tensor], layout: BatchLayout) -> None:
        """Quantities, rates and keys of a chunk at their places."""
        pairs = zip(self._of_tokens, chunk, strict=True)
        self.values, self.rates, *keys = (write_chunk(kept, new, layout) for kept, new in pairs)
        self.keys = keys[0] if keys else None

    @property
    def _of_tokens(self) -> list[Tensor]:
        """Quantities, rates, and keys if there are any."""
        return [kept for kept in (self.values, self.rates, self.keys) if kept is not None]

    def _read_places(self, layout: BatchLayout, length: int, end: int, queries_BTNM: Tensor | None) -> Tensor:
        """Tokens of rows wherever they stand, `[B, T, D]`; places behind a token are masked."""
        device = self.rates.device
        ages_BTS = layout.positions(length, device)[..., None] - torch.arange(end, device=device)
        exponents_BNTS = -self.rates[:, :end].mT[:, :, None] * ages_BTS.clamp(min=0)[:, None]
        weights_BNTS = exponents_BNTS.exp().masked_fill((ages_BTS < 0)[:, None], 0.0).to(self.values.dtype)
        v_BNSC = by_head(self.values[:, :end], self.rates).transpose(1, 2)
        if queries_BTNM is not None:
            assert self.keys is not None
            weights_BNTS = weights_BNTS * (queries_BTNM.transpose(1, 2) @ self.keys[:, :end].permute(0, 2, 3, 1))
        return (weights_BNTS @ v_BNSC).transpose(1, 2).flatten(2)

    def _ending_together(self, layout: BatchLayout, length: int, end: int) -> list[Tensor]:
        """What is kept, with each row's last token in the last place, no quantities before the shorter rows."""
        device = self.values.device
        missing_B = end - length - layout.offsets_B(device).expand(len(self.values))
        places_BS = torch.arange(end, device=device) - missing_B[:, None]
        none_BS1 = (places_BS < 0)[..., None]
        rows_B1, places_BS = torch.arange(len(self.values), device=device)[:, None], places_BS.clamp(min=0)
        values_BSD, *rest = (kept[rows_B1, places_BS] for kept in self._of_tokens)
        return [values_BSD.masked_fill(none_BS1, 0.0), *rest]

    def sizes(self, position: int | Tensor) -> Tensor:
        """All tokens."""
        return of_rows(position, self.values).long()

    def mean_sizes(self, position: int | Tensor) -> Tensor:
        """One more with every token."""
        steps_B = of_rows(position, self.values)
        return (steps_B + 1) * (steps_B > 0) / 2

    def mean_nbytes(self, position: int | Tensor) -> Tensor:
        """Of every token its quantity, its rates and its key."""
        return self.mean_sizes(position) * token_bytes(*self._of_tokens) + self.inputs_nbytes

    def crop(self, length: int) -> None:
        """Nothing to do: a token's age is the row's position less its own, and later tokens are overwritten.

        `NotImplementedError` with a convolution, whose inputs before an earlier token are gone; but for 0.
        """
        if self.inputs is not None:
            super().crop(length)
