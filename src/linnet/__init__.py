"""Workshop for small language models."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linnet.inference.language_model import load
    from linnet.inference.session import Session

    __version__: str

__all__ = ["Session", "__version__", "load"]


def __getattr__(name: str) -> Any:
    """Import on first use: `import linnet` alone stays fast."""
    if name == "load":
        from linnet.inference.language_model import load

        return load
    if name == "Session":
        from linnet.inference.session import Session

        return Session
    if name == "__version__":
        from importlib.metadata import version

        return version("linnet")
    raise AttributeError(f"module 'linnet' has no attribute {name!r}")
