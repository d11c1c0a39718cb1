"""From token ids to the vectors that the first layer reads.

Legend: `B` batch, `T` tokens of the chunk, `D` model width.
"""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor, nn

from linnet.layers.batch_layout import BatchLayout
from linnet.model.spec import EmbeddingSpec
from linnet.nn.linear import Linear
from linnet.nn.norms import norm_row
from linnet.nn.packed_linear import QuantizedEmbedding, gemv_of, token_lookup_of
from linnet.ops.native.elementwise import scale_add_row
from linnet.ops.rotary import sinusoidal, sinusoidal_range
from linnet.ops.support import is_exporting


class Embedding(nn.Module):
    """Token ids to vectors, with positions where the description asks for them."""

    def __init__(self, spec: EmbeddingSpec, vocab_size: int, d_model: int, context_length: int) -> None:
        super().__init__()
        width = spec.width or d_model
        self.tokens: nn.Embedding | QuantizedEmbedding = nn.Embedding(vocab_size, width)
        self.project = Linear(width, d_model, bias=False) if width != d_model else None
        learned = spec.positions == "learned"
        self.positions = nn.Embedding(context_length, d_model) if learned else None
        self.sinusoidal = spec.positions == "sinusoidal"
        self.norm = spec.norm.build(d_model) if spec.norm else None
        self.scale = d_model**0.5 if spec.scale else None

    @property
    def device(self) -> torch.device:
        """Where the table is."""
        return self.tokens.table.device if isinstance(self.tokens, QuantizedEmbedding) else self.tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of a token's vector."""
        return self.tokens.table.dtype if isinstance(self.tokens, QuantizedEmbedding) else self.tokens.weight.dtype

    def forward(self, tokens_BT: Tensor, layout: BatchLayout) -> Tensor:
        """`[B, T] -> [B, T, D]`; `ValueError` past the last learned position."""
        x_BTD: Tensor = self.tokens(tokens_BT)
        if self.project is not None:
            x_BTD = self.project(x_BTD)
        if self.scale is not None:
            x_BTD = x_BTD * self.scale
        if self.positions is not None:
            length, known = tokens_BT.shape[1], self.positions.num_embeddings
            if not is_exporting() and layout.end(length) > known:  # whoever runs a graph knows how many
                raise ValueError(f"{layout.end(length)} tokens: the model's learned positions end at {known}")
            x_BTD = x_BTD + self.positions(layout.positions(length, tokens_BT.device))
        if self.sinusoidal:
            x_BTD = x_BTD + _sinusoidal(x_BTD, layout).to(x_BTD.dtype)
        if self.norm is not None:
            x_BTD = self.norm(x_BTD)
        return x_BTD

    def row(self, compiled: ctypes.CDLL) -> Callable[[int, int], Tensor] | None:
        """A token and its position to `[1, D]` of float32, by functions of `ops.native`; None: it has no such form."""
        look_up, project = token_lookup_of(self.tokens), None if self.project is None else gemv_of(self.project)
        norm = None if self.norm is None else norm_row(self.norm, compiled)
        if look_up is None or self.sinusoidal:
            return None
        factor, table_CD = self.scale or 1.0, None if self.positions is None else self.positions.weight
        scaled = None if self.scale is None and table_CD is None else scale_add_row(compiled, factor, table_CD)

        def read(token: int, position: int) -> Tensor:
            x_1D = look_up(token)
            x_1D = x_1D if project is None else project.of(x_1D)
            x_1D = x_1D if scaled is None else scaled(x_1D, position)
            return x_1D if norm is None else norm(x_1D)

        return read


def _sinusoidal(x_BTD: Tensor, layout: BatchLayout) -> Tensor:
    length, width, device = x_BTD.shape[1], x_BTD.shape[2], x_BTD.device
    end = layout.end(length)
    if layout.uniform and layout.documents is None:
        return sinusoidal_range(layout.start, end, width, device)
    return sinusoidal(layout.positions(length, device), width, end)
