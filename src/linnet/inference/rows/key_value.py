"""Softmax attention, and attention through an operator, for one more token of one stream.

Legend: `N` query heads, `M` key-value heads, `P` query heads of each of them, `K` head width, `C` capacity.
"""

import torch
from torch import Tensor

from linnet.inference.rows.maps import RowMap, row_map_of
from linnet.inference.rows.turn import Turn
from linnet.layers.key_value import KeyValueState
from linnet.layers.mixers.attention import Attention
from linnet.layers.mixers.plga.module import Plga, PlgaState
from linnet.layers.mixers.plga.operator import FixedOperator


class KeyValueRow:
    """The mixer and its state; `operator_NKK` stands between queries and keys where it is given."""

    def __init__(
        self, mixer: Attention | Plga, state: KeyValueState, maps: tuple[RowMap, RowMap], operator_NKK: Tensor | None
    ) -> None:
        self._joint, self._out = maps
        self._keys_MCK, self._values_MCK = state.keys[0], state.values[0]
        self._heads, self._kv_heads, self._width = mixer.heads, len(self._keys_MCK), mixer.head_dim
        self._operator_NKK = operator_NKK
        scale = mixer.scale if isinstance(mixer, Attention) else None
        self._scale = self._width**-0.5 if scale is None else scale
        capacity = self._keys_MCK.shape[1]
        self._turn = None if mixer.rotary is None else Turn.of(mixer.rotary, self._width, capacity)
        self._nothing = torch.zeros((), device="cpu")

    def __call__(self, sum_1D: Tensor, x_1D: Tensor, position: int) -> Tensor:
        """`sum_1D` plus what the mixer makes of the row."""
        heads, kv_heads, end = self._heads, self._kv_heads, position + 1
        joint_JK = self._joint(x_1D).view(heads + 2 * kv_heads, self._width)
        turned_JK = joint_JK[: heads + kv_heads]
        if self._turn is not None:
            turned_JK = self._turn(turned_JK, position)
        self._keys_MCK[:, position] = turned_JK[heads:]
        self._values_MCK[:, position] = joint_JK[heads + kv_heads :]
        q_MPK = turned_JK[:heads].view(kv_heads, heads // kv_heads, self._width)
        if self._operator_NKK is not None:
            q_MPK = torch.bmm(q_MPK, self._operator_NKK)
        keys_MKS = self._keys_MCK[:, :end].transpose(1, 2)
        scores_MPS = torch.baddbmm(self._nothing, q_MPK, keys_MKS, beta=0, alpha=self._scale)
        read_MPK = torch.bmm(scores_MPS.softmax(dim=2), self._values_MCK[:, :end])
        return self._out.added(sum_1D, read_MPK.view(1, -1))


def key_value_row(mixer: Attention | Plga, state: KeyValueState) -> KeyValueRow | None:
    """None where weights are packed, there are several streams, or the operator is yet to be deduced."""
    joint, out = row_map_of(mixer.query_key_value), row_map_of(mixer.out)
    if joint is None or out is None or len(state.keys) != 1 or state.keys.dtype != torch.float32:
        return None
    if isinstance(mixer, Attention):
        return KeyValueRow(mixer, state, (joint, out), None)
    if isinstance(mixer.operator, FixedOperator):
        return KeyValueRow(mixer, state, (joint, out), mixer.operator.g.detach())
    if not isinstance(state, PlgaState) or state.operator is None:
        return None
    return KeyValueRow(mixer, state, (joint, out), state.operator[0])
