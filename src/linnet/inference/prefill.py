"""What a model reads before it generates: prompts and inputs as token ids, and an empty state with room for a text.

The input of a stream stands before its prompt, is its prefix, or is read by an encoder.

Legend: `B` batch (rows), `T` tokens of the longest prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import torch

from linnet.core.errors import UserError, check_kind, check_whole, exceeds_memory, note, one_line
from linnet.core.system import available_bytes
from linnet.inference.cache_policy import CachePolicies, cache_policy_state
from linnet.layers.batch_layout import Counts, Memory
from linnet.layers.cache_policy import FULL
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState, padding_counts


@dataclass(frozen=True)
class PrefillContext:
    """Context of the first chunk: an encoder's memory, and the number of prefix tokens of each row."""

    memory: Memory | None = None
    prefixes: Counts | None = None

    def repeated(self, copies: int) -> "PrefillContext":
        """Each row so many times, one after the other."""
        memory, prefixes = self.memory, self.prefixes
        if memory is not None:
            real_BS = None if memory.real_BS is None else memory.real_BS.repeat_interleave(copies, dim=0)
            memory = Memory(memory.hidden_BSE.repeat_interleave(copies, dim=0), real_BS)
        return PrefillContext(memory, prefixes and tuple(one for one in prefixes for _ in range(copies)))


EMPTY = PrefillContext()


@dataclass(frozen=True)
class PrefillInputs:
    """Prompts and inputs as a model reads them.

    prompts: tokens of each row, behind its input unless an encoder reads that. inputs: tokens for the encoder; None
    without one. prefixes: see `PrefillContext`.
    """

    prompts: list[list[int]]
    inputs: list[list[int]] | None = None
    prefixes: Counts | None = None

    @torch.inference_mode()
    def context(self, decoder: Decoder) -> PrefillContext:
        """The context of the first chunk; the encoder reads all inputs for it."""
        memory = None if self.inputs is None else decoder.encode(*left_pad(self.inputs, decoder.device))
        return PrefillContext(memory, self.prefixes)


def prefill_inputs(
    decoder: Decoder, prompts: Sequence[Sequence[int]], inputs: Sequence[Sequence[int]] | None
) -> PrefillInputs:
    """Prompts, with an input for each or none.

    An input stands between two end tokens; the prompt begins with the second. `UserError` for an encoder's input that
    is longer than learned positions; one that is longer than the context length otherwise is noted.
    """
    rows = [list(prompt) for prompt in prompts]
    if inputs is None:
        return PrefillInputs(rows)
    if decoder.encoder is not None:
        longest, known = max(map(len, inputs), default=0), decoder.spec.context_length
        if longest > known and decoder.embedding.positions is not None:
            problem = f"{longest} tokens with the end tokens around it: the model's learned positions end at {known}"
            raise UserError(problem, field="input")
        if longest > known:
            note(f"{longest} tokens of input are more than the model's context length of {known} (context_length)")
        return PrefillInputs(rows, [list(row) for row in inputs])
    joined = [[*own[:-1], *row] for own, row in zip(inputs, rows, strict=True)]
    return PrefillInputs(joined, None, tuple(map(len, inputs)) if decoder.spec.prefix else None)


def left_pad(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, Counts | None]:
    """Token ids `[B, T]` with padding (id 0) before shorter prompts, and the lengths of the padding (None: all 0)."""
    longest = max(len(prompt) for prompt in prompts)
    tokens_BT = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    return tokens_BT, padding_counts([longest - len(prompt) for prompt in prompts])


def new_state(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    cache_policy: CachePolicies = FULL,
    copies: int = 1,
) -> DecoderState:
    """An empty state with room for the longest prompt and `max_tokens` more; `UserError` as from `decode`.

    `cache_policy`: see `cache_policy_state`. copies: how many streams will fork each row, which need memory too.
    """
    check_prompts(decoder, prompts, max_tokens)
    capacity = max(map(len, prompts)) + max_tokens
    try:
        streams = copies * len(prompts)
        planned = cache_policy_state(decoder, streams, capacity, cache_policy, device=torch.device("meta"))
        if planned.nbytes > available_bytes(decoder.device):
            raise MemoryError
        return cache_policy_state(decoder, len(prompts), capacity, cache_policy)
    except (RuntimeError, MemoryError, TypeError, OverflowError) as error:
        if not exceeds_memory(error):
            raise
        rows = f"{copies * len(prompts)} times " if copies * len(prompts) > 1 else ""
        problem = f"no memory for the state of {rows}{capacity} tokens"
        raise UserError(problem, field="max_tokens", value=max_tokens) from None


def check_prompts(decoder: Decoder, prompts: Sequence[Sequence[int]], max_tokens: int, position: int = 0) -> None:
    """`UserError` for prompts that a decoder cannot read, or continue by `max_tokens`, behind `position` tokens."""
    check_whole("max_tokens", max_tokens, 1)
    check_kind("prompt", prompts, Sequence, "a list of lists of token ids")
    for prompt in prompts:
        check_tokens("prompt", prompt, decoder.spec.vocab_size)
    if not prompts or not all(map(len, prompts)):
        raise UserError("empty", field="prompt", accepted="at least one token in every prompt")
    length, longest = decoder.spec.context_length, max(map(len, prompts))
    end = position + longest + max_tokens
    if decoder.embedding.positions is not None and end > length:
        read = f"{position} tokens so far, " if position else ""
        raise UserError(
            f"{read}{longest} tokens of prompt and {max_tokens} new ones (`max_tokens`) are {end}: "
            f"the model's learned positions end at {length}"
        )


def check_tokens(field: str, tokens: Sequence[int], vocab_size: int) -> None:
    """`UserError` for what is no sequence of token ids below `vocab_size`; it may be empty."""
    value: object = tokens
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise UserError(field=field, value=one_line(repr(value), 80), accepted="a list of token ids")
    for token in tokens:
        if type(token) is int and 0 <= token < vocab_size:  # in half of the time of the next line
            continue
        is_whole = isinstance(token, Integral) and not isinstance(token, bool)
        if not (is_whole and 0 <= token < vocab_size):
            accepted = f"0 to {vocab_size - 1}, the model's vocabulary"
            raise UserError(field=field, value=f"token id {one_line(repr(token), 80)}", accepted=accepted)


def room_behind(decoder: Decoder, prompt: Sequence[int], most: int) -> int:
    """The tokens of an answer behind a prompt: at most `most`, and as many as learned positions leave.

    `UserError` where they leave none, since the conversation has filled the context.
    """
    length = decoder.spec.context_length
    if decoder.embedding.positions is None or len(prompt) + most <= length:
        return most
    if len(prompt) >= length:
        full = f"the context of {length:,} tokens is full: the conversation has {len(prompt):,} before the answer"
        raise UserError(f"{full}; expected fewer messages, or shorter ones")
    return length - len(prompt)
