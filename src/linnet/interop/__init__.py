"""Import of published checkpoints, and export to the formats of other programs."""

from importlib import import_module
from typing import Any

from linnet.core.errors import UserError


def optional_package(name: str, field: str, extra: str | None = None) -> Any:
    """Import a package that an extra installs; `UserError` names the extra if it is missing.

    field: the field or option of the user that needs the package.
    """
    try:
        return import_module(name)
    except ImportError:
        raise UserError(f"needs {name}: pip install 'linnet[{extra or name}]'", field=field) from None
