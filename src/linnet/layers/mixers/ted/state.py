"""What a TED layer keeps of a stream: all of it, what an eviction policy leaves (`ted_policy`), or a bank of sums.

Three states behind one interface; which one is the caller's choice, per stream, not the model's. Rates are kept in
float32 or wider whatever the model's precision: over a long life a rounded rate is another life.

Legend: `B` batch, `T` tokens of the chunk, `E` tokens that are held, `N` heads, `C` channels of a head, `D` width,
`R` fixed rates, `W` tokens of two chunks of the bank.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Self

import torch
from torch import Tensor

from linnet.layers.retention import FULL, BankRetention, Retention
from linnet.layers.state import RetainingState, write_rows
from linnet.layers.view import View
from linnet.ops.decay.bank import BankRow, DecayBank
from linnet.ops.decay.rates import RateBank
from linnet.ops.decay.reference import decay_reference

Sums = Callable[[Tensor, Tensor, int], Tensor]
"""The decaying sums of a whole stream: `(rates_BEN, v_BENC, queries) -> [B, queries, N, C]`."""

RowReader = Callable[[Tensor, Tensor, int], Tensor]
"""What one token of one stream reads: `(rates_1N, v_1D, position) -> [1, D]`."""


@dataclass(frozen=True)
class Shape:
    """Of a state's tensors: rows, heads, channels of a head; where they are, and the precision of the quantities."""

    batch: int
    heads: int
    channels: int
    device: torch.device
    dtype: torch.dtype

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


@dataclass
class TedState(RetainingState):
    """What all three have in common."""

    @abstractmethod
    def read(self, rates_BTN: Tensor, v_BTD: Tensor, view: View, sums: Sums) -> Tensor:
        """Add tokens to the stream and give what each reads, `[B, T, D]`. Padding has quantities of zero."""

    @abstractmethod
    def takes(self, view: View, length: int) -> bool:
        """Whether `read` can take in a chunk of `length` tokens at once."""

    def row_reader(self) -> RowReader:
        """`read` of the next tokens of one stream, one by one; where it can, in fewer operations."""
        return lambda rates_1N, v_1D, position: self.read(rates_1N[None], v_1D[None], View(position), decay_reference)[
            0
        ]


@dataclass
class FullState(TedState):
    """Every token so far: its quantity `[B, capacity, D]` and its rates `[B, capacity, N]`, at its row's position."""

    room: ClassVar[Mapping[str, int]] = MappingProxyType({"values": 1, "rates": 1})

    values: Tensor
    rates: Tensor

    @property
    def retention(self) -> Retention:
        """All."""
        return FULL

    def takes(self, view: View, length: int) -> bool:
        """Anything."""
        return True

    @classmethod
    def empty(cls, shape: Shape, capacity: int) -> Self:
        """Room for `capacity` tokens."""
        return cls(shape.values(capacity), shape.rates(capacity))

    def read(self, rates_BTN: Tensor, v_BTD: Tensor, view: View, sums: Sums) -> Tensor:
        """See `TedState`; exact."""
        length = v_BTD.shape[1]
        end = view.end(length)
        if view.uniform:
            self.values[:, view.start : end], self.rates[:, view.start : end] = v_BTD, rates_BTN
            values_BSD, rates_BSN = self.values[:, :end], self.rates[:, :end]
        else:
            write_rows(self.values, v_BTD, view)
            write_rows(self.rates, rates_BTN, view)
            if length == 1:
                return self._read_tokens(view, end)
            values_BSD, rates_BSN = self._ending_together(view, length, end)
        return sums(rates_BSN, by_head(values_BSD, self.rates), length).flatten(2)

    def _read_tokens(self, view: View, end: int) -> Tensor:
        """One token of each row, wherever it stands: `[B, 1, D]`."""
        ages_BS = view.offsets_B(self.rates.device)[:, None] - torch.arange(end, device=self.rates.device)
        weights_BSN = (
            (-self.rates[:, :end] * ages_BS.clamp(min=0)[..., None]).exp().masked_fill((ages_BS < 0)[..., None], 0.0)
        )
        v_BNSC = by_head(self.values[:, :end], self.rates).transpose(1, 2)
        out_BN1C = weights_BSN.mT[:, :, None].to(v_BNSC.dtype) @ v_BNSC
        return out_BN1C.transpose(1, 2).flatten(2)

    def _ending_together(self, view: View, length: int, end: int) -> tuple[Tensor, Tensor]:
        """Quantities and rates with each row's last token in the last place, nothing before the shorter rows."""
        device = self.values.device
        missing_B = end - length - view.offsets_B(device).expand(len(self.values))
        places_BS = torch.arange(end, device=device) - missing_B[:, None]
        none_BS1 = (places_BS < 0)[..., None]
        rows_B1, places_BS = torch.arange(len(self.values), device=device)[:, None], places_BS.clamp(min=0)
        return self.values[rows_B1, places_BS].masked_fill(none_BS1, 0.0), self.rates[rows_B1, places_BS]

    def sizes(self, position: int | Tensor) -> Tensor:
        """All tokens."""
        return of_rows(position, self.values).long()

    def mean_sizes(self, position: int | Tensor) -> Tensor:
        """One more with every token."""
        steps_B = of_rows(position, self.values)
        return (steps_B + 1) * (steps_B > 0) / 2

    def mean_nbytes(self, position: int | Tensor) -> Tensor:
        """Of every token its quantity and its rates."""
        return self.mean_sizes(position) * token_bytes(self.values, self.rates)

    def crop(self, length: int) -> None:
        """Nothing to do: a token's age is the row's position less its own, and later tokens are overwritten."""


