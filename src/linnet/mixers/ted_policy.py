"""What an eviction policy leaves of a TED layer's stream.

Legend: `B` batch, `T` tokens of the chunk, `E` tokens that are held, `N` heads, `C` channels of a head, `D` width.
"""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from linnet.mixers.base import Span
from linnet.mixers.ted_state import Shape, Sums, TedState, by_head, of_rows, token_bytes
from linnet.ops.decay.context import ContextPolicy, relevance, run_steps

STEPS_AT_ONCE = 256
"""Tokens of a prompt that an eviction policy takes at once; between them the context is made small again."""


@dataclass
class PolicyState(TedState):
    """The tokens that a policy has left: quantity, rates, norm per head, and age in steps at the last token.

    Rows are as long as the longest; `present` says which of their places are taken. `total`: the sizes after every step
    so far, added up; `largest`: the largest of them, int64 `[B]`.
    """

    any_length: ClassVar[frozenset[str]] = frozenset({"values", "rates", "norms", "ages", "present"})

    policy: ContextPolicy
    values: Tensor
    rates: Tensor
    norms: Tensor
    ages: Tensor
    present: Tensor
    total: Tensor
    largest: Tensor

    @classmethod
    def empty(cls, shape: Shape, policy: ContextPolicy) -> Self:
        """No token yet."""
        ages = torch.zeros(shape.batch, 0, dtype=torch.int64, device=shape.device)
        none = ages.sum(1)
        return cls(policy, shape.values(0), shape.rates(0), shape.rates(0), ages, ages.bool(), none, none.clone())

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
        out_BNTC = weights_BNTE @ by_head(self.values, self.rates).transpose(1, 2)
        sizes_BT = stay_BTE.sum(2)
        self.total = self.total + sizes_BT.sum(1)
        self.largest = torch.maximum(self.largest, sizes_BT.amax(1))
        self._keep(stay_BTE[:, -1], sizes_BT[:, -1])
        return out_BNTC.transpose(1, 2).flatten(2)

    def _append(self, rates_BTN: Tensor, v_BTD: Tensor, real_BT: Tensor | None) -> None:
        """Take the tokens of the piece in; ages become those at its last token."""
        batch, length = v_BTD.shape[:2]
        if real_BT is None:
            real_BT = torch.ones(batch, length, dtype=torch.bool, device=v_BTD.device)
        norms_BTN = torch.linalg.vector_norm(by_head(v_BTD, rates_BTN), dim=-1, dtype=rates_BTN.dtype)
        ages_BT = torch.arange(length - 1, -1, -1, device=v_BTD.device).expand(batch, length)
        self.values = torch.cat([self.values, v_BTD], dim=1)
        self.rates = torch.cat([self.rates, rates_BTN], dim=1)
        self.norms = torch.cat([self.norms, norms_BTN], dim=1)
        self.ages = torch.cat([self.ages + length, ages_BT], dim=1)
        self.present = torch.cat([self.present, real_BT], dim=1)

    def _keep(self, stay_BE: Tensor, sizes_B: Tensor) -> None:
        """Drop all others; places that no row needs any more are given back."""
        if bool(stay_BE.all()):
            return
        order_BE = (~stay_BE).to(torch.uint8).argsort(dim=1, stable=True)[:, : int(sizes_B.max())]
        self.values, self.rates, self.norms, self.ages, self.present = (
            _taken(tensor, order_BE) for tensor in (self.values, self.rates, self.norms, self.ages, stay_BE)
        )

    def sizes(self, position: int) -> Tensor:
        """The tokens in the context."""
        return self.present.sum(1)

    def mean_sizes(self, position: int | Tensor) -> Tensor:
        """The tokens in the context after evictions; padding joins none."""
        return self.total / of_rows(position, self.values).clamp(min=1)

    def largest_sizes(self, position: int | Tensor) -> Tensor:
        """The tokens in the context at its fullest."""
        return self.largest

    def mean_nbytes(self, position: int | Tensor) -> Tensor:
        """Of every token in the context its fields."""
        of_tokens = [getattr(self, name) for name in self.any_length]
        return self.mean_sizes(position) * token_bytes(*of_tokens) + self.total.itemsize + self.largest.itemsize

    def forget(self) -> Self:
        """An empty copy."""
        counts = {name: torch.zeros_like(getattr(self, name)) for name in ("total", "largest")}
        return self.with_tensors({**{name: getattr(self, name)[:, :0].clone() for name in self.any_length}, **counts})

    def crop(self, length: int) -> None:
        """Cannot be done: what was evicted is lost."""
        raise NotImplementedError("a context with evictions cannot go back to an earlier token")


def _ages_of_steps(ages_BE: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Ages at each of the last `length` steps, and which tokens there are by then: `[B, T, E]`; 0 before birth."""
    later_T1 = torch.arange(length - 1, -1, -1, device=ages_BE.device)[:, None]
    ages_BTE = ages_BE[:, None] - later_T1
    return ages_BTE.clamp(min=0), ages_BTE >= 0


def _taken(x: Tensor, order_BE: Tensor) -> Tensor:
    """The entries of each row in this order."""
    taken: Tensor = torch.take_along_dim(x, order_BE.view(*order_BE.shape, *(1,) * (x.dim() - 2)), dim=1)
    return taken
