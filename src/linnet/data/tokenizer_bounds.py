"""What a tokenizer.json may ask for, held against bounds before the library that reads it does any work."""

from collections.abc import Iterator
from typing import Any

from linnet.core.errors import UserError
from linnet.core.spec import MOST_VOCABULARY

DEEPEST = 8
"""Normalisers within normalisers: the library takes time and stack out of proportion for each level."""

PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def check_bounds(definition: dict[str, Any], origin: str) -> None:
    """`UserError`, which names `origin`, for token ids or nesting that no tokenizer has."""
    for token in _ids(definition):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < MOST_VOCABULARY:
            raise UserError(f"{origin}: token id {str(token)[:40]}: expected 0 to {MOST_VOCABULARY - 1:,}")
    for part in PARTS:
        if _depth(definition.get(part)) > 2 * DEEPEST:  # a list, and what is in it
            raise UserError(f"{origin}: {part}: nested too deep; expected at most {DEEPEST} levels")


def _ids(definition: dict[str, Any]) -> Iterator[Any]:
    model = definition["model"]
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from vocabulary.values()
    elif isinstance(vocabulary, list) and len(vocabulary) > MOST_VOCABULARY:
        yield len(vocabulary)
    added = definition.get("added_tokens")
    yield from (token.get("id", 0) for token in added or () if isinstance(token, dict))


def _depth(value: Any) -> int:
    """How many lists and mappings lie within each other; counted without recursion, which is bounded itself."""
    deepest, left = 0, [(value, 0)]
    while left:
        node, depth = left.pop()
        deepest = max(deepest, depth)
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        left.extend((child, depth + 1) for child in children if isinstance(child, dict | list))
    return deepest
