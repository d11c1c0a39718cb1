"""What a tokenizer.json may ask for, held against bounds before the library that reads it does any work."""

import math
from collections.abc import Iterator
from typing import Any

from linnet.core.bounds import MAX_VOCABULARY
from linnet.core.errors import UserError

DEEPEST = 8
"""Normalizers within normalizers: the library takes time and stack out of proportion for each level."""

MOST_GROWTH = 256
"""Of a text, by all replacements one after the other: a space that becomes three bytes is one of three."""

PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def check_bounds(definition: dict[str, Any], origin: str) -> None:
    """`UserError`, which names `origin`, for token ids or nesting that no tokenizer has."""
    for token in _ids(definition):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < MAX_VOCABULARY:
            raise UserError(f"{origin}: token id {str(token)[:40]}: expected 0 to {MAX_VOCABULARY - 1:,}")
    for part in PARTS:
        if _depth(definition.get(part)) > 2 * DEEPEST:  # a list, and what is in it
            raise UserError(f"{origin}: {part}: nested too deep; expected at most {DEEPEST} levels")
        if (growth := math.prod(_growths(definition.get(part)))) > MOST_GROWTH:
            accepted = f"replacements that make it at most {MOST_GROWTH} times as long"
            raise UserError(f"{origin}: {part}: makes a text {growth:.3g} times as long; expected {accepted}")


def _ids(definition: dict[str, Any]) -> Iterator[Any]:
    model = definition["model"]
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from vocabulary.values()
    elif isinstance(vocabulary, list) and len(vocabulary) > MAX_VOCABULARY:
        yield len(vocabulary)
    added = definition.get("added_tokens")
    yield from (token.get("id", 0) for token in added or () if isinstance(token, dict))


def _growths(value: Any) -> Iterator[float]:
    """How much longer each replacement may make a text, of one byte at least that it replaces."""
    left = [value]
    while left:
        node = left.pop()
        if isinstance(node, dict) and isinstance(node.get("content"), str):
            yield max(1.0, len(node["content"].encode(errors="surrogatepass")))
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        left.extend(child for child in children if isinstance(child, dict | list))


def _depth(value: Any) -> int:
    """How many lists and mappings lie within each other; counted without recursion, which is bounded itself."""
    deepest, left = 0, [(value, 0)]
    while left:
        node, depth = left.pop()
        deepest = max(deepest, depth)
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        left.extend((child, depth + 1) for child in children if isinstance(child, dict | list))
    return deepest
