"""Shapes of models under a budget: search spaces, scores, evolutionary and exact search, what scores are worth.

`linnet.design(...)` is `interface.design`: the room and the function have one name, so the room can be called.
"""

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """`interface.design`."""
        from linnet.design.interface import design

        return design(*arguments, **named)


sys.modules[__name__].__class__ = _Room
