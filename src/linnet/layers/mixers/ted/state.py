"""What a TED layer keeps of a stream: all of it, what an eviction policy leaves (`ted_policy`), or a bank of sums.

Three states behind one interface; which one is the caller's choice, per stream, not the model's. Rates are kept in
float32 or wider whatever the model's precision: over a long life a rounded rate is another life.

Legend: `B` batch, `T` tokens of the chunk, `E` tokens that are held, `N` heads, `C` channels of a head, `D` width,
`R` fixed rates, `W` tokens of two chunks of the bank, `M` width of a key.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor

from linnet.layers.retention import FULL, BankRetention, Retention
from linnet.layers.state import RetainingState, write_chunk
from linnet.layers.view import View
from linnet.ops.decay.bank import BankRow, DecayBank
from linnet.ops.decay.rates import RateBank
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
class TedState(RetainingState):
    """What all three have in common.

    inputs: the last ones of the convolution, `[B, D, before]`; None: the layer has none.
    """

    inputs: Tensor | None = field(default=None, kw_only=True)

    @abstractmethod
    def read(self, rates_BTN: Tensor, v_BTD: Tensor, view: View, sums: Sums, keys: Keys | None = None) -> Tensor:
        """Add tokens to the stream and give what each reads, `[B, T, D]`. Padding has quantities of zero.

        keys: queries and keys of the T tokens, `[B, T, N, M]` each, at most 1 long; None: the layer has none.
        """

    @abstractmethod
    def takes(self, view: View, length: int) -> bool:
        """Whether `read` can take in a chunk of `length` tokens at once."""

    @property
    def inputs_nbytes(self) -> int:
        """Bytes that the convolution's inputs of one row take."""
        return 0 if self.inputs is None else self.inputs[0].nbytes

    def row_reader(self) -> RowReader:
        """`read` of the next tokens of one stream, one by one; where it can, in fewer operations."""

        def read(rates_1N: Tensor, v_1D: Tensor, position: int, keys: Keys | None) -> Tensor:
            return self.read(rates_1N[None], v_1D[None], View(position), decay_reference, keys)[0]

        return read


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
    def retention(self) -> Retention:
        """All."""
        return FULL

    def takes(self, view: View, length: int) -> bool:
        """Anything."""
        return True

    @classmethod
    def empty(cls, shape: Shape, capacity: int) -> Self:
        """Room for `capacity` tokens."""
        return cls(shape.values(capacity), shape.rates(capacity), shape.keys(capacity), inputs=shape.inputs())

    def read(self, rates_BTN: Tensor, v_BTD: Tensor, view: View, sums: Sums, keys: Keys | None = None) -> Tensor:
        """See `TedState`; exact."""
        length = v_BTD.shape[1]
        end = view.end(length)
        self._write((v_BTD, rates_BTN, *(keys or ())[1:]), view)
        queries_BTNM = None if keys is None else keys.queries
        if torch.compiler.is_exporting() or (length == 1 and not view.uniform):
            return self._read_places(view, length, end, queries_BTNM)
        if view.uniform:
            held = [kept[:, :end] for kept in self._of_tokens]
        else:
            held = self._ending_together(view, length, max(end, length))  # fewer tokens where all rows are padded
        of_stream = None if queries_BTNM is None else Keys(queries_BTNM, held[2])
        return sums(held[1], by_head(held[0], self.rates), length, keys=of_stream).flatten(2)

    def _write(self, chunk: Sequence[Tensor], view: View) -> None:
        """Quantities, rates and keys of a chunk at their places."""
        pairs = zip(self._of_tokens, chunk, strict=True)
        self.values, self.rates, *keys = (write_chunk(kept, new, view) for kept, new in pairs)
        self.keys = keys[0] if keys else None

    @property
    def _of_tokens(self) -> list[Tensor]:
        """Quantities, rates, and keys if there are any."""
        return [kept for kept in (self.values, self.rates, self.keys) if kept is not None]

    def _read_places(self, view: View, length: int, end: int, queries_BTNM: Tensor | None) -> Tensor:
        """Tokens of rows wherever they stand, `[B, T, D]`; places behind a token are masked."""
        device = self.rates.device
        ages_BTS = view.positions(length, device)[..., None] - torch.arange(end, device=device)
        exponents_BNTS = -self.rates[:, :end].mT[:, :, None] * ages_BTS.clamp(min=0)[:, None]
        weights_BNTS = exponents_BNTS.exp().masked_fill((ages_BTS < 0)[:, None], 0.0).to(self.values.dtype)
        v_BNSC = by_head(self.values[:, :end], self.rates).transpose(1, 2)
        if queries_BTNM is not None:
            assert self.keys is not None
            weights_BNTS = weights_BNTS * (queries_BTNM.transpose(1, 2) @ self.keys[:, :end].permute(0, 2, 3, 1))
        return (weights_BNTS @ v_BNSC).transpose(1, 2).flatten(2)

    def _ending_together(self, view: View, length: int, end: int) -> list[Tensor]:
        """What is kept, with each row's last token in the last place, no quantities before the shorter rows."""
        device = self.values.device
        missing_B = end - length - view.offsets_B(device).expand(len(self.values))
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


