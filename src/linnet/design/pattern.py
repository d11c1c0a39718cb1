"""A pattern in the place of a block: parts that stand behind each other, all of them so often as `repeat` says.

    pattern: [{repeat: 3, mixer: {kind: ted}}, {mixer: {kind: attention}}]

A part has fields of a block, which count over those beside the pattern; in these too a list is of choices. A search
moves the whole of it, so how many layers of one mixer come to one of another is what the pattern says, whatever else is
chosen.
"""

from collections.abc import Sequence
from typing import Any

from linnet.core.errors import UserError
from linnet.core.spec import unknown_key

ONCE = "width", "pattern"
"""Fields that are those of all parts."""


def by_number(block: dict[str, Any], fields: Sequence[str], origin: str) -> dict[str, Any]:
    """The description of a block with its pattern, if it has one, as a mapping: a list would be one of choices.

    fields: of a block. `UserError` where the pattern is none.
    """
    if "pattern" not in block:
        return block
    parts = block["pattern"]
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise UserError(
            f"{origin}: block.pattern: {parts!r}: expected a list of parts of a block, as in"
            " [{repeat: 3, mixer: {kind: ted}}, {mixer: {kind: attention}}]"
        )
    if "share_weights" in block:
        raise UserError(f"{origin}: block.share_weights: is that of a part where there is a pattern; say it there")
    for number, part in enumerate(parts):
        for key, value in part.items():
            if key in ONCE:
                raise UserError(f"{origin}: block.pattern.{number}.{key}: is that of the block; say it beside pattern")
            if key not in fields:
                raise UserError(f"{origin}: block.pattern.{number}: {unknown_key(key, value, fields)}")
    return {**block, "pattern": dict(enumerate(parts))}


def parts_of_choice(block: dict[str, Any], origin: str) -> tuple[list[tuple[str, dict[str, Any]]], int]:
    """The blocks that a block, its choices made, stands for, each with where it is described; how often they come."""
    if "pattern" not in block:
        return [(f"{origin}: block", block)], 1
    common = {key: value for key, value in block.items() if key not in ("pattern", "repeat")}
    times = block.get("repeat", 1)
    if not isinstance(times, int) or isinstance(times, bool) or times < 1:
        raise UserError(f"{origin}: block.repeat: {times!r}: must be a whole number greater than 0")
    parts = block["pattern"].items()
    return [(f"{origin}: block.pattern.{number}", {**common, **part}) for number, part in parts], times
