"""Running a decoder: its state on disk, choosing tokens, generating text.

`FULL`, `EvictionPolicy` and `BankCache` say how TED layers keep the past of a stream.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linnet.layers.cache_policy import FULL, BankCache
    from linnet.ops.decay.eviction import EvictionPolicy

__all__ = ["FULL", "BankCache", "EvictionPolicy"]


def __getattr__(name: str) -> Any:
    """Import on first use: the command line reads from here long before it needs PyTorch."""
    if name in __all__:
        from linnet.layers import cache_policy

        return getattr(cache_policy, name)
    raise AttributeError(f"module 'linnet.inference' has no attribute {name!r}")