@dataclass
class BankState(TedState):
    """The running sums and two chunks of tokens, `[B, N, E, C]`, their rates, and what the sums' rounding took off.

    keys: of the tokens of the two chunks, `[B, N, W, M]`; None: the layer has none.
    lead: by how much the clock of each row, by which chunks begin, is ahead of its position, int64 `[B]`: the padding
        of the prompt, so that rows that began together go on together.
    """

    bank: RateBank = field(repr=False)
    entries: Tensor
    rates: Tensor
    low: Tensor
    lead: Tensor
    keys: Tensor | None = None

    @classmethod
    def empty(cls, shape: Shape, bank: RateBank) -> Self:
        """No token yet."""
        sizes = (shape.batch, shape.heads, shape.channels)
        empty = DecayBank.empty(sizes, bank, shape.dtype, shape.device, shape.key)
        lead_B = torch.zeros(shape.batch, dtype=torch.int64, device=shape.device)
        tensors = (empty.entries_BNEH, empty.rates_BNF, empty.low_BNRH, lead_B, empty.keys_BNCM)
        return cls(bank, *tensors, inputs=shape.inputs())

    @property
    def retention(self) -> Retention:
        """A bank, and the ages for which its bound holds."""
        return BankRetention(self.bank.length)

    def takes(self, view: View, length: int) -> bool:
        """Rows whose chunks begin together; with padding those that begin."""
        if torch.compiler.is_exporting():  # one stream
            return True
        lead = self.lead.tolist()
        if view.padding is not None:
            return view.starts == 0 and not any(lead)
        clocks = zip(view.starts_of(len(lead)), lead, strict=True)
        return len({start + ahead for start, ahead in clocks}) == 1

    def read(self, rates_BTN: Tensor, v_BTD: Tensor, view: View, sums: Sums, keys: Keys | None = None) -> Tensor:
        """See `TedState`; every weight is right to the bank's bound, times what it is multiplied by."""
        if torch.compiler.is_exporting():
            return self._read_in_graph(rates_BTN, v_BTD, view, keys)
        if view.padding is not None:
            self.lead = torch.tensor(view.padding, device=self.lead.device)
            clock = 0
        else:
            clock = view.starts_of(len(self.lead))[0] + int(self.lead[0])
        stream = DecayBank(self.bank, self.entries, self.rates, self.low, clock, self.keys)
        return stream.append(rates_BTN, by_head(v_BTD, rates_BTN), keys).flatten(2)

    def _read_in_graph(self, rates_B1N: Tensor, v_B1D: Tensor, view: View, keys: Keys | None) -> Tensor:
        """`read` of one stream in a graph, which has no number for the clock: one token, or chunks from their start."""
        stream = DecayBank(self.bank, self.entries, self.rates, self.low, 0, self.keys)
        v_BTNC = by_head(v_B1D, rates_B1N)
        if v_BTNC.shape[1] > 1:
            assert v_BTNC.shape[1] % self.bank.nearest == 0, "chunks of the bank are read as a whole"
            return stream.append(rates_B1N, v_BTNC, keys).flatten(2)
        clock = (view.offsets_B(v_B1D.device) + self.lead)[0]
        out_B1NC = stream.append_token(rates_B1N, v_BTNC, clock, keys)
        self.entries, self.rates, self.low = stream.entries_BNEH, stream.rates_BNF, stream.low_BNRH
        self.keys = stream.keys_BNCM
        return out_B1NC.flatten(2)

    def row_reader(self) -> RowReader:
        """See `TedState`."""
        if self.keys is not None:
            return super().row_reader()
        row = BankRow(DecayBank(self.bank, self.entries, self.rates, self.low))
        heads, channels, ahead = self.low.shape[1], self.low.shape[3], int(self.lead[0])
        if heads == 1:
            return lambda rates_1N, v_1D, position, _: row.append(rates_1N[0], v_1D, position + ahead)

        def read(rates_1N: Tensor, v_1D: Tensor, position: int, _: Keys | None) -> Tensor:
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
