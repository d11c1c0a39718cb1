"""The decoder, one for all kinds of layers; its embedding, and the encoder of an encoder-decoder.

Shapes: `B` batch, `T` tokens of the chunk, `D` model width, `W` width of a block, `E` width of the token vectors (`D`
unless the description gives another), `V` vocabulary, `S` tokens of the longest input of an encoder.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Self, overload

import torch
from torch import Tensor, nn

from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout, Counts, Memory, layout_at
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import Mixer, Place, Sublayer, sublayers_of
from linnet.layers.passes import check_layout
from linnet.model.initialize import SkipRandomFills, initialize, without_calibration_file
from linnet.model.spec import EmbeddingSpec, EncoderSpec, ModelSpec
from linnet.model.stack import Block, Layer, build_blocks, run_blocks
from linnet.model.state import DecoderState, padding_counts
from linnet.nn.linear import Linear
from linnet.nn.packed_linear import PackedLinear, QuantizedEmbedding
from linnet.ops.cross_entropy import (
    IGNORE_INDEX,
    SummedLoss,
    TokenLosses,
    apply_soft_cap,
    linear_cross_entropy,
    linear_token_nats,
    token_cross_entropy,
)
from linnet.ops.distillation import SoftTargets, linear_distillation
from linnet.ops.linear import linear
from linnet.ops.rotary import sinusoidal, sinusoidal_range
from linnet.ops.support import is_exporting


class Embedding(nn.Module):
    """Token ids to vectors, with positions if the description has them."""

    def __init__(self, spec: EmbeddingSpec, vocab_size: int, d_model: int, context_length: int) -> None:
        super().__init__()
        width = spec.width or d_model
        self.tokens: nn.Embedding | QuantizedEmbedding = nn.Embedding(vocab_size, width)
        self.project = Linear(width, d_model, bias=False) if width != d_model else None
        learned = spec.positions == "learned"
        self.positions = nn.Embedding(context_length, d_model) if learned else None
        self.sinusoidal = spec.positions == "sinusoidal"
        self.norm = spec.norm.build(d_model) if spec.norm else None
        self.scale = spec.factor(d_model)

    def forward(self, tokens_BT: Tensor, layout: BatchLayout) -> Tensor:
        """`[B, T] -> [B, T, D]`; `ValueError` past the last learned position."""
        x_BTD: Tensor = self.tokens(tokens_BT)
        length, device = tokens_BT.shape[1], tokens_BT.device
        if self.project is not None:
            x_BTD = self.project(x_BTD)
        if self.scale is not None:
            x_BTD = x_BTD * self.scale
        if self.positions is not None:
            known = self.positions.num_embeddings
            if not is_exporting() and layout.end(length) > known:  # the caller of an exported graph checks the length
                raise ValueError(f"{layout.end(length)} tokens: the model's learned positions end at {known}")
            x_BTD = x_BTD + self.positions(layout.positions(length, device))
        if self.sinusoidal:
            width, end = x_BTD.shape[2], layout.end(length)
            if layout.uniform and layout.documents is None:
                table = sinusoidal_range(layout.start, end, width, x_BTD.device)
            else:
                table = sinusoidal(layout.positions(length, x_BTD.device), width, end)
            x_BTD = x_BTD + table.to(x_BTD.dtype)
        if self.norm is not None:
            x_BTD = self.norm(x_BTD)
        return x_BTD


class Inputs(NamedTuple):
    """The input of an encoder: token ids `[B, S]`, and the padding at the start of each row (None for none)."""

    tokens_BS: Tensor
    padding: Counts | None = None


class Encoder(nn.Module):
    """Blocks of layers, a projection if the last block has another width, a normalization."""

    def __init__(self, encoder: EncoderSpec, spec: ModelSpec) -> None:
        """`spec`: the spec of its model."""
        super().__init__()
        place = Place(spec.d_model, spec.context_length, layers=encoder.layers, whole=True)
        self.blocks = build_blocks(encoder.blocks, spec.d_model, place, spec.embedding.skip)
        width = encoder.blocks[-1].width or spec.d_model
        self.project = Linear(width, spec.d_model, bias=False) if width != spec.d_model else None
        self.norm = encoder.norm.build(spec.d_model) if encoder.norm else None

    def forward(self, x_BSD: Tensor, layout: BatchLayout) -> Memory:
        """From the output of the embedding to the memory of the decoder; in the layout each row is one prefix."""
        length = x_BSD.shape[1]
        assert layout.whole(length), "an encoder reads whole rows as prefixes"
        out = run_blocks(self.blocks, x_BSD, None, layout)
        for module in (self.project, self.norm):
            if module is not None:
                out = module(out)
        return Memory(out, layout.real(length, out.device))


class Decoder(nn.Module):
    """From token ids to logits, with the layers of the description.

    New weights come from torch's global generator: the same seed (`torch.manual_seed`) gives the same model.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = Embedding(spec.embedding, spec.vocab_size, spec.d_model, spec.context_length)
        self.encoder = None if spec.encoder is None else Encoder(spec.encoder, spec)
        self.blocks = build_blocks(spec.blocks, spec.d_model, spec.first_place, spec.embedding.skip)
        width = spec.blocks[-1].width or spec.d_model
        self.project = Linear(width, spec.d_model, bias=False) if width != spec.d_model else None
        self.norm = spec.head.norm.build(spec.d_model) if spec.head.norm else None
        narrow = spec.embedding.width or spec.d_model
        projects = spec.head.tied and narrow != spec.d_model
        self.head_project = Linear(spec.d_model, narrow, bias=False) if projects else None
        self.head: Linear | PackedLinear | None = None
        if not spec.head.tied:
            self.head = Linear(spec.d_model, spec.vocab_size, bias=spec.head.bias)
        # At 0, so that a reward model begins without a preference.
        inputs = narrow if spec.head.tied else spec.d_model
        self.value = nn.Parameter(torch.zeros(inputs)) if spec.head.value else None
        initialize(self, spec)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        tokens = self.embedding.tokens
        return tokens.table.device if isinstance(tokens, QuantizedEmbedding) else tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights."""
        tokens = self.embedding.tokens
        return tokens.table.dtype if isinstance(tokens, QuantizedEmbedding) else tokens.weight.dtype

    @property
    def layers(self) -> list[Layer]:
        """The layers in the order in which a token passes them; one with shared weights several times."""
        return [block.layer(i) for block in self.blocks_in_order() for i in range(block.repeat)]

    @property
    def mixers(self) -> list[Mixer]:
        """The mixer of each of `layers`."""
        return [layer.mixer for layer in self.layers]

    def blocks_in_order(self) -> list[Block]:
        """The blocks of the decoder."""
        return [block for block in self.blocks if isinstance(block, Block)]

    @property
    def all_blocks(self) -> list[Block]:
        """The blocks of the encoder, if there is one, and those of the decoder."""
        encoder: Iterable[nn.Module] = () if self.encoder is None else self.encoder.blocks
        return [block for block in (*encoder, *self.blocks) if isinstance(block, Block)]

    @property
    def sublayers(self) -> Iterator[Sublayer]:
        """All sublayers, each once, in the order in which they were built."""
        return sublayers_of(self)

    @property
    def causal(self) -> bool:
        """True if a pass without a state is causal in all layers."""
        return all(sublayer.traits.causal for sublayer in self.sublayers)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Called by `to`, `cuda` and `float`; packed weights refuse another precision before anything is changed."""
        for module in self.modules():
            if isinstance(module, PackedLinear):
                module.target(fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def auxiliary_outputs(self, tokens_BT: Tensor) -> list[dict[str, Tensor]]:
        """The auxiliary outputs of each layer in one pass without a state, by name.

        The first dimension of each tensor is the batch; tensors carry gradients unless the caller disables them.
        """
        record = AuxiliaryOutputs(outputs=[])
        self.hidden(tokens_BT, record=record)
        assert record.outputs is not None
        return record.outputs

    def initial_state(
        self,
        batch: int,
        capacity: int,
        cache_policies: CachePolicy | Sequence[CachePolicy] = FULL,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> DecoderState:
        """An empty state for `batch` streams of at most `capacity` tokens.

        cache_policies: one for all layers, or one for each, which its mixer supports. dtype: the precision of the state
        (default: that of the weights); with quantized weights, keys and values in float32 are kept in bfloat16.
        """
        policies = list(cache_policies) if isinstance(cache_policies, Sequence) else [cache_policies] * self.spec.layers
        arguments = (batch, capacity, device or self.device, dtype or self.dtype)
        layers = zip(self.layers, policies, strict=True)
        states = [layer.initial_states(*arguments, cache_policy) for layer, cache_policy in layers]
        return DecoderState.from_layers(states, capacity, (0,) * batch)

    @overload
    def forward(self, tokens_BT: Tensor, state: DecoderState | None = ..., *, targets: None = ...) -> Tensor: ...

    @overload
    def forward(self, tokens_BT: Tensor, state: DecoderState | None = ..., *, targets: Tensor) -> SummedLoss: ...

    def forward(
        self,
        tokens_BT: Tensor,
        state: DecoderState | None = None,
        *,
        targets: Tensor | None = None,
        padding: Sequence[int] | Tensor | None = None,
        documents: Sequence[Sequence[int]] | None = None,
        prefixes: Sequence[int] | None = None,
        memory: Memory | None = None,
        inputs: Inputs | None = None,
        record: AuxiliaryOutputs | None = None,
        z_loss: float = 0.0,
        soft_targets: SoftTargets | None = None,
        target_weights: Tensor | None = None,
    ) -> Tensor | SummedLoss:
        """`[B, T] -> logits [B, T, V]`; with targets `[B, T]` the summed loss, computed without holding all logits.

        state: the state that the pass continues and advances.
        padding: the number of padding tokens at the start of each row.
        documents: for each row, the places in the chunk where documents begin; no token sees an earlier document.
        prefixes: the number of first tokens of each row that see all of one another.
        memory: the output of `encode`, for a model with an encoder; a state keeps what it needs of it.
        inputs: the arguments of `encode`, instead of `memory`.
        record: collects auxiliary losses and outputs.
        z_loss: see `ops.cross_entropy`. soft_targets: of a teacher (`ops.distillation`), without a z-loss.
        target_weights: of the targets in the total loss, `[B, T]`; None: 1 each.

        `ValueError` if the state has no room for `T` more tokens, or the model does not support an argument.
        """
        if inputs is not None:
            memory = self.encode(*inputs, record)
        x_BTD = self.hidden(
            tokens_BT, state, padding=padding, documents=documents, prefixes=prefixes, memory=memory, record=record
        )
        if targets is None:
            return self.logits(x_BTD)
        return self.token_loss(x_BTD, targets, z_loss, soft_targets, target_weights)

    def hidden(
        self,
        tokens_BT: Tensor,
        state: DecoderState | None = None,
        *,
        padding: Sequence[int] | Tensor | None = None,
        documents: Sequence[Sequence[int]] | None = None,
        prefixes: Sequence[int] | None = None,
        memory: Memory | None = None,
        record: AuxiliaryOutputs | None = None,
    ) -> Tensor:
        """The pass up to the head's matrix, `[B, T] -> [B, T, D]`, or `[B, T, E]` if the head is tied.

        The arguments are those of `forward`; the state is advanced.
        """
        batch, length = tokens_BT.shape
        padded = padding_counts(padding)
        check_layout(batch, length, padded, documents, prefixes)
        has_prefixes = prefixes is not None and any(prefixes)
        self._check_inputs(state, has_prefixes, memory)
        record = AuxiliaryOutputs() if record is None else record
        record.values.clear()
        layout = BatchLayout(0, padded, record=record) if state is None else layout_at(state.positions, padded, record)
        layout = replace(layout, tokens_BT=tokens_BT)
        if documents is not None and any(documents):
            layout = replace(layout, documents=tuple(tuple(sorted(begins)) for begins in documents))
        if prefixes is not None and has_prefixes:
            layout = replace(layout, prefixes=tuple(prefixes))
        if memory is not None:
            layout = replace(layout, memory=memory)
        if state is not None and layout.end(length) > state.capacity:
            room = state.capacity - state.position
            raise ValueError(f"{length} more tokens: the state has room for {room}")
        states = None if state is None else state.by_layer()
        x = run_blocks(self.blocks, self.embedding(tokens_BT, layout), states, layout)
        if state is not None:
            state.positions = layout.positions_after(batch, length)
        return self.after_blocks(x)

    def encode(
        self, inputs_BS: Tensor, padding: Sequence[int] | Tensor | None = None, record: AuxiliaryOutputs | None = None
    ) -> Memory:
        """The memory of inputs `[B, S]` for `forward` and `hidden`; each token sees all of its row.

        padding: the number of padding tokens at the start of each row. record: collects auxiliary losses and outputs;
        values for later layers do not leave the encoder.
        """
        assert self.encoder is not None, "a model without an encoder"
        batch, length = inputs_BS.shape
        padded = padding_counts(padding)
        check_layout(batch, length, padded, None)
        lengths = tuple(length - pad for pad in padded or (0,) * batch)
        if not all(lengths):
            raise ValueError("inputs: a row without a token: expected at least one in each")
        record = AuxiliaryOutputs() if record is None else replace(record, values={})
        layout = BatchLayout(0, padded, prefixes=lengths, record=record, tokens_BT=inputs_BS)
        memory: Memory = self.encoder(self.embedding(inputs_BS, layout), layout)
        return memory

    def _check_inputs(self, state: DecoderState | None, has_prefixes: bool, memory: Memory | None) -> None:
        """`ValueError` for prefixes or memory that the model does not support, and for missing memory."""
        if has_prefixes and not all(mixer.traits.prefix for mixer in self.mixers):
            kinds = ", ".join(dict.fromkeys(b.mixer.kind for b in self.spec.blocks if not b.mixer.supports_prefix))
            raise ValueError(f"prefixes: layers of {kinds} only see earlier tokens, and no prefix as a whole")
        if memory is not None and self.encoder is None:
            raise ValueError("memory: the model has no encoder")
        if memory is None and self.encoder is not None and (state is None or not state.has_memory):
            raise ValueError("memory: missing: the model reads the output of its encoder for an input (`encode`)")

    def after_blocks(self, x: Tensor) -> Tensor:
        """Everything between the last block and the head's matrix: `[B, T, W] -> [B, T, D]`, or E."""
        for module in (self.project, self.norm, self.head_project):
            if module is not None:
                x = module(x)
        factor = self.spec.head.factor(self.spec.d_model)
        return x if factor is None else x * factor

    def logits(self, x_BTD: Tensor) -> Tensor:
        """`[B, T, D] -> [B, T, V]`, with the soft cap of the description."""
        return self.capped(self.uncapped_logits(x_BTD))

    def uncapped_logits(self, x_BTD: Tensor) -> Tensor:
        """The head's product, `[B, T, D] -> [B, T, V]`."""
        logits_BTV: Tensor = linear(x_BTD, self.embedding.tokens.weight) if self.head is None else self.head(x_BTD)
        return logits_BTV

    def capped(self, logits: Tensor) -> Tensor:
        """The logits with the soft cap of the description, if it has one."""
        soft_cap = self.spec.head.soft_cap
        return logits if soft_cap is None else apply_soft_cap(logits, soft_cap)

    def token_loss(
        self,
        x_BTD: Tensor,
        targets_BT: Tensor,
        z_loss: float = 0.0,
        soft_targets: SoftTargets | None = None,
        weights_BT: Tensor | None = None,
    ) -> SummedLoss:
        """The summed loss of the targets in nats, from the output of `hidden`, without holding all logits.

        weights_BT: of the targets in the total; None: 1 each.
        """
        weight, bias = self._head_map()
        x_ND, targets_N, soft_cap = x_BTD.flatten(0, 1), targets_BT.flatten(), self.spec.head.soft_cap
        weights_N = None if weights_BT is None else weights_BT.flatten()
        if soft_targets is None:
            places_M = _counted_places(targets_N)
            if places_M is not None:
                x_ND, targets_N = x_ND[places_M], targets_N[places_M]
                weights_N = None if weights_N is None else weights_N[places_M]
            return linear_cross_entropy(x_ND, weight, bias, targets_N, soft_cap, z_loss, weights_N)
        assert not z_loss, "a z-loss beside a teacher"
        found = linear_distillation(x_ND, weight, bias, targets_N, soft_targets, soft_cap, weights_N)
        return SummedLoss(found.nats, found.correct, found.total, divergence=found.divergence)

    def each_loss(self, x_BTD: Tensor, targets_BT: Tensor) -> TokenLosses:
        """The loss of each target, which `token_loss` sums, `[B, T]`; without gradients."""
        weight, bias = self._head_map()
        losses = token_cross_entropy(x_BTD.flatten(0, 1), weight, bias, targets_BT.flatten(), self.spec.head.soft_cap)
        return TokenLosses(losses.nats.view(targets_BT.shape), losses.correct.view(targets_BT.shape))

    def token_nats(self, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """`-log p(target)` of each target in nats, `[B, T]`, 0 where ignored; with gradients (`linear_token_nats`)."""
        weight, bias = self._head_map()
        x_ND, targets_N, soft_cap = x_BTD.flatten(0, 1), targets_BT.flatten(), self.spec.head.soft_cap
        places_M = _counted_places(targets_N)
        if places_M is None:
            return linear_token_nats(x_ND, weight, bias, targets_N, soft_cap).view(targets_BT.shape)
        nats_M = linear_token_nats(x_ND[places_M], weight, bias, targets_N[places_M], soft_cap)
        return nats_M.new_zeros(len(targets_N)).index_put((places_M,), nats_M).view(targets_BT.shape)

    def values(self, x_BTD: Tensor) -> Tensor:
        """The value of the text up to each token, from the output of `hidden`, `[B, T, D] -> [B, T]` in float32."""
        assert self.value is not None, "a description with head.value"
        precision = torch.promote_types(x_BTD.dtype, torch.float32)
        return (x_BTD.to(precision) * self.value.to(precision)).sum(dim=-1)

    def _head_map(self) -> tuple[Tensor, Tensor | None]:
        """The head's matrix `[V, D]`, if it is tied the embedding's `[V, E]`, and its bias `[V]`."""
        if self.head is None:
            return self.embedding.tokens.weight, None
        return self.head.weight, self.head.bias


def _counted_places(targets_N: Tensor) -> Tensor | None:
    """The places of targets that are not ignored, so that no logits are computed for others; None: all, or none.

    None on a GPU as well, which would have to wait for their number.
    """
    if targets_N.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    places_M = (targets_N != IGNORE_INDEX).nonzero().flatten()
    return places_M if 0 < len(places_M) < len(targets_N) else None


def decoder_with_weights(spec: ModelSpec, tensors: Mapping[str, Tensor]) -> Decoder:
    """A decoder with the tensors of a whole `state_dict`, without copies; on their device and in their precision.

    The state of torch's random generator does not change.
    """
    with torch.random.fork_rng(devices=[]), SkipRandomFills():
        decoder = Decoder(without_calibration_file(spec))
    decoder.spec = spec
    first = next(iter(tensors.values()))
    precision = None if first.dtype == decoder.dtype else first.dtype
    decoder.load_state_dict(tensors, assign=True)
    return decoder.to(device=first.device, dtype=precision)


def meta_decoder(spec: ModelSpec) -> Decoder:
    """A decoder on the device meta, which has shapes but no values."""
    with torch.device("meta"), SkipRandomFills():
        return Decoder(spec)
