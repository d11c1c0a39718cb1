"""What a TED layer keeps of a stream: all of it, what an eviction policy leaves, or a bank of fixed rates.

Three states behind one interface; which one is the caller's choice, per stream, not the model's. Rates are kept in
float32 or wider whatever the model's precision: over a long life a rounded rate is another life.

Legend: `B` batch, `T` tokens of the chunk, `E` tokens that are held, `N` heads, `C` channels of a head, `D` width,
`R` fixed rates, `W` tokens of two chunks of the bank.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

from linnet.mixers.base import Span, State
from linnet.ops.decay.bank import DecayBank
from linnet.ops.decay.context import ContextPolicy, relevance, run_steps
from linnet.ops.decay.rates import RateBank, rate_bank

Sums = Callable[[Tensor, Tensor, int], Tensor]
"""The decaying sums of a whole stream: `(rates_BEN, v_BENC, queries) -> [B, queries, N, C]`."""

STEPS_AT_ONCE = 256
"""Tokens of a prompt that an eviction policy takes at once; between them the context is made small again."""


@dataclass(frozen=True)
class FullContext:
    """Keep every token."""


@dataclass(frozen=True)
class BankContext:
    """Keep two chunks of tokens and one sum per fixed rate, for ever.

    length: ages for which the bound of the bank holds; None: the stream's capacity. Older tokens fade as a mixture of
    fixed rates.
    """

    length: int | None = None

    def __post_init__(self) -> None:
        """`ValueError` for a value that cannot be."""
        if self.length is not None and self.length < 1:
            raise ValueError(f"length: {self.length}: expected at least 1")


Context = FullContext | ContextPolicy | BankContext
"""How a stream's past is kept."""

FULL = FullContext()


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
class TedState(State):
    """What all three have in common."""

    @abstractmethod
    def read(self, rates_BTN: Tensor, v_BTD: Tensor, span: Span, sums: Sums) -> Tensor:
        """Add tokens to the stream and give what each reads, `[B, T, D]`. Padding has quantities of zero."""

    @abstractmethod
    def sizes(self, position: int) -> Tensor:
        """How many vectors of width D each row holds, int64 `[B]`, after `position` tokens."""

    def forget(self) -> Self:
        """An empty copy."""
        return self.with_tensors({name: torch.zeros_like(tensor) for name, tensor in self.tensors().items()})


@dataclass
class FullState(TedState):
    """Every token so far: its quantity `[B, capacity, D]` and its rates `[B, capacity, N]`."""

    values: Tensor
    rates: Tensor

    @classmethod
    def empty(cls, shape: Shape, capacity: int) -> Self:
        """Room for `capacity` tokens."""
        return cls(shape.values(capacity), shape.rates(capacity))

    def read(self, rates_BTN: Tensor, v_BTD: Tensor, span: Span, sums: Sums) -> Tensor:
        """See `TedState`; exact."""
        length = v_BTD.shape[1]
        end = span.start + length
        self.values[:, span.start : end], self.rates[:, span.start : end] = v_BTD, rates_BTN
        return sums(self.rates[:, :end], _by_head(self.values[:, :end], self.rates), length).flatten(2)

    def sizes(self, position: int) -> Tensor:
        """All tokens, padding included."""
        return torch.full((len(self.values),), position)

    def crop(self, length: int) -> None:
        """Nothing to do: a token's age is the decoder's position less its own, and later tokens are overwritten."""


