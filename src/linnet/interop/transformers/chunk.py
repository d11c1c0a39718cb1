"""A chunk of tokens as Transformers gives it: padding anywhere, which a mask says.

Our layers know padding at the beginning of a row alone. Wherever it is, its places are brought there, the order of the
real ones kept, and what comes out is put back: what a row says does not depend on where its padding stands.

Legend: `B` batch, `T` places of the chunk, `D` width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState


@dataclass(frozen=True)
class Chunk:
    """Token ids `[B, T]`, and which places are real, bool `[B, T]`; None: all."""

    tokens_BT: Tensor
    real_BT: Tensor | None = None

    @classmethod
    def of(cls, tokens_BT: Tensor, mask: Tensor | None) -> "Chunk":
        """From an `attention_mask` `[B, past and T]`, of which what is before the chunk was read already.

        `UserError` for a mask of other dimensions.
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
        """T."""
        return self.tokens_BT.shape[1]

    @property
    def padded_behind(self) -> bool:
        """Whether no padding stands before a token."""
        return self.real_BT is None or bool((self.real_BT[:, :-1] >= self.real_BT[:, 1:]).all())

    def first(self, places: int) -> "Chunk":
        """So many places."""
        return self._cut(slice(None, places))

    def behind(self, places: int) -> "Chunk":
        """What comes after so many places."""
        return self._cut(slice(places, None))

    def select(self, rows: Tensor) -> "Chunk":
        """These rows."""
        rows = rows.to(self.tokens_BT.device)
        return Chunk(self.tokens_BT[rows], None if self.real_BT is None else self.real_BT[rows])

    def join(self, other: "Chunk") -> "Chunk":
        """This one, then the other."""
        tokens_BT = torch.cat([self.tokens_BT, other.tokens_BT], dim=1)
        if self.real_BT is None and other.real_BT is None:
            return Chunk(tokens_BT)
        return Chunk(tokens_BT, torch.cat([self._all_real(), other._all_real()], dim=1))

    def hidden(self, decoder: Decoder, state: DecoderState | None, record: AuxiliaryOutputs | None = None) -> Tensor:
        """What the head makes logits of, `[B, T, D]`, at the places where the tokens are; any at those of padding."""
        if self.real_BT is None:
            return decoder.hidden(self.tokens_BT, state, record=record)
        order_BT = self.real_BT.to(torch.int8).argsort(dim=1, stable=True)
        padding_B = (~self.real_BT).sum(dim=1)
        x_BTD = decoder.hidden(self.tokens_BT.gather(1, order_BT), state, padding=padding_B, record=record)
        back_BT1 = order_BT.argsort(dim=1)[..., None]
        return x_BTD.gather(1, back_BT1.expand(-1, -1, x_BTD.shape[2]))

    def _all_real(self) -> Tensor:
        return torch.ones_like(self.tokens_BT, dtype=torch.bool) if self.real_BT is None else self.real_BT

    def _cut(self, places: slice) -> "Chunk":
        return Chunk(self.tokens_BT[:, places], None if self.real_BT is None else self.real_BT[:, places])
