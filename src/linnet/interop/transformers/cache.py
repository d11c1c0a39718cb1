"""A decode state as a cache of Transformers: rows can be selected, repeated and reordered, and the past taken back.

A recurrent state cannot go back by itself. While the past is recorded (assisted decoding requests it), a copy of the
state before each chunk is kept; going back into a chunk restarts there, and its first tokens are read again together
with the next chunk, in one pass.

Layers accept padding only at the beginning of a row. Wherever a mask of Transformers has padding, it is moved to the
beginning, the order of the real tokens kept, and the outputs are moved back: a row's output does not depend on its
padding. At padding stands the output of the last token before it, because `generate` reads the last position, whatever
its mask.

Legend: `B` batch, `T` positions of a chunk, `D` width.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from linnet.core.errors import UserError
from linnet.inference.state import with_room
from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState


@dataclass(frozen=True)
class Chunk:
    """Token ids `[B, T]`, and a mask of real tokens, bool `[B, T]`; None if all are real."""

    tokens_BT: Tensor
    real_BT: Tensor | None = None

    @classmethod
    def of(cls, tokens_BT: Tensor, mask: Tensor | None) -> "Chunk":
        """Build from an `attention_mask` `[B, past and T]`, whose past part was read already.

        `UserError` for a mask of another shape.
        """
        if mask is None:
            return cls(tokens_BT)
        batch, length = tokens_BT.shape
        if mask.dim() != 2 or len(mask) != batch or mask.shape[1] < length:
            accepted = f"[{batch}, at least {length}], 1 for a token and 0 for padding"
            raise UserError(field="attention_mask", value=f"of shape {list(mask.shape)}", accepted=accepted)
        real_BT = mask[:, -length:].to(tokens_BT.device).bool()
        return cls(tokens_BT, None if bool(real_BT.all()) else real_BT)

    @property
    def length(self) -> int:
        return self.tokens_BT.shape[1]

    def cut(self, positions: slice) -> "Chunk":
        return Chunk(self.tokens_BT[:, positions], None if self.real_BT is None else self.real_BT[:, positions])

    def select(self, rows: Tensor) -> "Chunk":
        rows = rows.to(self.tokens_BT.device)
        return Chunk(self.tokens_BT[rows], None if self.real_BT is None else self.real_BT[rows])

    def join(self, other: "Chunk") -> "Chunk":
        """Append another chunk."""
        tokens_BT = torch.cat([self.tokens_BT, other.tokens_BT], dim=1)
        if self.real_BT is None and other.real_BT is None:
            return Chunk(tokens_BT)
        masks = [
            torch.ones_like(chunk.tokens_BT, dtype=torch.bool) if chunk.real_BT is None else chunk.real_BT
            for chunk in (self, other)
        ]
        return Chunk(tokens_BT, torch.cat(masks, dim=1))

    def check_positions(self, position_ids: Tensor, before_B: Tensor | None) -> None:
        """Raise `UserError` for positions `[B or 1, T]` that do not count the tokens. before_B: tokens read before."""
        real_BT = torch.ones_like(self.tokens_BT, dtype=torch.bool) if self.real_BT is None else self.real_BT
        expected_BT = real_BT.cumsum(dim=1) - 1 + (0 if before_B is None else before_B.to(real_BT.device)[:, None])
        fits = position_ids.dim() == 2 and position_ids.shape[1] == self.length
        if not fits or not bool((position_ids.to(real_BT.device) == expected_BT)[real_BT].all()):
            accepted = "the number of tokens before each token, which the model counts itself"
            raise UserError("other positions", field="position_ids", accepted=accepted)

    def last_tokens(self) -> Tensor:
        """Return the position of the last token up to each position, int64 `[B, T]`; -1 before the first token."""
        positions_T = torch.arange(self.length, device=self.tokens_BT.device)
        shape = positions_T.expand_as(self.tokens_BT)
        return shape if self.real_BT is None else torch.where(self.real_BT, shape, -1).cummax(dim=1).values

    def hidden(
        self,
        decoder: Decoder,
        state: DecoderState | None,
        record: AuxiliaryOutputs | None = None,
        before_BD: Tensor | None = None,
    ) -> Tensor:
        """Return the inputs of the head, `[B, T, D]`; at padding those of the last token before it.

        before_BD: those of the last token before the chunk; without it the values at padding before all tokens are
        arbitrary.
        """
        if self.real_BT is None:
            return decoder.hidden(self.tokens_BT, state, record=record)
        order_BT = self.real_BT.to(torch.int8).argsort(dim=1, stable=True)
        padding_B = (~self.real_BT).sum(dim=1)
        x_BTD = decoder.hidden(self.tokens_BT.gather(1, order_BT), state, padding=padding_B, record=record)
        last_BT = self.last_tokens()
        back_BT1 = order_BT.argsort(dim=1).gather(1, last_BT.clamp(min=0))[..., None]
        x_BTD = x_BTD.gather(1, back_BT1.expand(-1, -1, x_BTD.shape[2]))
        return x_BTD if before_BD is None else torch.where(last_BT[..., None] < 0, before_BD[:, None], x_BTD)


@dataclass(frozen=True)
class ReadChunk:
    """A chunk that was read, and a copy of the state before it; None if the state goes back by itself."""

    chunk: Chunk
    before: DecoderState | None


class StateCache(Cache):
    """The state of a batch of streams, created at the first chunk and advanced in place.

    seen: positions of all chunks so far with padding, as Transformers counts them. prompt: for a model that calibrates
    on its prompt, the positions that form its first chunk whatever is read with them; None: chunks as they come.
    """

    def __init__(self, capacity: int = 0) -> None:
        """`capacity`: initial room in tokens; it grows when needed."""
        super().__init__(layers=[])
        self.state: DecoderState | None = None
        self.seen = 0
        self.prompt: int | None = None
        self._capacity, self._goes_back = capacity, False
        self._past: list[ReadChunk] | None = None
        self._unread: Chunk | None = None
        self._last_BD: Tensor | None = None  # the input of the head at the last token of each row

    def read(self, decoder: Decoder, chunk: Chunk, record: AuxiliaryOutputs | None = None) -> Tensor:
        """Return the inputs of the head at all positions of the chunk: `[B, T] -> [B, T, D]`."""
        if self.seen == 0 and self.prompt is not None and 0 < self.prompt < chunk.length:
            parts = chunk.cut(slice(None, self.prompt)), chunk.cut(slice(self.prompt, None))
            return torch.cat([self._read(decoder, part, record) for part in parts], dim=1)
        return self._read(decoder, chunk, record)

    def _read(self, decoder: Decoder, chunk: Chunk, record: AuxiliaryOutputs | None) -> Tensor:
        self.seen += chunk.length
        again = 0 if self._unread is None else self._unread.length
        whole, self._unread = chunk if self._unread is None else self._unread.join(chunk), None
        state = self._with_room(decoder, whole)
        if self._past is not None:
            alone = self._goes_back and whole.real_BT is None and len(set(state.positions)) == 1
            self._past.append(ReadChunk(whole, None if alone else state.fork()))
        x_BTD = whole.hidden(decoder, state, record, self._last_BD)
        self._last_BD = x_BTD[:, -1].detach().clone()
        return x_BTD[:, again:]

    def _with_room(self, decoder: Decoder, chunk: Chunk) -> DecoderState:
        """Return the state with room for a chunk."""
        batch, length = chunk.tokens_BT.shape
        if self.state is None:
            self.state = decoder.initial_state(batch, max(self._capacity, length))
            probe = decoder.initial_state(1, 2)  # does its state forget its last token?
            probe.positions = (2,)
            self._goes_back = probe.can_crop(1)
        if len(self.state.positions) != batch:
            raise UserError(f"past_key_values: {len(self.state.positions)} rows: expected {batch}, as input_ids has")
        self.state = with_room(self.state, self.state.position + length)
        return self.state

    def tokens_read(self) -> Tensor | None:
        """Return the number of tokens of each row so far, int64 `[B]`; None before the first chunk."""
        if self.state is None:
            return None
        unread = self._unread
        counts_B = torch.tensor(self.state.positions)
        if unread is None:
            return counts_B
        return counts_B + (unread.length if unread.real_BT is None else unread.real_BT.sum(dim=1).cpu())

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1  # no limit

    @property
    def batch_size(self) -> int:
        """Number of rows; -1 before the first chunk."""
        return -1 if self.state is None else len(self.state.positions)

    @property
    def is_initialized(self) -> bool:
        """True if a chunk was read."""
        return self.state is not None

    @property
    def is_linear(self) -> list[bool]:
        """What Transformers 5.24 asks in `generate`: False, so that it passes on only tokens that were not read yet."""
        return [False]

    @property
    def is_croppable(self) -> bool:
        """True if the past can be taken back: it is recorded, or the state goes back by itself."""
        return self._past is not None or self._goes_back

    @property
    def nbytes(self) -> int:
        """Allocated bytes of the state."""
        return 0 if self.state is None else self.state.nbytes

    def reset(self) -> None:
        """Forget everything that was read."""
        self.state, self.seen, self._unread, self._last_BD = None, 0, None, None
        self._past = None if self._past is None else []

    def activate_past_recording(self) -> None:
        """Make every chunk from now on reversible, until the next `crop`."""
        self._past = [] if self._past is None else self._past

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last positions (a negative number, as in Transformers); the rest becomes final.

        `UserError` if fewer positions were read, or they were not recorded and the architecture cannot go back.
        """
        removed = -tokens_to_remove
        if not 0 <= removed <= self.seen:
            accepted = f"0 to {-self.seen}: how many of {self.seen} positions to take back"
            raise UserError(field="crop", value=tokens_to_remove, accepted=accepted)
        if removed == self.seen:
            self.reset()
            return
        if self._past is None:
            self._go_back(removed)
        else:
            self._undo_recorded(removed)
            self._past = []
        self.seen -= removed
        if removed:
            self._last_BD = None

    def _undo_recorded(self, removed: int) -> None:
        """Undo recorded chunks from the last."""
        assert self._past is not None
        while removed > 0:
            if not self._past:
                raise UserError(f"crop: {removed} positions more than were recorded since the last crop")
            last = self._past.pop()
            remaining = max(last.chunk.length - removed, 0)
            if last.before is None:
                self._go_back(last.chunk.length - remaining)
            else:
                self.state, self._unread = last.before, last.chunk.cut(slice(None, remaining)) if remaining else None
            removed -= last.chunk.length - remaining

    def _go_back(self, removed: int) -> None:
        """Make the state forget its last tokens, which all rows have in common."""
        if removed == 0 or self.state is None:
            return
        if not (self._goes_back and self._unread is None and len(set(self.state.positions)) == 1):
            raise UserError("crop: this state cannot go back by itself; call `activate_past_recording` before the pass")
        self.state.crop(self.state.position - removed)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replace row `i` by row `beam_idx[i]`."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order (int64 `[B']`, or bool `[B]`)."""
        if self.state is None:
            return
        rows = (indices.nonzero().flatten() if indices.dtype == torch.bool else indices).to("cpu")
        self.state = self.state.select(rows)
        self._unread = None if self._unread is None else self._unread.select(rows)
        self._last_BD = None if self._last_BD is None else self._last_BD[rows.to(self._last_BD.device)]
        if self._past is not None:
            self._past = [
                ReadChunk(read.chunk.select(rows), None if read.before is None else read.before.select(rows))
                for read in self._past
            ]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row, copies next to each other."""
        if self.state is not None:
            self.batch_select_indices(torch.arange(self.batch_size).repeat_interleave(repeats))

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Refuse keys and values: layers of linnet keep states, which include them only in some layers."""
        raise UserError("past_key_values: a cache of linnet's models holds states; expected one of their own")
