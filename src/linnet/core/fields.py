"""The fields of a description, found in its type."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from linnet.core.spec import Spec


def field_kinds(spec: type[Spec], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Path and type of fields that are no sections themselves: `training.optimizer.lr`; of a list's, the first's."""
    for name, field in spec.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        section = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Spec)), None)
        if section is None:
            yield prefix + name, field.annotation
        else:
            first = "0." if get_origin(field.annotation) is list else ""
            yield from field_kinds(section, f"{prefix}{name}.{first}")


def is_number_field(kind: Any) -> bool:
    """Whether one number is a value of the type: `float | None`, but no tuple of numbers, and no bool."""
    if get_origin(kind) in (tuple, list, dict):
        return False
    return kind in (int, float) or any(is_number_field(part) for part in get_args(kind))
