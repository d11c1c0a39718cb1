"""What a block of attention owes to distances (`ops.relative`), without an entry for each pair of query and key.

A table's entries stand for a query in the R columns up to its own, so those of `q` queries lie in a band of `q + R - 1`
columns, each row a column further. A band is written, read and summed as a strided view of such a rectangle.

Legend: as in `ops.blocked_attention`; `R` distances, `W = q + R - 1` columns, `Y` pairs of row and head, `y` some.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from linnet.ops.relative import Relative


def band(rectangle_YqW: Tensor, entries: int) -> Tensor:
    """The view `[Y, q, R]` of a contiguous rectangle, the furthest distance first."""
    rows, queries, columns = rectangle_YqW.shape
    return rectangle_YqW.as_strided((rows, queries, entries), (queries * columns, columns + 1, 1))


def rectangle(entries_YqR: Tensor) -> Tensor:
    """Entries, the furthest first, at their places in a rectangle `[Y, q, W]` of zeros."""
    rows, queries, entries = entries_YqR.shape
    made = entries_YqR.new_zeros(rows, queries, queries + entries - 1)
    band(made, entries).copy_(entries_YqR)
    return made


def entries_of(pairs_Yqs: Tensor, entries: int) -> Tensor:
    """Of what stands for pairs, the last column being the last query's own: what is at those distances, `[Y, q, R]`."""
    rows, queries, keys = pairs_Yqs.shape
    columns = min(keys, queries + entries - 1)
    if columns == queries + entries - 1:
        made = pairs_Yqs[..., keys - columns :].contiguous()
    else:
        made = pairs_Yqs.new_zeros(rows, queries, queries + entries - 1)
        made[..., -columns:] = pairs_Yqs
    return band(made, entries)


def add_right(pairs_qs: Tensor, rectangle_qW: Tensor) -> None:
    """Add to the last columns of `[..., q, s]` those of `[..., q, W]`."""
    columns = min(pairs_qs.shape[-1], rectangle_qW.shape[-1])
    pairs_qs[..., -columns:] += rectangle_qW[..., -columns:]


class NearBand:
    """Tables for one pass over a text, furthest distance first, and the sums of the gradients of those `learned`."""

    def __init__(
        self, relative: Relative, kv_heads: int, queries: int, dtype: torch.dtype, learned: Sequence[bool] = ()
    ) -> None:
        bias_NR, keys_RK, values_RK = relative
        self.kv_heads, self.queries = kv_heads, queries
        self.keys_RK = None if keys_RK is None else keys_RK.to(dtype).flip(0)
        self.values_RK = None if values_RK is None else values_RK.to(dtype).flip(0)
        self.bias_MGqW: Tensor | None = None
        if bias_NR is not None:
            rows_NqR = bias_NR.to(dtype).flip(1)[:, None].expand(-1, queries, -1)
            rectangle_NqW = rectangle(rows_NqR)
            self.bias_MGqW = rectangle_NqW.view(kv_heads, -1, *rectangle_NqW.shape[1:])
        wide = torch.promote_types(dtype, torch.float32)
        tables = self.bias_MGqW, self.keys_RK, self.values_RK
        self.sums = [
            torch.zeros_like(table, dtype=wide) if wanted and table is not None else None
            for table, wanted in zip(tables, learned, strict=False)
        ]

    def add_scores(self, scores_xGqs: Tensor, q_xqK: Tensor, first: int, scale: float) -> None:
        """Into the scores of the pairs from number `first` on; `q_xqK` are the queries of all groups."""
        if self.keys_RK is not None:
            near_RK = self.keys_RK[-scores_xGqs.shape[3] :]
            of_distances = (q_xqK @ near_RK.t()).mul_(scale).view(-1, scores_xGqs.shape[2], len(near_RK))
            add_right(scores_xGqs.flatten(0, 1), rectangle(of_distances))
        if self.bias_MGqW is not None:
            add_right(*self._bias_of(scores_xGqs, self.bias_MGqW, first))

    def add_values(self, mixed_xqK: Tensor, weights_xGqs: Tensor) -> None:
        """Into what is read."""
        if self.values_RK is not None:
            near_RK = self.values_RK[-weights_xGqs.shape[3] :]
            sums_YqR = entries_of(weights_xGqs.flatten(0, 1), len(near_RK))
            mixed_xqK += (sums_YqR @ near_RK).view(mixed_xqK.shape)

    def add_of_weights(self, of_weights_xGqs: Tensor, weights_xGqs: Tensor, of_out_xqK: Tensor) -> None:
        """Into the gradient of the weights; sums that of the values."""
        if self.values_RK is None:
            return
        near_RK = self.values_RK[-weights_xGqs.shape[3] :]
        entries, queries = len(near_RK), weights_xGqs.shape[2]
        add_right(of_weights_xGqs.flatten(0, 1), rectangle((of_out_xqK @ near_RK.t()).view(-1, queries, entries)))
        self._add_product(2, entries_of(weights_xGqs.flatten(0, 1), entries), of_out_xqK)

    def add_of_queries(self, of_q_xqK: Tensor, of_scores_xGqs: Tensor, q_xqK: Tensor, first: int) -> None:
        """Into the gradient of the queries, still without the scale; sums those of keys and bias."""
        if self.keys_RK is not None:
            near_RK = self.keys_RK[-of_scores_xGqs.shape[3] :]
            of_entries_YqR = entries_of(of_scores_xGqs.flatten(0, 1), len(near_RK))
            of_q_xqK += (of_entries_YqR @ near_RK).view(of_q_xqK.shape)
            self._add_product(1, of_entries_YqR, q_xqK)
        if self.sums[0] is not None:
            of_scores, of_bias = self._bias_of(of_scores_xGqs, self.sums[0], first)
            add_right(of_bias, of_scores[..., -of_bias.shape[-1] :].sum(0, dtype=of_bias.dtype))

    def gradients(self, scale: float) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Of bias `[N, R]`, keys and values `[R, K]`, the nearest first."""
        of_bias, of_keys, of_values = self.sums
        if of_bias is not None:
            entries = of_bias.shape[-1] - self.queries + 1
            of_bias = band(of_bias.flatten(0, 1), entries).sum(1).flip(1)
        return (
            of_bias,
            None if of_keys is None else of_keys.mul_(scale).flip(0),
            None if of_values is None else of_values.flip(0),
        )

    def _bias_of(self, pairs_xGqs: Tensor, table_MGqW: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Pairs by rows `[rows, m, G, q, s]`, and the part of a table that is theirs, `[m, G, q, W]`."""
        queries, entries = pairs_xGqs.shape[2], table_MGqW.shape[3] - table_MGqW.shape[2] + 1
        head, heads = first % self.kv_heads, min(len(pairs_xGqs), self.kv_heads)
        part = table_MGqW[head : head + heads, :, :queries, : queries + entries - 1]
        return pairs_xGqs.view(-1, heads, *pairs_xGqs.shape[1:]), part

    def _add_product(self, number: int, of_YqR: Tensor, x_xqK: Tensor) -> None:
        total = self.sums[number]
        if total is not None:
            total[-of_YqR.shape[2] :] += of_YqR.flatten(0, 1).t() @ x_xqK.flatten(0, 1)
