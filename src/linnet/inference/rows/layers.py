"""What a layer has beside its mixer, for rows: norms and feed-forwards.

Legend: `D` width, `F` hidden width.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from linnet.inference.rows.maps import row_map_of
from linnet.nn.feed_forward import ACTIVATIONS, GatedFeedForward, PlainFeedForward
from linnet.nn.norms import RmsNorm
from linnet.ops.rms_norm import rms_norm_row

RowFunction = Callable[[Tensor], Tensor]

Branch = Callable[[Tensor, Tensor], Tensor]
"""The row that is added to, and the row that is read."""


def norm_of(module: nn.Module | None) -> RowFunction | None:
    """`[1, D] -> [1, D]`; None where it is no norm that is known here."""
    if isinstance(module, RmsNorm):
        gain_D, eps = module.weight, module.eps
        return lambda x_1D: rms_norm_row(x_1D, gain_D, eps)
    if isinstance(module, nn.LayerNorm):
        shape, weight_D, bias_D, tiny = list(module.normalized_shape), module.weight, module.bias, module.eps
        return lambda x_1D: torch.layer_norm(x_1D, shape, weight_D, bias_D, tiny)
    return None


def feed_forward_of(module: nn.Module) -> Branch | None:
    """None where its weights, or the module, are not known here."""
    if isinstance(module, GatedFeedForward):
        return _gated(module)
    return _plain(module) if isinstance(module, PlainFeedForward) else None


def _gated(module: GatedFeedForward) -> Branch | None:
    up, down, activation = row_map_of(module.up), row_map_of(module.down), ACTIVATIONS[module.activation]
    if up is None or down is None:
        return None

    def branch(sum_1D: Tensor, x_1D: Tensor) -> Tensor:
        gate_1F, value_1F = up(x_1D).chunk(2, dim=1)
        return down.added(sum_1D, activation(gate_1F).mul_(value_1F))

    return branch


def _plain(module: PlainFeedForward) -> Branch | None:
    up, down, activation = row_map_of(module.up), row_map_of(module.down), module.activation
    if up is None or down is None:
        return None
    return lambda sum_1D, x_1D: down.added(sum_1D, activation(up(x_1D)))
