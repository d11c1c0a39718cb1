"""A state of a TED layer with the tokens that an eviction policy keeps.

Shapes: `B` batch, `T` tokens of the chunk, `E` stored tokens, `N` heads, `C` channels of a head, `D` width, `M` width
of a key (0 without keys).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.mixers.ted.policies import EvictionCache
from linnet.layers.mixers.ted.state import Shape, Sums, TedState, by_head, of_rows, token_bytes
from linnet.layers.state import Contents
from linnet.ops.decay.eviction import context_relevance, evict_step_by_step, survivors
from linnet.ops.decay.reference import Keys
from linnet.ops.support import is_exporting

STEPS_AT_ONCE = 256
"""Tokens of a prompt that are processed at once; after each such piece the evicted tokens are removed."""


@dataclass
class EvictionState(TedState):
    """The tokens that an eviction policy keeps.

    The length of queries and keys is at most 1, so the relevance of a token, which does not depend on a query, is an
    upper bound of its contribution.

    entries: quantity, keys, negative rates, and norm per head, `[B, E, D + N M + 2 N]`, float32 or wider. It is one
        tensor because the time of a decoding step depends on the number of operations. Shorter rows have empty places,
        with norms of -1 and otherwise 0.
    ages: ages in steps at the last token, int64 `[B, E]`. total: the sum of the sizes after every step so far; largest:
        the largest size; int64 `[B]`.
    """

    any_length: ClassVar[frozenset[str]] = frozenset({"entries", "ages"})

    policy: EvictionCache
    heads: int
    entries: Tensor
    ages: Tensor
    total: Tensor
    largest: Tensor
    key: int = 0

    @classmethod
    def empty(cls, shape: Shape, policy: EvictionCache) -> Self:
        width = shape.heads * (shape.channels + shape.key + 2)
        entries = torch.zeros(shape.batch, 0, width, device=shape.device, dtype=shape.wide)
        ages = torch.zeros(shape.batch, 0, dtype=torch.int64, device=shape.device)
        return cls(policy, shape.heads, entries, ages, ages.sum(1), ages.sum(1), shape.key, inputs=shape.inputs())

    @property
    def cache_policy(self) -> EvictionCache:
        return self.policy

    def supports(self, layout: BatchLayout, length: int) -> bool:
        """Rows at any positions; with padding only at the start."""
        return layout.padding is None or layout.starts == 0

    def join(self, others: Sequence[Self]) -> Self:
        """See `State`; shorter rows get empty places."""
        longest, padded = max(state.ages.shape[1] for state in (self, *others)), []
        for state in (self, *others):
            missing = longest - state.ages.shape[1]
            empty = state._empty_entry().expand(len(state.ages), missing, -1)
            ages = F.pad(state.ages, (0, missing))
            padded.append(replace(state, entries=torch.cat([state.entries, empty], 1), ages=ages))
        return super(EvictionState, padded[0]).join(padded[1:])

    @property
    def _fields(self) -> tuple[Tensor, ...]:
        """Views of quantities `[B, E, D]`, keys `[B, E, N M]`, negative rates and norms `[B, E, N]`."""
        keys = self.heads * self.key
        width = self.entries.shape[2] - keys - 2 * self.heads
        return torch.split(self.entries, [width, keys, self.heads, self.heads], dim=2)

    def read(
        self, rates_BTN: Tensor, v_BTD: Tensor, layout: BatchLayout, sums: Sums, keys: Keys | None = None
    ) -> Tensor:
        """See `TedState`; exact except for evicted tokens."""
        v_wide_BTD, minus_rates_BTN = v_BTD.to(rates_BTN.dtype), -rates_BTN
        norms_BTN = torch.linalg.vector_norm(by_head(v_wide_BTD, rates_BTN), dim=-1)
        real_BT = layout.real(v_BTD.shape[1], v_BTD.device)
        if real_BT is not None:  # padding becomes empty places
            norms_BTN = norms_BTN.masked_fill(~real_BT[..., None], -1.0)
            minus_rates_BTN = minus_rates_BTN.masked_fill(~real_BT[..., None], 0.0)
        own_keys = () if keys is None else (keys.keys.flatten(2).to(rates_BTN.dtype),)
        entries = torch.cat([v_wide_BTD, *own_keys, minus_rates_BTN, norms_BTN], dim=2)
        queries = None if keys is None else keys.queries.to(entries.dtype).transpose(1, 2)
        if entries.shape[1] == 1:
            return self._read_token(entries, queries, layout).to(v_BTD.dtype)
        self.entries = self.entries.detach()  # gradients flow within a chunk
        pieces = []
        for start in range(0, entries.shape[1], STEPS_AT_ONCE):
            piece = entries[:, start : start + STEPS_AT_ONCE]
            piece_queries = None if queries is None else queries[:, :, start : start + STEPS_AT_ONCE]
            if piece.shape[1] > 1:
                pieces.append(self._read_piece(piece, piece_queries))
            else:
                pieces.append(self._read_token(piece, piece_queries, layout))
        return torch.cat(pieces, dim=1).to(v_BTD.dtype)

    def _matched(self, weights_BNTE: Tensor, queries_BNTM: Tensor | None) -> Tensor:
        """The weights times the products of queries and keys."""
        if queries_BNTM is None:
            return weights_BNTE
        keys_BENM = torch.unflatten(self._fields[1], 2, (self.heads, self.key))
        return weights_BNTE * (queries_BNTM @ keys_BENM.permute(0, 2, 3, 1))

    def _read_token(self, entry: Tensor, queries_BN1M: Tensor | None, layout: BatchLayout) -> Tensor:
        """One step: the same as `_read_piece`, in fewer operations."""
        self.entries = torch.cat([self.entries, entry], dim=1)
        self.ages = F.pad(self.ages + 1, (0, 1))
        v_BED, _, minus_rates_BEN, norms_BEN = self._fields
        weights_BEN = (minus_rates_BEN * self.ages[:, :, None]).exp_()
        weights_BN1E = self._matched(weights_BEN.mT[:, :, None], queries_BN1M)
        out_BN1C = weights_BN1E @ by_head(v_BED, norms_BEN).transpose(1, 2)
        relevance_BE = context_relevance(norms_BEN, weights_BEN.mT[:, :, None])[:, 0]
        stay_BE = survivors(relevance_BE, norms_BEN[..., 0] >= 0, self.policy)
        if layout.in_graph and not layout.functional:
            self._keep_places(stay_BE)
        else:
            self._keep(stay_BE)
        return out_BN1C.transpose(1, 2).flatten(2)

    def _read_piece(self, entries: Tensor, queries_BNTM: Tensor | None) -> Tensor:
        """Several steps: all tokens are added first, with their ages at the last step, then evicted step by step."""
        length = entries.shape[1]
        ages_BT = torch.arange(length - 1, -1, -1, device=entries.device).expand(len(entries), -1)
        self.entries = torch.cat([self.entries, entries], dim=1)
        self.ages = torch.cat([self.ages + length, ages_BT], dim=1)
        v_BED, _, minus_rates_BEN, norms_BEN = self._fields
        later_T1 = torch.arange(length - 1, -1, -1, device=entries.device)[:, None]
        ages_BTE = self.ages[:, None] - later_T1  # at each step; negative before the token
        weights_BNTE = (minus_rates_BEN.mT[:, :, None] * ages_BTE.clamp(min=0)[:, None]).exp_()
        present_BTE = (norms_BEN[..., 0] >= 0)[:, None] & (ages_BTE >= 0)
        read_BTE, stay_BTE = evict_step_by_step(context_relevance(norms_BEN, weights_BNTE), present_BTE, self.policy)
        weights_BNTE = self._matched(weights_BNTE * read_BTE[:, None], queries_BNTM)
        out_BNTC = weights_BNTE @ by_head(v_BED, norms_BEN).transpose(1, 2)
        self._count(stay_BTE[:, :-1].sum(2))
        self._keep(stay_BTE[:, -1])
        return out_BNTC.transpose(1, 2).flatten(2)

    def _count(self, sizes_BT: Tensor) -> None:
        self.total = self.total + sizes_BT.sum(1)
        self.largest = torch.maximum(self.largest, sizes_BT.amax(1))

    def _keep(self, stay_BE: Tensor, counts: bool = True) -> None:
        """Remove all other tokens, and places that are empty in all rows; counts: whether this ends a step."""
        sizes_B = stay_BE.sum(1)
        if counts:
            self._count(sizes_B[:, None])
        if len(stay_BE) == 1:
            if is_exporting() or not bool(stay_BE.all()):  # a graph cannot branch on a tensor
                (stay,) = stay_BE[0].nonzero(as_tuple=True)
                self.entries, self.ages = self.entries.index_select(1, stay), self.ages.index_select(1, stay)
        elif not bool(stay_BE.all()):
            longest = int(sizes_B.max())
            order_BE = (~stay_BE).to(torch.uint8).argsort(dim=1, stable=True)[:, :longest]
            rows_B1 = torch.arange(len(stay_BE), device=stay_BE.device)[:, None]
            taken_BE1 = stay_BE[rows_B1, order_BE][..., None]
            self.entries = torch.where(taken_BE1, self.entries[rows_B1, order_BE], self._empty_entry())
            self.ages = self.ages[rows_B1, order_BE]

    def _keep_places(self, stay_BE: Tensor) -> None:
        """`_keep` in a graph whose states keep their shapes: as many places as before the last token.

        `reserve` has made room for it.
        """
        self._count(stay_BE.sum(1)[:, None])
        places = stay_BE.shape[1] - 1
        to_BE = torch.where(stay_BE, stay_BE.cumsum(1) - 1, places)  # evicted ones to a place that is cut off
        empty_BEW = self._empty_entry().expand_as(self.entries)
        entries_BEW = empty_BEW.scatter(1, to_BE[..., None].expand_as(self.entries), self.entries)
        self.entries = entries_BEW[:, :places]
        self.ages = torch.zeros_like(self.ages).scatter(1, to_BE, self.ages)[:, :places]

    def reserve(self, tokens: int) -> None:
        """See `State`: a power of two of places, or as many as the policy keeps if they are fewer."""
        most, limit = int(self.sizes(0).max()), max(self.policy.top_k, self.policy.min_tokens_to_keep, 2)
        places = 1 << max(most + tokens - 1, 1).bit_length()
        places = min(places, limit) if self.policy.top_k else places
        self._keep(self._fields[3][..., 0] >= 0, counts=False)
        missing = places - self.ages.shape[1]
        if missing > 0:
            empty = self._empty_entry().expand(self.ages.shape[0], missing, -1)
            self.entries, self.ages = torch.cat([self.entries, empty], 1), F.pad(self.ages, (0, missing))
        self.ages = self.ages.masked_fill(self._fields[3][..., 0] < 0, 0)

    def _empty_entry(self) -> Tensor:
        """The entry of an empty place, `[D + N M + 2 N]`."""
        entry = self.entries.new_zeros(self.entries.shape[2])
        entry[-self.heads :] = -1
        return entry

    def observe(self, position: int, row: int = 0) -> Contents:
        _, _, minus_rates_BEN, norms_BEN = (x[row : row + 1, self._fields[3][row, :, 0] >= 0] for x in self._fields)
        ages_E = self.ages[row, self._fields[3][row, :, 0] >= 0]
        weights_1N1E = (minus_rates_BEN.mT * ages_E).exp()[:, :, None]
        relevance_E = context_relevance(norms_BEN, weights_1N1E)[0, 0]
        return self.contents(position, 0, ages_E.tolist(), relevance_E.tolist())

    def sizes(self, position: int | Tensor) -> Tensor:
        """The tokens in the context."""
        return (self._fields[3][..., 0] >= 0).sum(1)

    def mean_sizes(self, position: int | Tensor) -> Tensor:
        """The mean number of tokens in the context after evictions; padding is not counted."""
        return self.total / of_rows(position, self.ages).clamp(min=1)

    def largest_sizes(self, position: int | Tensor) -> Tensor:
        return self.largest

    def mean_nbytes(self, position: int | Tensor) -> Tensor:
        counts = self.total.itemsize + self.largest.itemsize
        return self.mean_sizes(position) * token_bytes(self.entries, self.ages) + counts + self.inputs_nbytes

    def forget(self) -> Self:
        empty = {"entries": self.entries[:, :0].clone(), "ages": self.ages[:, :0].clone()}
        return self.with_tensors({**super().forget().tensors(), **empty})
