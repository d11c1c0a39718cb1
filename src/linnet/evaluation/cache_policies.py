"""A text read with several cache policies: what each one costs in bits per byte, and the memory that it holds.

Only models with layers that have a choice (`inference.cache_policy.chooses`) can be read with more than one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from linnet.core.errors import UserError
from linnet.evaluation.documents import WindowBatch
from linnet.evaluation.evaluator import WindowEvaluator
from linnet.evaluation.likelihood import DocumentLosses, LossSums
from linnet.evaluation.statistics import Estimate, paired_difference
from linnet.inference.cache_policy import chooses
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.registry import CACHE_POLICIES, cache_policy_of, kinds_with_cache_policies
from linnet.model.decoder import Decoder


@dataclass(frozen=True)
class CachePolicyLoss:
    """The loss with one policy. difference: bits per byte more than with `FULL`, over the same documents.

    state_bytes: what the layers that have a choice hold of one stream, averaged over all tokens.
    """

    cache_policy: CachePolicy
    losses: DocumentLosses
    difference: Estimate
    state_bytes: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "cache_policy": self.cache_policy.label,
            **self.cache_policy.to_dict(),
            "bits_per_byte": self.losses.bits_per_byte.value,
            "standard_error": self.losses.bits_per_byte.standard_error,
            "difference": self.difference.value,
            "difference_error": self.difference.standard_error,
            "state_bytes": self.state_bytes,
        }


def parse_cache_policies(texts: Sequence[str], context_length: int) -> list[CachePolicy]:
    """`FULL`, those that every comparison shows, then those of `texts`, each once; `UserError` for a wrong text."""
    shown = [policy for kind in CACHE_POLICIES.values() for policy in kind.comparison(context_length)]
    asked = [cache_policy_of(text).for_length(context_length) for text in texts]
    return list(dict.fromkeys([FULL, *shown, *asked]))


def check_chooses(decoder: Decoder, field: str = "cache_policies") -> None:
    """`UserError` about `field` if no layer of the model has a choice of cache policies."""
    if not any(chooses(mixer) for mixer in decoder.mixers):
        kinds = ", ".join(dict.fromkeys(block.mixer.kind for block in decoder.spec.blocks))
        raise UserError(
            f"the model's layers ({kinds}) have one cache policy; expected a model with {kinds_with_cache_policies()}",
            field=field,
        )


def measure_cache_policies(
    evaluator: WindowEvaluator,
    batches: Callable[[], Iterator[WindowBatch]],
    cache_policies: Sequence[CachePolicy],
    new_sums: Callable[[], LossSums],
    losses_of: Callable[[LossSums], DocumentLosses],
    advance: Callable[[int, str], None],
) -> list[CachePolicyLoss]:
    """Read the same batches with each policy, `FULL` first. `advance` is called with the tokens that were read."""
    assert cache_policies[0] == FULL, "what the others are compared with"
    found: list[CachePolicyLoss] = []
    for cache_policy in cache_policies:
        sums, nbytes, tokens = new_sums(), torch.zeros((), dtype=torch.float64), 0
        for batch in batches():
            on_device = batch.to(evaluator.decoder.device)
            each, held = evaluator.cache_policy_losses(on_device, cache_policy)
            advance(sums.add(each, on_device.targets_BT, batch.documents_BT), cache_policy.label)
            nbytes, tokens = nbytes + held, tokens + int(batch.lengths_B.sum())
        losses = losses_of(sums)
        full = found[0].losses if found else losses
        difference = paired_difference(full.bits_N, losses.bits_N, losses.bytes_N)
        found.append(CachePolicyLoss(cache_policy, losses, difference, float(nbytes) / tokens))
    return found
