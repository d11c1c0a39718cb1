"""The decoder: the only one, for every mixer.

Legend: `B` batch, `T` tokens of the chunk, `D` model width, `W` width of a block, `E` width of the token vectors (`D`
unless said otherwise), `V` vocabulary.
"""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from linnet.layers.contract import Mixer, Span, State
from linnet.model.initialise import initialise
from linnet.model.spec import BlockSpec, EmbeddingSpec, ModelSpec
from linnet.model.state import DecoderState
from linnet.nn.linear import Linear
from linnet.nn.packed_linear import PackedLinear
from linnet.ops.cross_entropy import TokenLoss, linear_cross_entropy
from linnet.ops.linear import linear


class Embedding(nn.Module):
    """Token ids to vectors, with positions where the description asks for them."""

    def __init__(self, spec: EmbeddingSpec, vocab_size: int, d_model: int, context_length: int) -> None:
        super().__init__()
        width = spec.width or d_model
        self.tokens = nn.Embedding(vocab_size, width)
        self.project = Linear(width, d_model, bias=False) if width != d_model else None
        learned = spec.positions == "learned"
        self.positions = nn.Embedding(context_length, d_model) if learned else None
        self.norm = spec.norm.build(d_model) if spec.norm else None
        self.scale = d_model**0.5 if spec.scale else None

    def forward(self, tokens_BT: Tensor, span: Span) -> Tensor:
        """`[B, T] -> [B, T, D]`; `ValueError` past the last learned position."""
        x_BTD: Tensor = self.tokens(tokens_BT)
        if self.project is not None:
            x_BTD = self.project(x_BTD)
        if self.scale is not None:
            x_BTD = x_BTD * self.scale
        if self.positions is not None:
            length, known = tokens_BT.shape[1], self.positions.num_embeddings
            if span.start + length > known:
                raise ValueError(f"{span.start + length} tokens: the model's learned positions end at {known}")
            x_BTD = x_BTD + self.positions(span.positions(length, tokens_BT.device))
        if self.norm is not None:
            x_BTD = self.norm(x_BTD)
        return x_BTD


class Layer(nn.Module):
    """A mixer and a feed-forward, each on a residual branch."""

    def __init__(self, spec: BlockSpec, width: int, context_length: int) -> None:
        super().__init__()
        self.pre, self.parallel = spec.norm.placement == "pre", spec.residual == "parallel"
        self.mixer: Mixer = spec.mixer.build(width, context_length)
        self.mixer_norm = spec.norm.build(width)
        self.feed_forward = spec.feed_forward.build(width) if spec.feed_forward else None
        self.feed_forward_norm = spec.norm.build(width) if spec.feed_forward else None

    def forward(self, x_BTW: Tensor, state: State | None, span: Span) -> Tensor:
        """`[B, T, W] -> [B, T, W]`."""
        if not self.pre:
            return self._post(x_BTW, state, span)
        before_BTW = x_BTW
        x_BTW = x_BTW + self.mixer(self.mixer_norm(x_BTW), state, span)
        if self.feed_forward is not None and self.feed_forward_norm is not None:
            read_BTW = before_BTW if self.parallel else x_BTW
            x_BTW = x_BTW + self.feed_forward(self.feed_forward_norm(read_BTW))
        return x_BTW

    def _post(self, x_BTW: Tensor, state: State | None, span: Span) -> Tensor:
        x_BTW = self.mixer_norm(x_BTW + self.mixer(x_BTW, state, span))
        if self.feed_forward is not None and self.feed_forward_norm is not None:
            x_BTW = self.feed_forward_norm(x_BTW + self.feed_forward(x_BTW))
        return x_BTW


class Block(nn.Module):
    """Equal layers in a row, behind a projection where the width changes."""

    def __init__(self, spec: BlockSpec, width_before: int, d_model: int, context_length: int) -> None:
        super().__init__()
        self.width = spec.width or d_model
        changes = width_before != self.width
        self.project = Linear(width_before, self.width, bias=False) if changes else None
        sets_of_weights = 1 if spec.share_weights else spec.repeat
        self.layers = nn.ModuleList(Layer(spec, self.width, context_length) for _ in range(sets_of_weights))
        self.repeat = spec.repeat

    def forward(self, x: Tensor, states: tuple[State | None, ...], span: Span) -> Tensor:
        """`[B, T, width before] -> [B, T, W]`."""
        if self.project is not None:
            x = self.project(x)
        for index, state in enumerate(states):
            x = self.layer(index)(x, state, span)
        return x

    def layer(self, index: int) -> Layer:
        """The layer that a token meets as number `index` of this block; shared weights: the same each time."""
        layer = self.layers[index % len(self.layers)]
        assert isinstance(layer, Layer)
        return layer


