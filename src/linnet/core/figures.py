"""Numbers on their way to JSON."""

import math
from typing import Any


def json_safe(figures: Any) -> Any:
    """The figures, with None (null) for a number that JSON does not know."""
    if isinstance(figures, dict):
        return {name: json_safe(figure) for name, figure in figures.items()}
    if isinstance(figures, list):
        return [json_safe(figure) for figure in figures]
    return None if isinstance(figures, float) and not math.isfinite(figures) else figures
