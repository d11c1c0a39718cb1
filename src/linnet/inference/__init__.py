"""Running a decoder: its state on disk, choosing tokens, generating text.

`FULL`, `EvictionPolicy` and `BankRetention` say how TED layers keep the past of a stream.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linnet.layers.retention import FULL, BankRetention
    from linnet.ops.decay.eviction import EvictionPolicy

__all__ = ["FULL", "BankRetention", "EvictionPolicy"]


def __getattr__(name: str) -> Any:
    """Import on first use: the command line reads from here long before it needs PyTorch."""
    if name in __all__:
        from linnet.layers import retention

        return getattr(retention, name)
    raise AttributeError(f"module 'linnet.inference' has no attribute {name!r}")
