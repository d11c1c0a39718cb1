"""Running a decoder: its state on disk, choosing tokens, generating text.

`FULL`, `ContextPolicy` and `BankContext` say how TED layers keep the past of a stream.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linnet.layers.mixers.ted.state import FULL, BankContext
    from linnet.ops.decay.context import ContextPolicy

__all__ = ["FULL", "BankContext", "ContextPolicy"]


def __getattr__(name: str) -> Any:
    """Import on first use: the command line reads from here long before it needs PyTorch."""
    if name in __all__:
        from linnet.inference import context

        return getattr(context, name)
    raise AttributeError(f"module 'linnet.inference' has no attribute {name!r}")
