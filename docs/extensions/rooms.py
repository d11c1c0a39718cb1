"""The directives `room`, the reference of every module of a package, and `public`, that of a module's `__all__`."""

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def modules(package: str) -> Iterator[ModuleType]:
    """The package and every module in it, but those whose name begins with an underscore."""
    found = import_module(package)
    yield found
    for inner in pkgutil.walk_packages(found.__path__, f"{package}."):
        if not inner.name.rpartition(".")[2].startswith("_"):
            yield import_module(inner.name)


def section(module: ModuleType) -> str:
    """A module's part of the page."""
    return f"{module.__name__}\n{'-' * len(module.__name__)}\n\n.. automodule:: {module.__name__}\n"


class Room(SphinxDirective):
    """`.. room:: linnet.core`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """One section for each module."""
        text = "\n".join(section(module) for module in modules(self.arguments[0]))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


class Public(SphinxDirective):
    """`.. public:: linnet`: what a module offers, whatever module it comes from."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Each name of `__all__`; the place where it is written has the target of links."""
        module = import_module(self.arguments[0])
        shown = ((name, getattr(module, name)) for name in module.__all__ if not name.startswith("__"))
        entries = (
            f".. auto{'class' if isinstance(thing, type) else 'function'}:: {module.__name__}.{name}\n   :no-index:\n"
            for name, thing in shown
        )
        return self.parse_text_to_nodes("\n".join(entries))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("room", Room)
    app.add_directive("public", Public)
    return {"parallel_read_safe": True}
