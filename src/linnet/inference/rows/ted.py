"""TED for one more token of one stream.

Legend: `D` width, `N` heads.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.inference.rows.maps import RowMap, row_map, row_map_of
from linnet.layers.mixers.ted.module import Ted
from linnet.layers.mixers.ted.state import TedState
from linnet.nn.linear import Linear


class TedRow:
    """The mixer and its state."""

    def __init__(self, mixer: Ted, state: TedState, out: RowMap) -> None:
        self._joint, self._out, self._read = _joint(mixer), out, state.row_reader()
        self._width = mixer.quantity_gate.out_features // 2

    def __call__(self, sum_1D: Tensor, x_1D: Tensor, position: int) -> Tensor:
        """`sum_1D` plus what the mixer makes of the row."""
        width = self._width
        joint = self._joint(x_1D)
        quantity_1D, gate_1D = joint[:, :width], joint[:, width : 2 * width]
        read_1D = self._read(F.softplus(joint[:, 2 * width :]), quantity_1D, position)
        return torch.addcmul(sum_1D, self._out(F.silu(read_1D)), gate_1D)


def ted_row(mixer: Ted, state: TedState) -> TedRow | None:
    """None where weights are packed, or there are several streams."""
    out = row_map_of(mixer.out)
    if out is None or not isinstance(mixer.quantity_gate, Linear):
        return None
    return TedRow(mixer, state, out) if all(len(held) == 1 for held in state.tensors().values()) else None


def _joint(mixer: Ted) -> RowMap:
    """Quantity, gate, and the logits of the rates times -1: `2 D + N` outputs of one product."""
    weight = torch.cat([mixer.quantity_gate.weight, -mixer.rate_weight]).detach()
    if mixer.rate_bias is None:
        return row_map(weight, None)
    return row_map(weight, F.pad(-mixer.rate_bias.detach(), (mixer.quantity_gate.out_features, 0)))
