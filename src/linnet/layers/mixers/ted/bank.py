"""A state of a TED layer with constant size: a bank of sums and the last tokens (`ops.decay.bank`).

Shapes: `B` batch, `T` tokens of the chunk, `E` stored sums and tokens, `N` heads, `C` channels of a head, `D` width,
`W` tokens of two chunks of the bank, `M` width of a key.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.mixers.ted.policies import BankCache
from linnet.layers.mixers.ted.state import Shape, Sums, TedState, by_head, of_rows
from linnet.layers.state import Contents
from linnet.ops.decay.bank import DecayBank
from linnet.ops.decay.rates import RateBank
from linnet.ops.decay.reference import Keys
from linnet.ops.support import accumulation_dtype


@dataclass
class BankState(TedState):
    """The running sums and two chunks of tokens, `[B, N, E, C]`, their rates, and the rounding errors of the sums.

    keys: the keys of the two chunks, `[B, N, W, M]`; None for a layer without keys.
    lead: the clock of each row, which decides where chunks start, minus its position, int64 `[B]`. It is the padding of
        the prompt, so that rows that started together keep common chunks.
    """

    bank: RateBank = field(repr=False)
    entries: Tensor
    rates: Tensor
    low: Tensor
    lead: Tensor
    keys: Tensor | None = None

    @classmethod
    def empty(cls, shape: Shape, bank: RateBank) -> Self:
        sizes = (shape.batch, shape.heads, shape.channels)
        empty = DecayBank.empty(sizes, bank, shape.dtype, shape.device, shape.key)
        lead_B = torch.zeros(shape.batch, dtype=torch.int64, device=shape.device)
        tensors = (empty.entries_BNEH, empty.rates_BNF, empty.low_BNRH, lead_B, empty.keys_BNCM)
        return cls(bank, *tensors, inputs=shape.inputs())

    @property
    def cache_policy(self) -> BankCache:
        return BankCache(self.bank.length)

    def supports(self, layout: BatchLayout, length: int) -> bool:
        """Rows with common chunks; with padding only at the start."""
        lead = self.lead.tolist()
        if layout.padding is not None:
            return layout.starts == 0 and not any(lead)
        clocks = zip(layout.starts_of(len(lead)), lead, strict=True)
        return len({start + ahead for start, ahead in clocks}) == 1

    def read(
        self, rates_BTN: Tensor, v_BTD: Tensor, layout: BatchLayout, sums: Sums, keys: Keys | None = None
    ) -> Tensor:
        """See `TedState`; the error of every weight is within the bank's bound."""
        if layout.in_graph:
            return self._read_in_graph(rates_BTN, v_BTD, layout, keys)
        if layout.padding is not None:
            self.lead = torch.tensor(layout.padding, device=self.lead.device)
            clock = 0
        else:
            clock = layout.starts_of(len(self.lead))[0] + int(self.lead[0])
        stream = DecayBank(self.bank, self.entries, self.rates, self.low, clock, self.keys)
        return stream.append(rates_BTN, by_head(v_BTD, rates_BTN), keys).flatten(2)

    def _read_in_graph(self, rates_B1N: Tensor, v_B1D: Tensor, layout: BatchLayout, keys: Keys | None) -> Tensor:
        """`read` in a graph, where the clocks are a tensor: one token of each row, or whole chunks of one stream."""
        stream = DecayBank(self.bank, self.entries, self.rates, self.low, 0, self.keys)
        v_BTNC = by_head(v_B1D, rates_B1N)
        if v_BTNC.shape[1] > 1:
            assert v_BTNC.shape[1] % self.bank.nearest == 0, "a graph reads whole chunks of the bank"
            return stream.append(rates_B1N, v_BTNC, keys).flatten(2)
        clock_B = layout.offsets_B(v_B1D.device) + self.lead
        out_B1NC = stream.append_token(rates_B1N, v_BTNC, clock_B, keys, in_place=not layout.functional)
        self.entries, self.rates, self.low = stream.entries_BNEH, stream.rates_BNF, stream.low_BNRH
        self.keys = stream.keys_BNCM
        return out_B1NC.flatten(2)

    def maintenance_due(self, positions: Sequence[int]) -> int:
        """When the chunk of some row is full, which may be after the next token."""
        chunk = self.bank.nearest
        return min(chunk - (clock % chunk) for clock in self._clocks(positions))

    @torch.no_grad()
    def maintain(self, positions: Sequence[int]) -> None:
        """Begin the next chunk in the rows whose chunk is full."""
        is_full = [clock % self.bank.nearest == 0 for clock in self._clocks(positions)]
        if not any(is_full):
            return
        full = self if all(is_full) else self.select(torch.tensor(is_full, device=self.low.device))
        DecayBank(self.bank, full.entries, full.rates, full.low, 0, full.keys).begin_chunk()
        if full is not self:
            for name, tensor in full.tensors().items():
                self.tensors()[name][torch.tensor(is_full, device=tensor.device)] = tensor

    def _clocks(self, positions: Sequence[int]) -> list[int]:
        """The clock of each row at these positions."""
        return [position + lead for position, lead in zip(positions, self.lead.tolist(), strict=True)]

    def forget(self) -> Self:
        """An empty copy with the fixed rates."""
        rates = self.rates.clone()
        rates[:, :, len(self.bank.rates_R) :] = 0
        return self.with_tensors({**super().forget().tensors(), "rates": rates})

    def observe(self, position: int, row: int = 0) -> Contents:
        sums = self.low.shape[2] if position else 0
        return self.contents(position, sums, range(int(self.sizes(position)[row]) - self.low.shape[2])[::-1])

    def sizes(self, position: int | Tensor) -> Tensor:
        """The sums, and the tokens of the previous and the current chunk."""
        chunk, steps_B = self.bank.nearest, of_rows(position, self.low).long()
        return torch.minimum(steps_B, chunk + steps_B % chunk) + self.low.shape[2]

    def mean_sizes(self, position: int | Tensor) -> Tensor:
        """The mean of `sizes`: tokens of the current chunk, the previous one from the second on, and the sums."""
        steps_B, chunk = of_rows(position, self.low), self.bank.nearest
        whole_B, rest_B = steps_B // chunk, steps_B % chunk
        current_B = whole_B * (chunk * (chunk - 1) / 2) + rest_B * (rest_B + 1) / 2
        before_B = chunk * (steps_B - (chunk - 1)).clamp(min=0)
        return ((current_B + before_B) / steps_B.clamp(min=1) + self.low.shape[2]) * (steps_B > 0)

    def largest_sizes(self, position: int | Tensor) -> Tensor:
        """Two chunks without a token, and the sums."""
        near_B = of_rows(position, self.low).clamp(max=2 * self.bank.nearest - 1)
        return (near_B + self.low.shape[2] * (near_B > 0)).long()

    def mean_nbytes(self, position: int | Tensor) -> Tensor:
        wide = accumulation_dtype(self.low.device)
        return torch.full((len(self.low),), self.nbytes / len(self.low), dtype=wide, device=self.low.device)
