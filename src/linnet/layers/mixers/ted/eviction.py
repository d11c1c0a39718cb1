"""What an eviction policy leaves of a TED layer's stream.

Shapes: `B` batch, `T` tokens of the chunk, `E` tokens that are held, `N` heads, `C` channels of a head, `D` width,
`M` width of a key (0: there are none).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.mixers.ted.policies import EvictionCache
from linnet.layers.mixers.ted.state import RowReader, Shape, Sums, TedState, by_head, of_rows, token_bytes
from linnet.ops.decay.eviction import context_relevance, evict_step_by_step, survivors
from linnet.ops.decay.reference import Keys
from linnet.ops.support import is_exporting

STEPS_AT_ONCE = 256
"""Tokens of a prompt that an eviction policy takes at once; between them the context is made small again."""


@dataclass
class EvictionState(TedState):
    """The tokens that an eviction policy has left.

    Queries and keys are at most 1 long, so that relevance, which asks no query, bounds what a token would have added.

    entries: quantity, keys, rates times -1, and norm per head, `[B, E, D + N M + 2 N]`, float32 or wider: one tensor,
        because a step of decoding consists of small operations, whose number counts. Rows are as long as the longest; a
        place that is not taken has norms of -1, and all else 0.
    ages: steps at the last token, int64 `[B, E]`. total: the sizes after every step so far, added up; largest: the
        largest of them; int64 `[B]`.
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
        """No token yet."""
        fields = [shape.values(0), shape.keys(0), shape.rates(0), shape.rates(0)]
        entries = torch.cat([each.flatten(2).to(shape.wide) for each in fields if each is not None], dim=2)
        ages = torch.zeros(shape.batch, 0, dtype=torch.int64, device=shape.device)
        return cls(policy, shape.heads, entries, ages, ages.sum(1), ages.sum(1), shape.key, inputs=shape.inputs())

    @property
    def cache_policy(self) -> EvictionCache:
        """The policy."""
        return self.policy

    def supports(self, layout: BatchLayout, length: int) -> bool:
        """Ages count from the last token, wherever a row stands; with padding a fresh state alone."""
        return layout.padding is None or layout.starts == 0

    def join(self, others: Sequence[Self]) -> Self:
        """See `State`; rows become as long as the longest."""
        together = [self, *others]
        longest = max(state.ages.shape[1] for state in together)
        first, *rest = (state._padded(longest) for state in together)
        return super(EvictionState, first).join(rest)

    def _padded(self, longest: int) -> Self:
        missing = longest - self.ages.shape[1]
        entries = self._no_entry().expand(len(self.ages), missing, -1)
        return replace(self, entries=torch.cat([self.entries, entries], 1), ages=F.pad(self.ages, (0, missing)))

    @property
    def _fields(self) -> tuple[Tensor, ...]:
        """Quantities `[B, E, D]`, keys `[B, E, N M]`, rates times -1 and norms `[B, E, N]`: views."""
        keys = self.heads * self.key
        width = self.entries.shape[2] - keys - 2 * self.heads
        return torch.split(self.entries, [width, keys, self.heads, self.heads], dim=2)

    def read(
        self, rates_BTN: Tensor, v_BTD: Tensor, layout: BatchLayout, sums: Sums, keys: Keys | None = None
    ) -> Tensor:
        """See `TedState`; exact but for what was evicted."""
        entries = _entries(rates_BTN, v_BTD, layout.real(v_BTD.shape[1], v_BTD.device), keys)
        queries = None if keys is None else keys.queries.to(entries.dtype).transpose(1, 2)
        if entries.shape[1] == 1:
            return self._read_token(entries, queries).to(v_BTD.dtype)
        self.entries = self.entries.detach()  # gradients flow within a chunk
        pieces = []
        for start in range(0, entries.shape[1], STEPS_AT_ONCE):
            piece, asked = entries[:, start : start + STEPS_AT_ONCE], None
            if queries is not None:
                asked = queries[:, :, start : start + STEPS_AT_ONCE]
            read = self._read_piece if piece.shape[1] > 1 else self._read_token
            pieces.append(read(piece, asked))
        return torch.cat(pieces, dim=1).to(v_BTD.dtype)

    def _matched(self, weights_BNTE: Tensor, queries_BNTM: Tensor | None) -> Tensor:
        """The weights times what queries and keys make of them."""
        if queries_BNTM is None:
            return weights_BNTE
        keys_BENM = torch.unflatten(self._fields[1], 2, (self.heads, self.key))
        return weights_BNTE * (queries_BNTM @ keys_BENM.permute(0, 2, 3, 1))

    def _read_token(self, entry: Tensor, queries_BN1M: Tensor | None) -> Tensor:
        """One step; what `_read_piece` does, in fewer operations."""
        self.entries = torch.cat([self.entries, entry], dim=1)
        self.ages = F.pad(self.ages + 1, (0, 1))
        v_BED, _, minus_rates_BEN, norms_BEN = self._fields
        weights_BEN = (minus_rates_BEN * self.ages[:, :, None]).exp_()
        weights_BN1E = self._matched(weights_BEN.mT[:, :, None], queries_BN1M)
        out_BN1C = weights_BN1E @ by_head(v_BED, norms_BEN).transpose(1, 2)
        relevance_BE = context_relevance(norms_BEN, weights_BEN.mT[:, :, None])[:, 0]
        self._keep(survivors(relevance_BE, norms_BEN[..., 0] >= 0, self.policy))
        return out_BN1C.transpose(1, 2).flatten(2)

    def row_reader(self) -> RowReader:
        """See `TedState`; with one rate per token and no keys, which is how TED was published."""
        return self._read_row if self.heads == 1 and not self.key else super().row_reader()

    def _read_row(self, rates_1N: Tensor, v_1D: Tensor, position: int, _: Keys | None) -> Tensor:
        width = v_1D.shape[1]
        norm_11 = torch.linalg.vector_norm(v_1D, dim=1, keepdim=True)
        entries_ED = torch.cat([self.entries[0], torch.cat([v_1D, -rates_1N, norm_11], dim=1)])
        ages_E = F.pad(self.ages[0] + 1, (0, 1))
        weights_E = (entries_ED[:, width] * ages_E).exp_()
        out_1D = weights_E[None] @ entries_ED[:, :width]
        relevance_E = weights_E.mul_(entries_ED[:, width + 1])
        self._keep_in_row(entries_ED, ages_E, relevance_E)
        return out_1D

    def _keep_in_row(self, entries_ED: Tensor, ages_E: Tensor, relevance_E: Tensor) -> None:
        """The only row's evictions."""
        held, policy = len(ages_E), self.policy
        stay_E = relevance_E >= policy.threshold
        staying = int(stay_E.count_nonzero())
        if staying < min(policy.min_tokens_to_keep, held) or (policy.top_k and staying > policy.top_k):
            (stay_E,) = survivors(relevance_E[None], torch.ones_like(stay_E)[None], policy)
            staying = int(stay_E.count_nonzero())
        if staying < held:
            (stay,) = stay_E.nonzero(as_tuple=True)
            entries_ED, ages_E = entries_ED.index_select(0, stay), ages_E.index_select(0, stay)
        self.entries, self.ages = entries_ED[None], ages_E[None]
        self.total, self.largest = self.total + staying, self.largest.clamp(min=staying)

    def _read_piece(self, entries: Tensor, queries_BNTM: Tensor | None) -> Tensor:
        """Two steps or more, all of whose tokens are taken in first; ages become those at the last of them."""
        length = entries.shape[1]
        ages_BT = torch.arange(length - 1, -1, -1, device=entries.device).expand(len(entries), -1)
        self.entries = torch.cat([self.entries, entries], dim=1)
        self.ages = torch.cat([self.ages + length, ages_BT], dim=1)
        v_BED, _, minus_rates_BEN, norms_BEN = self._fields
        ages_BTE, born_BTE = _ages_of_steps(self.ages, length)
        weights_BNTE = (minus_rates_BEN.mT[:, :, None] * ages_BTE[:, None]).exp_()
        present_BTE = (norms_BEN[..., 0] >= 0)[:, None] & born_BTE
        read_BTE, stay_BTE = evict_step_by_step(context_relevance(norms_BEN, weights_BNTE), present_BTE, self.policy)
        weights_BNTE = self._matched(weights_BNTE * read_BTE[:, None], queries_BNTM)
        out_BNTC = weights_BNTE @ by_head(v_BED, norms_BEN).transpose(1, 2)
        self._count(stay_BTE[:, :-1].sum(2))
        self._keep(stay_BTE[:, -1])
        return out_BNTC.transpose(1, 2).flatten(2)

    def _count(self, sizes_BT: Tensor) -> None:
        self.total = self.total + sizes_BT.sum(1)
        self.largest = torch.maximum(self.largest, sizes_BT.amax(1))

    def _keep(self, stay_BE: Tensor) -> None:
        """Drop all others; places that no row needs any more are given back."""
        sizes_B = stay_BE.sum(1)
        self._count(sizes_B[:, None])
        if len(stay_BE) == 1:
            if is_exporting() or not bool(stay_BE.all()):  # a graph cannot ask
                (stay,) = stay_BE[0].nonzero(as_tuple=True)
                self.entries, self.ages = self.entries.index_select(1, stay), self.ages.index_select(1, stay)
        elif not bool(stay_BE.all()):
            longest = int(sizes_B.max())
            order_BE = (~stay_BE).to(torch.uint8).argsort(dim=1, stable=True)[:, :longest]
            rows_B1 = torch.arange(len(stay_BE), device=stay_BE.device)[:, None]
            taken_BE1 = stay_BE[rows_B1, order_BE][..., None]
            self.entries = torch.where(taken_BE1, self.entries[rows_B1, order_BE], self._no_entry())
            self.ages = self.ages[rows_B1, order_BE]

    def _no_entry(self) -> Tensor:
        """What stands in a place that is not taken, `[D + 2 N]`."""
        entry = self.entries.new_zeros(self.entries.shape[2])
        entry[-self.heads :] = -1
        return entry

    def sizes(self, position: int | Tensor) -> Tensor:
        """The tokens in the context."""
        return (self._fields[3][..., 0] >= 0).sum(1)

    def mean_sizes(self, position: int | Tensor) -> Tensor:
        """The tokens in the context after evictions; padding joins none."""
        return self.total / of_rows(position, self.ages).clamp(min=1)

    def largest_sizes(self, position: int | Tensor) -> Tensor:
        """The tokens in the context at its fullest."""
        return self.largest

    def mean_nbytes(self, position: int | Tensor) -> Tensor:
        """Of every token in the context its fields."""
        of_tokens = [getattr(self, name) for name in self.any_length]
        counts = self.total.itemsize + self.largest.itemsize
        return self.mean_sizes(position) * token_bytes(*of_tokens) + counts + self.inputs_nbytes

    def forget(self) -> Self:
        """An empty copy."""
        none = {name: getattr(self, name)[:, :0].clone() for name in self.any_length}
        return self.with_tensors({**super().forget().tensors(), **none})


def _ages_of_steps(ages_BE: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Ages at each of the last `length` steps, and which tokens there are by then: `[B, T, E]`; 0 before birth."""
    later_T1 = torch.arange(length - 1, -1, -1, device=ages_BE.device)[:, None]
    ages_BTE = ages_BE[:, None] - later_T1
    return ages_BTE.clamp(min=0), ages_BTE >= 0


def _entries(rates_BTN: Tensor, v_BTD: Tensor, real_BT: Tensor | None, keys: Keys | None) -> Tensor:
    """Tokens as `EvictionState` holds them; padding as places that are not taken."""
    v_BTD = v_BTD.to(rates_BTN.dtype)
    norms_BTN = torch.linalg.vector_norm(by_head(v_BTD, rates_BTN), dim=-1)
    minus_rates_BTN = -rates_BTN
    if real_BT is not None:
        norms_BTN = norms_BTN.masked_fill(~real_BT[..., None], -1.0)
        minus_rates_BTN = minus_rates_BTN.masked_fill(~real_BT[..., None], 0.0)
    own = () if keys is None else (keys.keys.flatten(2).to(rates_BTN.dtype),)
    return torch.cat([v_BTD, *own, minus_rates_BTN, norms_BTN], dim=2)
