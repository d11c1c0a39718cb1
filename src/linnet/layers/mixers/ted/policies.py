"""The cache policies of TED: eviction (`ops.decay.eviction`) and a bank of sums (`ops.decay.bank`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from linnet.core.errors import UserError
from linnet.layers.cache_policy import CachePolicy
from linnet.ops.decay.eviction import EvictionPolicy
from linnet.present.numbers import exact

MAX_BANK_LENGTH = 2**40
"""The largest age for which the error bound of a bank can be requested."""
THRESHOLDS = (1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
TOP_K = (8, 16, 32, 64, 128, 256)
OFF_TOP_K, OFF_THRESHOLD = 0, -1.0


@dataclass(frozen=True)
class BankCache(CachePolicy):
    """Keep two chunks of tokens and one sum per fixed rate: the memory is constant. No gradients flow through it.

    Older tokens decay as a mixture of the fixed rates. length: the age up to which the error bound of the bank holds;
    None: the capacity of the stream.
    """

    name: ClassVar[str] = "bank"

    length: int | None = None

    def __post_init__(self) -> None:
        if self.length is not None and not (isinstance(self.length, int) and 1 <= self.length <= MAX_BANK_LENGTH):
            raise ValueError(f"length: {self.length}: expected 1 to {MAX_BANK_LENGTH}")

    def for_length(self, tokens: int) -> "BankCache":
        return self if self.length is not None else BankCache(tokens)

    @property
    def max_length(self) -> int | None:
        return self.length

    def check_length(self, tokens: int) -> None:
        if self.length is not None and tokens > self.length:
            raise UserError(
                f"cache_policy: a bank for {self.length} tokens: the stream needs {tokens}; start it with a bank of"
                " that length, bank:length=N"
            )

    @classmethod
    def comparison(cls, tokens: int) -> list["BankCache"]:
        return [cls(tokens)]

    @classmethod
    def examples(cls) -> list["BankCache"]:
        return [cls(4096)]  # a length of its own, so that states of different capacities join


@dataclass(frozen=True)
class EvictionCache(EvictionPolicy, CachePolicy):
    """Keep the most relevant tokens; the defaults are those of the published demo.

    `ops.decay.eviction` applies it. In the text form (`from_text`) a field that is not set is off.
    """

    name: ClassVar[str] = "eviction"
    example: ClassVar[str] = "top_k=16,threshold=1e-4"

    @property
    def label(self) -> str:
        limits = [f"top_k {self.top_k}"] if self.top_k else []
        limits += [f"threshold {exact(self.threshold)}"] if self.threshold >= 0 else []
        return ", ".join(limits) or "no eviction"

    @property
    def series(self) -> tuple[str, str]:
        if self.top_k and self.threshold < 0:
            return "top_k", str(self.top_k)
        name = f"top_k {self.top_k} and threshold" if self.top_k else "threshold"
        return name, exact(self.threshold) if self.threshold >= 0 else "off"

    @classmethod
    def from_text(cls, values: Mapping[str, str]) -> "EvictionCache":
        return super().from_text({"top_k": str(OFF_TOP_K), "threshold": str(OFF_THRESHOLD), **values})

    @classmethod
    def examples(cls) -> list["EvictionCache"]:
        """A number of tokens, which evicts in most steps, and a relevance, which makes rows differ."""
        return [cls(top_k=4, threshold=OFF_THRESHOLD), cls(threshold=0.05, min_tokens_to_keep=2)]

    @classmethod
    def sweep(cls, tokens: int) -> list["EvictionCache"]:
        return [*(cls(k, OFF_THRESHOLD) for k in TOP_K), *(cls(OFF_TOP_K, x) for x in THRESHOLDS)]
