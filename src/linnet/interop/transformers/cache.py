"""A decode state as a cache of Transformers: rows are chosen, repeated and reordered, and the past can be taken back.

A state in sums cannot go back by itself. While the past is recorded (assisted decoding asks for it) a copy is kept of
the state before each chunk; going back into a chunk begins there, and its first tokens are read again together with the
next one: one pass, nothing more.

Legend: `B` batch, `T` places of a chunk.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from linnet.core.errors import UserError
from linnet.inference.state import grow_state
from linnet.interop.transformers.chunk import Chunk
from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

ROOM_FACTOR = 1.5
"""A state that has to grow gets so many times its room at least, so that it seldom has to."""


@dataclass(frozen=True)
class Passed:
    """A chunk that was read, and a copy of the state before it; None where the state goes back by itself."""

    chunk: Chunk
    before: DecoderState | None


class StateCache(Cache):
    """The state of a batch of streams, made at the first chunk; it is advanced in place.

    seen: places of all chunks so far, padding too, as Transformers counts them. prompt: of a model that settles, so
    many places are its first chunk, whatever is read with them; None: as they come.
    """

    def __init__(self, capacity: int = 0) -> None:
        """`capacity`: tokens to have room for from the beginning; there is more when it is needed."""
        super().__init__(layers=[])
        self.state: DecoderState | None = None
        self.seen = 0
        self.prompt: int | None = None
        self._capacity, self._goes_back = capacity, False
        self._past: list[Passed] | None = None
        self._unread: Chunk | None = None

    def read(self, decoder: Decoder, chunk: Chunk, record: AuxiliaryOutputs | None = None) -> Tensor:
        """What the head makes logits of, at all places of the chunk: `[B, T] -> [B, T, D]`."""
        if self.seen == 0 and self.prompt is not None and 0 < self.prompt < chunk.length:
            parts = chunk.first(self.prompt), chunk.behind(self.prompt)
            return torch.cat([self._read(decoder, part, record) for part in parts], dim=1)
        return self._read(decoder, chunk, record)

    def _read(self, decoder: Decoder, chunk: Chunk, record: AuxiliaryOutputs | None) -> Tensor:
        self.seen += chunk.length
        again = 0 if self._unread is None else self._unread.length
        whole, self._unread = chunk if self._unread is None else self._unread.join(chunk), None
        state = self._with_room(decoder, whole)
        if self._past is not None:
            alone = self._goes_back and whole.real_BT is None and _agree(state)
            self._past.append(Passed(whole, None if alone else state.fork()))
        return whole.hidden(decoder, state, record)[:, again:]

    def _with_room(self, decoder: Decoder, chunk: Chunk) -> DecoderState:
        """The state, with room for a chunk."""
        batch, length = chunk.tokens_BT.shape
        if self.state is None:
            self.state = decoder.initial_state(batch, max(self._capacity, length))
            self._goes_back = _goes_back(decoder)
        if len(self.state.positions) != batch:
            raise UserError(f"past_key_values: {len(self.state.positions)} rows: expected {batch}, as input_ids has")
        needed, room = self.state.position + length, self.state.capacity
        if needed > room:
            self.state = grow_state(self.state, max(needed, round(ROOM_FACTOR * room)))
        return self.state

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Places so far, padding too."""
        return self.seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """No end (-1)."""
        return -1

    @property
    def batch_size(self) -> int:
        """Rows; -1 before the first chunk."""
        return -1 if self.state is None else len(self.state.positions)

    @property
    def is_initialized(self) -> bool:
        """Whether anything was read."""
        return self.state is not None

    @property
    def is_croppable(self) -> bool:
        """Whether the past can be taken back as it was: what is recorded can."""
        return self._past is not None or self._goes_back

    @property
    def nbytes(self) -> int:
        """Bytes of the state, as allocated."""
        return 0 if self.state is None else self.state.nbytes

    def reset(self) -> None:
        """Nothing was read."""
        self.state, self.seen, self._unread = None, 0, None
        self._past = None if self._past is None else []

    def activate_past_recording(self) -> None:
        """From now on every chunk can be taken back, until the next `crop`."""
        self._past = [] if self._past is None else self._past

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last places (a number below 0, as Transformers has it); what is left is final.

        `UserError` where so much was not read, or it was not recorded and the architecture cannot go back by itself.
        """
        removed = -tokens_to_remove
        if not 0 <= removed <= self.seen:
            accepted = f"0 to {-self.seen}: how many of {self.seen} places to take back"
            raise UserError(field="crop", value=tokens_to_remove, accepted=accepted)
        if removed == self.seen:
            self.reset()
            return
        if self._past is None:
            self._go_back(removed)
        else:
            self._take_back(removed)
            self._past = []
        self.seen -= removed

    def _take_back(self, removed: int) -> None:
        """Undo recorded chunks, the last one first."""
        assert self._past is not None
        while removed > 0:
            if not self._past:
                raise UserError(f"crop: {removed} places more than were recorded since the last crop")
            last = self._past.pop()
            kept = max(last.chunk.length - removed, 0)
            if last.before is None:
                self._go_back(last.chunk.length - kept)
            else:
                self.state, self._unread = last.before, last.chunk.first(kept) if kept else None
            removed -= last.chunk.length - kept

    def _go_back(self, removed: int) -> None:
        """Let the state forget its last tokens, which all rows have in common."""
        if removed == 0 or self.state is None:
            return
        if not (self._goes_back and self._unread is None and _agree(self.state)):
            raise UserError("crop: this state cannot go back by itself; call `activate_past_recording` before the pass")
        self.state.crop(self.state.position - removed)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row `i` becomes what row `beam_idx[i]` was."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order (int64 `[B']`, or bool `[B]`)."""
        rows = indices.nonzero().flatten() if indices.dtype == torch.bool else indices
        self._change(lambda state: state.select(rows.to("cpu")), lambda chunk: chunk.select(rows))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row so many times, one behind the other."""
        if self.state is not None:
            self.batch_select_indices(torch.arange(self.batch_size).repeat_interleave(repeats))

    def _change(self, of_state: Callable[[DecoderState], DecoderState], of_chunk: Callable[[Chunk], Chunk]) -> None:
        if self.state is None:
            return
        self.state = of_state(self.state)
        self._unread = None if self._unread is None else of_chunk(self._unread)
        for index, passed in enumerate(self._past or ()):
            assert self._past is not None
            before = None if passed.before is None else of_state(passed.before)
            self._past[index] = replace(passed, chunk=of_chunk(passed.chunk), before=before)

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Refused: layers of ours keep a state, of which keys and values are a part of some."""
        raise UserError("past_key_values: a cache of linnet's models holds states; expected one of their own")


def _agree(state: DecoderState) -> bool:
    """Whether all rows stand at the same position."""
    return len(set(state.positions)) == 1


def _goes_back(decoder: Decoder) -> bool:
    """Whether states of the decoder forget their last tokens by themselves."""
    probe = decoder.initial_state(1, 2)
    probe.positions = (2,)
    try:
        probe.crop(1)
    except NotImplementedError:
        return False
    return True