@dataclass
class BankState(TedState):
    """The running sums and two chunks of tokens, `[B, N, E, C]`, their rates, and what the sums' rounding took off.

    lead: by how much the clock of each row, by which chunks begin, is ahead of its position, int64 `[B]`: the padding
        of the prompt, so that rows that began together go on together.
    """

    bank: RateBank = field(repr=False)
    entries: Tensor
    rates: Tensor
    low: Tensor
    lead: Tensor

    @classmethod
    def empty(cls, shape: Shape, bank: RateBank) -> Self:
        """No token yet."""
        empty = DecayBank.empty((shape.batch, shape.heads, shape.channels), bank, shape.dtype, shape.device)
        lead_B = torch.zeros(shape.batch, dtype=torch.int64, device=shape.device)
        return cls(bank, empty.entries_BNEH, empty.rates_BNF, empty.low_BNRH, lead_B)

    @property
    def retention(self) -> Retention:
        """A bank, and the ages for which its bound holds."""
        return BankRetention(self.bank.length)

    def takes(self, view: View, length: int) -> bool:
        """Rows whose chunks begin together; with padding those that begin."""
        lead = self.lead.tolist()
        if view.padding is not None:
            return view.starts == 0 and not any(lead)
        clocks = zip(view.starts_of(len(lead)), lead, strict=True)
        return len({start + ahead for start, ahead in clocks}) == 1

    def read(self, rates_BTN: Tensor, v_BTD: Tensor, view: View, sums: Sums) -> Tensor:
        """See `TedState`; every weight is right to the bank's bound."""
        if view.padding is not None:
            self.lead = torch.tensor(view.padding, device=self.lead.device)
            clock = 0
        else:
            clock = view.starts_of(len(self.lead))[0] + int(self.lead[0])
        stream = DecayBank(self.bank, self.entries, self.rates, self.low, clock)
        return stream.append(rates_BTN, by_head(v_BTD, rates_BTN)).flatten(2)

    def row_reader(self) -> RowReader:
        """See `TedState`."""
        row = BankRow(DecayBank(self.bank, self.entries, self.rates, self.low))
        heads, channels, ahead = self.low.shape[1], self.low.shape[3], int(self.lead[0])
        if heads == 1:
            return lambda rates_1N, v_1D, position: row.append(rates_1N[0], v_1D, position + ahead)

        def read(rates_1N: Tensor, v_1D: Tensor, position: int) -> Tensor:
            return row.append(rates_1N[0], v_1D.reshape(heads, channels), position + ahead).view(1, -1)

        return read

    def forget(self) -> Self:
        """An empty copy; the fixed rates stay."""
        rates = self.rates.clone()
        rates[:, :, len(self.bank.rates_R) :] = 0
        return self.with_tensors({**super().forget().tensors(), "rates": rates})

    def sizes(self, position: int | Tensor) -> Tensor:
        """The sums, and the tokens of the chunk before the current one and of the current one."""
        chunk, steps_B = self.bank.nearest, of_rows(position, self.low).long()
        return torch.minimum(steps_B, chunk + steps_B % chunk) + self.low.shape[2]

    def mean_sizes(self, position: int | Tensor) -> Tensor:
        """As `sizes`: the tokens of the current chunk, the whole one before from the second on, and the sums."""
        steps_B, chunk = of_rows(position, self.low), self.bank.nearest
        whole_B, rest_B = steps_B // chunk, steps_B % chunk
        current_B = whole_B * (chunk * (chunk - 1) / 2) + rest_B * (rest_B + 1) / 2
        before_B = chunk * (steps_B - (chunk - 1)).clamp(min=0)
        return ((current_B + before_B) / steps_B.clamp(min=1) + self.low.shape[2]) * (steps_B > 0)

    def largest_sizes(self, position: int | Tensor) -> Tensor:
        """Two chunks less a token, and the sums."""
        near_B = of_rows(position, self.low).clamp(max=2 * self.bank.nearest - 1)
        return (near_B + self.low.shape[2] * (near_B > 0)).long()

    def mean_nbytes(self, position: int | Tensor) -> Tensor:
        """Always the same."""
        return torch.full((len(self.low),), self.nbytes / len(self.low), dtype=torch.float64, device=self.low.device)


def of_rows(count: int | Tensor, like_B: Tensor) -> Tensor:
    """A count of each row, float64 `[B]`."""
    return torch.as_tensor(count, dtype=torch.float64, device=like_B.device).expand(len(like_B))


def token_bytes(*of_tokens_BE: Tensor) -> int:
    """Bytes that one token takes in all of these tensors."""
    return sum(tensor.itemsize * math.prod(tensor.shape[2:]) for tensor in of_tokens_BE)


def by_head(x_BED: Tensor, rates_BEN: Tensor) -> Tensor:
    """`[B, E, D] -> [B, E, N, C]`: a view."""
    return x_BED.view(*x_BED.shape[:2], rates_BEN.shape[2], -1)
