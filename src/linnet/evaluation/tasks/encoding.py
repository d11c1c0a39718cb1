"""Texts of tasks as token ids, split between a context and what follows as the LM Evaluation Harness splits them."""

from collections.abc import Sequence

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.tasks.scorer import LoglikelihoodRequest


def encode_pairs(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[LoglikelihoodRequest]:
    """Requests of pairs of a context and a continuation; the end token, a document's beginning, stands before each.

    Spaces at the end of a context belong to the continuation, since tokens begin with them. Both are encoded as one
    text; what lies behind as many tokens as the context has alone is the continuation. `UserError` for one that is
    empty.
    """
    moved = [_with_spaces_behind(*pair) for pair in pairs]
    contexts = list(dict.fromkeys(context for context, _ in moved))
    tokens_of = dict(zip(contexts, tokenizer.encode_batch(contexts), strict=True))
    wholes = tokenizer.encode_batch([context + continuation for context, continuation in moved])
    return [
        _split(tokenizer.end_id, tokens_of[context], whole, continuation)
        for (context, continuation), whole in zip(moved, wholes, strict=True)
    ]


def _with_spaces_behind(context: str, continuation: str) -> tuple[str, str]:
    kept = context.rstrip()
    if not context or not continuation:
        return context, continuation
    return kept, context[len(kept) :] + continuation


def _split(end_id: int, context: list[int], whole: list[int], continuation: str) -> LoglikelihoodRequest:
    if not continuation or not whole:
        raise UserError("a continuation without a text: expected at least a character")
    at = min(len(context), len(whole) - 1)  # a tokenizer may merge all of the continuation into the context
    return LoglikelihoodRequest((end_id, *context[:at]), tuple(whole[at:]))
