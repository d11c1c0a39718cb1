"""What training minimises.

Legend: `B` batch, `T` tokens.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from linnet.model.decoder import Decoder


class Loss(NamedTuple):
    """Summed over the targets: `total` is minimised and carries the graph; `nats` is the likelihood in it, detached."""

    total: Tensor
    nats: Tensor


Objective = Callable[[Decoder, Tensor, Tensor], Loss]
"""`(decoder, inputs_BT, targets_BT) -> Loss`: whatever is trained for can stand in its place."""


def next_token_loss(decoder: Decoder, inputs_BT: Tensor, targets_BT: Tensor) -> Loss:
    """The cross-entropy of each target given the tokens before it, in nats; never holds all logits at once."""
    total = decoder.token_loss(decoder.hidden(inputs_BT), targets_BT).nats
    return Loss(total, total.detach())
