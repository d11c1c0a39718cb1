"""The encoder of an encoder-decoder: the same stack, in which every token sees all of the input.

Legend: `B` batch, `S` tokens of the longest input, `D` model width, `E` width of the memory, which is `D`.
"""

from typing import NamedTuple

from torch import Tensor, nn

from linnet.layers.batch_layout import BatchLayout, Counts, Memory
from linnet.layers.contract import Place
from linnet.model.spec import EncoderSpec, ModelSpec
from linnet.model.stack import Block, Layer, build_blocks, run_blocks
from linnet.nn.linear import Linear


class Inputs(NamedTuple):
    """Token ids `[B, S]`, and how many of them are padding before each row; None for none."""

    tokens_BS: Tensor
    padding: Counts | None = None


class Encoder(nn.Module):
    """Blocks of layers, a projection where the last has another width, a normalization."""

    def __init__(self, encoder: EncoderSpec, spec: ModelSpec) -> None:
        """`spec`: of the model that it belongs to."""
        super().__init__()
        place = Place(spec.d_model, spec.context_length, layers=encoder.layers, whole=True)
        self.blocks = build_blocks(encoder.blocks, spec.d_model, place, spec.embedding.skip)
        width = encoder.blocks[-1].width or spec.d_model
        self.project = Linear(width, spec.d_model, bias=False) if width != spec.d_model else None
        self.norm = encoder.norm.build(spec.d_model) if encoder.norm else None

    def forward(self, x_BSD: Tensor, layout: BatchLayout) -> Memory:
        """What the embedding gave, under a layout in which each row is a prefix, to what a decoder reads."""
        length = x_BSD.shape[1]
        assert layout.whole(length), "an input of which a part is no prefix"
        out = run_blocks(self.blocks, x_BSD, None, layout)
        for module in (self.project, self.norm):
            if module is not None:
                out = module(out)
        return Memory(out, layout.real(length, out.device))

    @property
    def layers(self) -> list[Layer]:
        """The layers in the order a token meets them (a shared one several times)."""
        return [block.layer(i) for block in self.blocks_in_order() for i in range(block.repeat)]

    def blocks_in_order(self) -> list[Block]:
        """The blocks, typed."""
        return [block for block in self.blocks if isinstance(block, Block)]
