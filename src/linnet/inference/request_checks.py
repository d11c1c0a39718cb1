"""Requests that no engine serves: each mistake is one line before the stream waits, and reaches no other stream."""

from collections.abc import Collection
from numbers import Integral

from linnet.core.errors import UserError, check_kind, check_whole, one_line
from linnet.inference.constrained import Grammar
from linnet.inference.prefill import PrefillContext, check_prompts, check_tokens
from linnet.inference.sampling import TokenCounts, check_bias, check_sampling
from linnet.inference.speculative import Speculation
from linnet.inference.streams import Request
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

OPTIONAL = {
    "state": (DecoderState, "a decode state"),
    "counts": (TokenCounts, "the counts of its tokens"),
    "grammar": (Grammar, "a grammar"),
    "speculation": (Speculation, "a speculation"),
}
"""The fields of a request that may be None, and what they are otherwise."""


def check_request(decoder: Decoder, request: Request, vocab_size: int) -> None:
    """`UserError` for a field of another type, an empty prompt, ids or a logit bias outside the vocabulary, a state of
    several streams, more tokens than learned positions, or a missing input.
    """
    check_kind("request", request, Request, "a Request")
    check_sampling(request.sampling)
    check_kind("context", request.context, PrefillContext, "a PrefillContext")
    for field, (kind, accepted) in OPTIONAL.items():
        value = getattr(request, field)
        if value is not None:
            check_kind(field, value, kind, accepted)
    state = request.state
    if state is not None and len(state.positions) != 1:
        raise UserError(field="state", value=f"of {len(state.positions)} streams", accepted="that of one stream")
    check_prompts(decoder, [request.prompt], request.max_tokens, 0 if state is None else state.position)
    check_tokens("read_tokens", request.read_tokens, decoder.spec.vocab_size)
    check_bias(request.sampling, vocab_size)
    check_logprobs(request.logprobs)
    check_stop_ids(request.stop_ids)
    if request.first_chunk is not None:
        check_whole("first_chunk", request.first_chunk, 1)
    check_memory_of_encoder(decoder, state, request.context)


def check_stop_ids(stop_ids: Collection[int]) -> None:
    """`UserError` for what is no collection of whole numbers; ids that the vocabulary does not have never come."""
    value: object = stop_ids
    if not isinstance(value, Collection) or not all(isinstance(token, Integral) for token in value):
        raise UserError(field="stop_ids", value=one_line(repr(value), 80), accepted="token ids")


def check_logprobs(logprobs: int | None) -> None:
    """`UserError` for what is neither None nor a number of likeliest tokens."""
    if logprobs is not None:
        check_whole("logprobs", logprobs, accepted="a number of tokens, from 0 on")


def check_memory_of_encoder(decoder: Decoder, state: DecoderState | None, context: PrefillContext) -> None:
    """`UserError` if the model has an encoder and neither the context nor the state has the encoder's output."""
    if decoder.encoder is not None and context.memory is None and (state is None or not state.has_memory):
        raise UserError("missing: the model has an encoder, which reads it", field="input", accepted="some text")
