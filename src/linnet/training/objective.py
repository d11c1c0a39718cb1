"""What training minimises.

Legend: `B` batch, `T` tokens.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

from linnet.model.decoder import Decoder


class Loss(NamedTuple):
    """Summed over the targets: `total` is minimised and carries the graph; `nats` is the likelihood in it, detached.

    terms: whatever else is to be logged, by name, detached, and summed over the targets too (a term that is a mean over
    the batch counts once for each).
    """

    total: Tensor
    nats: Tensor
    terms: Mapping[str, Tensor] = MappingProxyType({})


Objective = Callable[[Decoder, Tensor, Tensor], Loss]
"""`(decoder, inputs_BT, targets_BT) -> Loss`: whatever is trained for can stand in its place."""


def next_token_loss(decoder: Decoder, inputs_BT: Tensor, targets_BT: Tensor) -> Loss:
    """The cross-entropy of each target given the tokens before it, in nats; never holds all logits at once."""
    total = decoder.token_loss(decoder.hidden(inputs_BT), targets_BT).nats
    return Loss(total, total.detach())
