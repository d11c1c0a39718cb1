"""A text read with several ways of keeping the past: what each costs in bits per byte, and what it holds.

Only models with layers that leave it to choose (TED's) have more than one way.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from linnet.core.errors import UserError
from linnet.evaluation.documents import WindowBatch
from linnet.evaluation.likelihood import DocumentLosses, LossSums
from linnet.evaluation.reader import WindowEvaluator
from linnet.evaluation.statistics import Estimate, paired_difference
from linnet.inference.cache_policy import chooses, describe, name_of
from linnet.layers.cache_policy import FULL, BankCache, CachePolicy
from linnet.layers.registry import kinds_with_cache_policies
from linnet.model.decoder import Decoder
from linnet.ops.decay.eviction import EvictionPolicy

KEYS: dict[str, Callable[[str], Any]] = {"top_k": int, "threshold": float, "min_tokens_to_keep": int}
"""What a policy says, as `KEY=NUMBER`."""

ACCEPTED = f"full, bank, or a policy: {', '.join(KEYS)}, as in top_k=16,threshold=1e-4"


@dataclass(frozen=True)
class CachePolicyLoss:
    """One way of keeping the past. difference: to all tokens kept, in bits per byte, over the same documents.

    state_bytes: what the layers that choose hold of one stream, averaged over all tokens.
    """

    cache_policy: CachePolicy
    losses: DocumentLosses
    difference: Estimate
    state_bytes: float

    @property
    def name(self) -> str:
        """As tables call it."""
        return name_of(self.cache_policy)

    def figures(self) -> dict[str, Any]:
        """The numbers by name."""
        return {
            "retention": self.name,
            **describe(self.cache_policy),
            "bits_per_byte": self.losses.bits_per_byte.value,
            "standard_error": self.losses.bits_per_byte.standard_error,
            "difference": self.difference.value,
            "difference_error": self.difference.standard_error,
            "state_bytes": self.state_bytes,
        }


def parsed(texts: Sequence[str], context_length: int) -> list[CachePolicy]:
    """All tokens and the bank first, then what is asked for beside them, each once; `UserError` for what is no way.

    What a policy does not say is off. The bank's bound holds for `context_length` tokens.
    """
    return list(dict.fromkeys([FULL, *(read(text, context_length) for text in ("bank", *texts))]))


def read(text: str, context_length: int, field: str = "retentions") -> CachePolicy:
    """One of them; `UserError`, which calls it `field`, for what is no way."""
    if text == "full":
        return FULL
    return BankCache(context_length) if text == "bank" else _policy(text, field)


def _policy(text: str, field: str) -> EvictionPolicy:
    fields: dict[str, Any] = {"top_k": 0, "threshold": -1.0}
    for part in text.split(","):
        key, _, number = part.partition("=")
        if key not in KEYS:
            raise UserError(field=field, value=text, accepted=ACCEPTED)
        try:
            fields[key] = KEYS[key](number)
        except ValueError:
            kind = "a number" if KEYS[key] is float else "a whole number"
            raise UserError(f"{key}: {number!r}: expected {kind}", field=field, value=text) from None
    try:
        return EvictionPolicy(**fields)
    except UserError as error:
        raise UserError(str(error), field=field, value=text) from None


def check_chooses(decoder: Decoder, field: str = "retentions") -> None:
    """`UserError`, about a `field`, where the model has no layer that leaves it to choose."""
    if not any(chooses(mixer) for mixer in decoder.mixers):
        kinds = ", ".join(dict.fromkeys(block.mixer.kind for block in decoder.spec.blocks))
        raise UserError(
            f"the model's layers ({kinds}) keep the past in one way; expected a model with"
            f" {kinds_with_cache_policies()}",
            field=field,
        )


def measure_retentions(
    reader: WindowEvaluator,
    batches: Callable[[], Iterator[WindowBatch]],
    cache_policies: Sequence[CachePolicy],
    tally: Callable[[], LossSums],
    losses_of: Callable[[LossSums], DocumentLosses],
    advance: Callable[[int, str], None],
) -> list[CachePolicyLoss]:
    """Read the same batches with each; the first keeps all tokens. `advance` is told the tokens that were read."""
    assert cache_policies[0] == FULL, "what the others are compared with"
    found: list[CachePolicyLoss] = []
    for cache_policy in cache_policies:
        sums, nbytes, tokens = tally(), torch.zeros((), dtype=torch.float64), 0
        for batch in batches():
            on_device = batch.to(reader.decoder.device)
            each, held = reader.cache_policy_losses(on_device, cache_policy)
            advance(sums.add(each, on_device.targets_BT, batch.documents_BT), name_of(cache_policy))
            nbytes, tokens = nbytes + held, tokens + int(batch.lengths_B.sum())
        losses = losses_of(sums)
        full = found[0].losses if found else losses
        difference = paired_difference(full.bits_N, losses.bits_N, losses.bytes_N)
        found.append(CachePolicyLoss(cache_policy, losses, difference, float(nbytes) / tokens))
    return found