class Decoder(nn.Module):
    """Token ids in, logits out, for whatever mixers the description names.

    Fresh weights come from torch's global generator: seed it (`torch.manual_seed`) for the same model twice.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = Embedding(spec.embedding, spec.vocab_size, spec.d_model, spec.context_length)
        widths = [spec.d_model, *(block.width or spec.d_model for block in spec.blocks)]
        self.blocks = nn.ModuleList(
            Block(block, width, spec.d_model, spec.context_length)
            for block, width in zip(spec.blocks, widths[:-1], strict=True)
        )
        width = widths[-1]
        self.project = Linear(width, spec.d_model, bias=False) if width != spec.d_model else None
        self.norm = spec.head.norm.build(spec.d_model) if spec.head.norm else None
        narrow = spec.embedding.width or spec.d_model
        to_narrow = spec.head.tied and narrow != spec.d_model
        self.head_project = Linear(spec.d_model, narrow, bias=False) if to_narrow else None
        self.head: Linear | PackedLinear | None = None
        if not spec.head.tied:
            self.head = Linear(spec.d_model, spec.vocab_size, bias=spec.head.bias)
        initialise(self, spec)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights."""
        return self.embedding.tokens.weight.dtype

    @property
    def mixers(self) -> list[Mixer]:
        """The mixer of each layer in the order a token meets them (a shared one several times)."""
        return [layer.mixer for layer in self.layers]

    @property
    def layers(self) -> list[Layer]:
        """The layers in the order a token meets them (a shared one several times)."""
        return [block.layer(i) for block in self.blocks_in_order() for i in range(block.repeat)]

    @property
    def causal(self) -> bool:
        """Whether the pass without a state is causal, all layers taken together."""
        return all(mixer.traits.causal for mixer in self.mixers)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What `to`, `cuda` and `float` come down to; refused by converted weights before anything is changed."""
        for module in self.modules():
            if isinstance(module, PackedLinear):
                module.target(fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def initial_state(
        self, batch: int, capacity: int, padding_B: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> DecoderState:
        """An empty state for `batch` streams of at most `capacity` tokens, `padding_B[b]` of row b being padding."""
        dtype = dtype or self.dtype
        layers = tuple(mixer.initial_state(batch, capacity, self.device, dtype) for mixer in self.mixers)
        return DecoderState(layers, capacity, padding_B=padding_B)

    def forward(self, tokens_BT: Tensor, state: DecoderState | None = None) -> Tensor:
        """`[B, T] -> logits [B, T, V]`. With a state: goes on where it stands and advances it.

        `ValueError` where the state has no room for `T` more tokens.
        """
        return self.logits(self.hidden(tokens_BT, state))

    def hidden(self, tokens_BT: Tensor, state: DecoderState | None = None) -> Tensor:
        """`[B, T] -> [B, T, D]`, all but the head's matrix, which is `[V, E]` where tied: then `[B, T, E]`.

        Advances the state.
        """
        length = tokens_BT.shape[1]
        if state is not None and state.position + length > state.capacity:
            raise ValueError(f"{length} more tokens: the state has room for {state.capacity - state.position}")
        span = Span() if state is None else state.span()
        layer_states = (None,) * self.spec.layers if state is None else state.layers
        x: Tensor = self.embedding(tokens_BT, span)
        first = 0
        for block in self.blocks_in_order():
            x = block(x, layer_states[first : first + block.repeat], span)
            first += block.repeat
        if state is not None:
            state.position += length
        return self.after_blocks(x)

    def after_blocks(self, x: Tensor) -> Tensor:
        """What lies between the last block and the head's matrix: `[B, T, W] -> [B, T, D]`, or E."""
        for module in (self.project, self.norm, self.head_project):
            if module is not None:
                x = module(x)
        return x

    def blocks_in_order(self) -> list[Block]:
        """The blocks, typed."""
        return [block for block in self.blocks if isinstance(block, Block)]

    def logits(self, x_BTD: Tensor) -> Tensor:
        """`[B, T, D] -> [B, T, V]`."""
        if self.head is None:
            return linear(x_BTD, self.embedding.tokens.weight)
        logits_BTV: Tensor = self.head(x_BTD)
        return logits_BTV

    def token_loss(self, x_BTD: Tensor, targets_BT: Tensor) -> TokenLoss:
        """Summed nats of the targets given what `hidden` returned, without ever holding all logits."""
        return linear_cross_entropy(x_BTD.flatten(0, 1), *self._head_map(), targets_BT.flatten())

    def _head_map(self) -> tuple[Tensor, Tensor | None]:
        """The head's matrix `[V, D]`, which is the embedding's, `[V, E]`, where they are tied, and its bias `[V]`."""
        if self.head is None:
            return self.embedding.tokens.weight, None
        return self.head.weight, self.head.bias
