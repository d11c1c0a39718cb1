"""Workshop for small language models.

These names do in Python what the verbs of the command line do. Each is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linnet.core.errors import UserError
    from linnet.data.prepare import prepare
    from linnet.design.search import design
    from linnet.evaluation.text import evaluate
    from linnet.experiments.run import compare
    from linnet.inference.language_model import load
    from linnet.inference.session import Session
    from linnet.interop.exporters import export
    from linnet.model.spec import ModelSpec
    from linnet.scaling.plan import plan
    from linnet.training.run import train
    from linnet.training.run_list import runs

    __version__: str

PLACES = {
    "ModelSpec": "linnet.model.spec",
    "Session": "linnet.inference.session",
    "UserError": "linnet.core.errors",
    "compare": "linnet.experiments.run",
    "design": "linnet.design.search",
    "evaluate": "linnet.evaluation.text",
    "export": "linnet.interop.exporters",
    "load": "linnet.inference.language_model",
    "plan": "linnet.scaling.plan",
    "prepare": "linnet.data.prepare",
    "runs": "linnet.training.run_list",
    "train": "linnet.training.run",
}
"""The module that defines each public name."""

__all__ = [
    "ModelSpec",
    "Session",
    "UserError",
    "__version__",
    "compare",
    "design",
    "evaluate",
    "export",
    "load",
    "plan",
    "prepare",
    "runs",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import linnet` stays fast."""
    if name in PLACES:
        return getattr(import_module(PLACES[name]), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("linnet")
    raise AttributeError(f"module 'linnet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
