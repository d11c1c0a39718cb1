"""TED for one more token of one stream.

Legend: `D` width, `N` heads.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnet.layers.contract import RowStep
from linnet.layers.mixers.ted.state import TedState
from linnet.nn.linear import Linear
from linnet.nn.row_maps import row_map, row_map_of


def ted_row(
    quantity_gate: nn.Module, rate_weight: Tensor, rate_bias: Tensor | None, out: nn.Module, state: TedState
) -> RowStep | None:
    """The mixer and its state: quantity, gate, and the logits of the rates times -1, from one product.

    None where weights are packed, or there are several streams.
    """
    out_row = row_map_of(out)
    if out_row is None or not isinstance(quantity_gate, Linear):
        return None
    if any(len(held) != 1 for held in state.tensors().values()):
        return None
    weight = torch.cat([quantity_gate.weight, -rate_weight]).detach()
    bias = None if rate_bias is None else F.pad(-rate_bias.detach(), (quantity_gate.out_features, 0))
    joint, width, read = row_map(weight, bias), rate_weight.shape[1], state.row_reader()

    def step(sum_1D: Tensor, x_1D: Tensor, position: int) -> Tensor:
        joint_1J = joint.of(x_1D)
        quantity_1D, gate_1D = joint_1J[:, :width], joint_1J[:, width : 2 * width]
        read_1D = read(F.softplus(joint_1J[:, 2 * width :]), quantity_1D, position)
        return torch.addcmul(sum_1D, out_row.of(F.silu(read_1D)), gate_1D)

    return step