@dataclass
class PolicyState(TedState):
    """The tokens that a policy has left: quantity, rates, norm per head, and age in steps at the last token.

    Rows are as long as the longest; `present` says which of their places are taken.
    """

    any_length: ClassVar[frozenset[str]] = frozenset({"values", "rates", "norms", "ages", "present"})

    policy: ContextPolicy
    values: Tensor
    rates: Tensor
    norms: Tensor
    ages: Tensor
    present: Tensor

    @classmethod
    def empty(cls, shape: Shape, policy: ContextPolicy) -> Self:
        """No token yet."""
        ages = torch.zeros(shape.batch, 0, dtype=torch.int64, device=shape.device)
        return cls(policy, shape.values(0), shape.rates(0), shape.rates(0), ages, ages.bool())

    def read(self, rates_BTN: Tensor, v_BTD: Tensor, span: Span, sums: Sums) -> Tensor:
        """See `TedState`; exact but for what was evicted."""
        done, outputs, real_BT = 0, [], span.real(v_BTD.shape[1], v_BTD.device)
        while done < v_BTD.shape[1]:
            piece = slice(done, done + STEPS_AT_ONCE)
            real = None if real_BT is None else real_BT[:, piece]
            outputs.append(self._read_piece(rates_BTN[:, piece], v_BTD[:, piece], real))
            done += STEPS_AT_ONCE
        return torch.cat(outputs, dim=1) if len(outputs) > 1 else outputs[0]

    def _read_piece(self, rates_BTN: Tensor, v_BTD: Tensor, real_BT: Tensor | None) -> Tensor:
        length = v_BTD.shape[1]
        self._append(rates_BTN, v_BTD, real_BT)
        ages_TE, born_TE = _ages_of_steps(self.ages, length)
        weights_BNTE = torch.exp(self.rates.mT[:, :, None] * -ages_TE[:, None])
        present_BTE = self.present[:, None] & born_TE
        read_BTE, stay_BTE = run_steps(relevance(self.norms, weights_BNTE), present_BTE, self.policy)
        weights_BNTE = (weights_BNTE * read_BTE[:, None]).to(v_BTD.dtype)
        out_BNTC = weights_BNTE @ _by_head(self.values, self.rates).transpose(1, 2)
        self._keep(stay_BTE[:, -1])
        return out_BNTC.transpose(1, 2).flatten(2)

    def _append(self, rates_BTN: Tensor, v_BTD: Tensor, real_BT: Tensor | None) -> None:
        """Take the tokens of the piece in; ages become those at its last token."""
        batch, length = v_BTD.shape[:2]
        if real_BT is None:
            real_BT = torch.ones(batch, length, dtype=torch.bool, device=v_BTD.device)
        norms_BTN = torch.linalg.vector_norm(_by_head(v_BTD, rates_BTN), dim=-1, dtype=rates_BTN.dtype)
        ages_BT = torch.arange(length - 1, -1, -1, device=v_BTD.device).expand(batch, length)
        self.values = torch.cat([self.values, v_BTD], dim=1)
        self.rates = torch.cat([self.rates, rates_BTN], dim=1)
        self.norms = torch.cat([self.norms, norms_BTN], dim=1)
        self.ages = torch.cat([self.ages + length, ages_BT], dim=1)
        self.present = torch.cat([self.present, real_BT], dim=1)

    def _keep(self, stay_BE: Tensor) -> None:
        """Drop all others; places that no row needs any more are given back."""
        if bool(stay_BE.all()):
            return
        sizes_B = stay_BE.sum(1)
        order_BE = (~stay_BE).to(torch.uint8).argsort(dim=1, stable=True)[:, : int(sizes_B.max())]
        self.values, self.rates, self.norms, self.ages, self.present = (
            _taken(tensor, order_BE) for tensor in (self.values, self.rates, self.norms, self.ages, stay_BE)
        )

    def sizes(self, position: int) -> Tensor:
        """The tokens in the context."""
        return self.present.sum(1)

    def forget(self) -> Self:
        """An empty copy."""
        return self.with_tensors({name: tensor[:, :0].clone() for name, tensor in self.tensors().items()})

    def crop(self, length: int) -> None:
        """Cannot be done: what was evicted is lost."""
        raise NotImplementedError("a context with evictions cannot go back to an earlier token")


@dataclass
class BankState(TedState):
    """The running sums and two chunks of tokens, `[B, N, E, C]`, their rates, and what the sums' rounding took off."""

    bank: RateBank = field(repr=False)
    entries: Tensor
    rates: Tensor
    low: Tensor

    @classmethod
    def empty(cls, shape: Shape, bank: RateBank) -> Self:
        """No token yet."""
        empty = DecayBank.empty((shape.batch, shape.heads, shape.channels), bank, shape.dtype, shape.device)
        return cls(bank, empty.entries_BNEH, empty.rates_BNE, empty.low_BNRH)

    def read(self, rates_BTN: Tensor, v_BTD: Tensor, span: Span, sums: Sums) -> Tensor:
        """See `TedState`; every weight is right to the bank's bound."""
        stream = DecayBank(self.bank, self.entries, self.rates, self.low, span.start)
        return stream.append(rates_BTN, _by_head(v_BTD, rates_BTN)).flatten(2)

    def forget(self) -> Self:
        """An empty copy; the fixed rates stay."""
        rates = self.rates.clone()
        rates[:, :, len(self.bank.rates_R) :] = 0
        return self.with_tensors({**super().forget().tensors(), "rates": rates})

    def sizes(self, position: int) -> Tensor:
        """The sums, and the tokens of the chunk before the current one and of the current one."""
        chunk = self.bank.nearest
        near = min(position, chunk + position % chunk)
        return torch.full((len(self.low),), near + self.low.shape[2])

    def crop(self, length: int) -> None:
        """Cannot be done: what is in the sums cannot be told apart."""
        raise NotImplementedError("a bank of decaying sums cannot go back to an earlier token")


def empty_state(context: Context, shape: Shape, capacity: int, tolerance: float, chunk: int) -> TedState:
    """The state that keeps the past as `context` says. `tolerance` and `chunk` are the bank's."""
    match context:
        case ContextPolicy():
            return PolicyState.empty(shape, context)
        case BankContext():
            length = capacity if context.length is None else context.length
            return BankState.empty(shape, rate_bank(tolerance, chunk, 1 << (length - 1).bit_length()))
        case FullContext():
            return FullState.empty(shape, capacity)


def _by_head(x_BED: Tensor, rates_BEN: Tensor) -> Tensor:
    """`[B, E, D] -> [B, E, N, C]`: a view."""
    return x_BED.view(*x_BED.shape[:2], rates_BEN.shape[2], -1)


def _ages_of_steps(ages_BE: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Ages at each of the last `length` steps, and which tokens there are by then: `[B, T, E]`; 0 before birth."""
    later_T1 = torch.arange(length - 1, -1, -1, device=ages_BE.device)[:, None]
    ages_BTE = ages_BE[:, None] - later_T1
    return ages_BTE.clamp(min=0), ages_BTE >= 0


def _taken(x: Tensor, order_BE: Tensor) -> Tensor:
    """The entries of each row in this order."""
    taken: Tensor = torch.take_along_dim(x, order_BE.view(*order_BE.shape, *(1,) * (x.dim() - 2)), dim=1)
    return taken
