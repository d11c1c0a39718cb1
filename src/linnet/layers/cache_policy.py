"""How the past of a stream is kept, where a layer leaves that to choose: what a caller says, not how it is done."""

from dataclasses import dataclass

from linnet.ops.decay.eviction import EvictionPolicy

LONGEST = 2**40
"""Ages up to which the bound of a bank can be asked for."""


@dataclass(frozen=True)
class FullCache:
    """Keep every token."""


@dataclass(frozen=True)
class BankCache:
    """Keep two chunks of tokens and one sum per fixed rate, for ever.

    length: ages for which the bound of the bank holds; None: the stream's capacity. Older tokens fade as a mixture of
    fixed rates. No gradients flow through it.
    """

    length: int | None = None

    def __post_init__(self) -> None:
        """`ValueError` for a value that cannot be."""
        if self.length is not None and not (isinstance(self.length, int) and 1 <= self.length <= LONGEST):
            raise ValueError(f"length: {self.length}: expected 1 to {LONGEST}")


CachePolicy = FullCache | EvictionPolicy | BankCache
"""How a stream's past is kept."""

FULL = FullCache()

CACHE_POLICIES: dict[str, type[CachePolicy]] = {
    "full": FullCache,
    "policy": EvictionPolicy,
    "bank": BankCache,
}
"""Every way by its name."""
