"""What training minimizes: one file for each kind of objective, `configure` chooses the one that a run describes."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

from linnet.data.loader import Batch
from linnet.model.decoder import Decoder


class Loss(NamedTuple):
    """Sums over the targets: `total` is minimized and carries the graph; `nats` is its likelihood part, detached.

    terms: other values to log, by name, detached, and summed over the targets as well (a term that is a mean over the
    batch counts once for each). example_terms: the same, summed over the examples of the batch.
    """

    total: Tensor
    nats: Tensor
    terms: Mapping[str, Tensor] = MappingProxyType({})
    example_terms: Mapping[str, Tensor] = MappingProxyType({})


Objective = Callable[[Decoder, Batch], Loss]
"""`(decoder, batch) -> Loss`, with the batch on the decoder's device."""
