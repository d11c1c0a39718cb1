"""Design of model shapes under budgets: search spaces, scores, evolutionary and exact search, validation of scores.

`linnet.design(...)` calls `search.design`: the package and the function share one name, so the package is callable.
"""

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        from linnet.design.search import design

        return design(*arguments, **named)


sys.modules[__name__].__class__ = _CallablePackage
