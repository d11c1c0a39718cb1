"""One stream of a TED model, one token at a time, in as few operations as can be.

A step of decoding reads each weight once and does little else, so that on a processor what lies between the products
takes longer than they do: calls of modules, views, norms. Here are the same steps on rows `[1, D]`, straight from the
weights. What it serves, `TedSteps.of` decides; everything else takes the decoder's own pass.

Legend: `D` width, `N` heads, `F` hidden width; rows are `[1, ...]`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.mixers.ted import Ted
from linnet.mixers.ted_state import TedState
from linnet.model.decoder import Decoder, Layer
from linnet.model.state import DecoderState
from linnet.nn.feed_forward import GatedFeedForward
from linnet.nn.linear import Linear
from linnet.nn.norms import RmsNorm
from linnet.ops.linear import SLICED, linear

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _Weights:
    """What one layer's step needs; `joint` gives quantity, gate, and the logits of the rates times -1: `2 D + N`."""

    norms: tuple[tuple[Tensor, float], tuple[Tensor, float]]
    joint: Map
    out: Map
    up: Map
    down: Map

    @classmethod
    def of(cls, layer: Layer) -> Self | None:
        """None where the layer is another, or its weights are packed."""
        mixer, hidden, norms = layer.mixer, layer.feed_forward, (layer.mixer_norm, layer.feed_forward_norm)
        if not (layer.pre and not layer.parallel and isinstance(mixer, Ted) and isinstance(hidden, GatedFeedForward)):
            return None
        maps = (mixer.quantity_gate, mixer.out, hidden.up, hidden.down)
        if hidden.activation != "silu" or not all(isinstance(module, Linear) for module in maps):
            return None
        first, second = norms
        if not (isinstance(first, RmsNorm) and isinstance(second, RmsNorm)):
            return None
        gains = ((first.weight, first.eps), (second.weight, second.eps))
        return cls(gains, _joint(mixer), *(_map(module.weight, module.bias) for module in maps[1:]))


class _Step:
    """One layer and its state."""

    def __init__(self, weights: _Weights, state: TedState) -> None:
        self._weights, self._read = weights, state.row_reader()
        self._width = len(weights.norms[0][0])
        self._zero = torch.zeros((), device="cpu")

    def take(self, x_1D: Tensor, position: int) -> Tensor:
        weights, width = self._weights, self._width
        joint = weights.joint(self._normed(x_1D, *weights.norms[0]))
        sum_1D = self._read(F.softplus(joint[:, 2 * width :]), joint[:, :width], position)
        x_1D = torch.addcmul(x_1D, weights.out(F.silu(sum_1D)), joint[:, width : 2 * width])
        hidden = weights.up(self._normed(x_1D, *weights.norms[1]))
        half = hidden.shape[1] // 2
        return x_1D + weights.down(F.silu(hidden[:, :half]).mul_(hidden[:, half:]))

    def _normed(self, x_1D: Tensor, gain_D: Tensor, eps: float) -> Tensor:
        """RMS norm; its scale is one of Python's numbers, which saves three operations."""
        x_D = x_1D[0]
        scale = (float(torch.dot(x_D, x_D)) / self._width + eps) ** -0.5
        return torch.addcmul(self._zero, x_1D, gain_D, value=scale)


class TedSteps:
    """The layers of a decoder and their states; `read` advances them."""

    def __init__(self, decoder: Decoder, state: DecoderState, steps: list[_Step]) -> None:
        self._decoder, self._state, self._steps = decoder, state, steps

    @classmethod
    def of(cls, decoder: Decoder, state: DecoderState) -> Self | None:
        """For one stream in float32 on a processor, through pre-norm layers of TED with plain weights; else None."""
        if decoder.device.type != "cpu" or decoder.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
            return None
        if not _is_plain(decoder):
            return None
        states = [layer for layer in state.layers if isinstance(layer, TedState)]
        one_row = state.padding_B is None and all(len(held) == 1 for one in states for held in one.tensors().values())
        if not one_row or len(states) < len(decoder.layers):
            return None
        steps = []
        for layer, layer_state in zip(decoder.layers, states, strict=True):
            weights = _Weights.of(layer)
            if weights is None:
                return None
            steps.append(_Step(weights, layer_state))
        return cls(decoder, state, steps)

    @torch.inference_mode()
    def read(self, token_11: Tensor) -> Tensor:
        """As `Decoder.hidden` of one token: `[1, 1, D]`."""
        state, decoder = self._state, self._decoder
        if state.position >= state.capacity:
            raise ValueError("1 more tokens: the state has room for 0")
        x_1D = F.embedding(token_11[0], decoder.embedding.tokens.weight)
        for step in self._steps:
            x_1D = step.take(x_1D, state.position)
        state.position += 1
        x_11D: Tensor = x_1D[None] if decoder.norm is None else decoder.norm(x_1D[None])
        return x_11D


def _is_plain(decoder: Decoder) -> bool:
    """Whether a token's vector goes through the layers as it comes out of the table."""
    embedding = decoder.embedding
    one_width = all(block.width is None for block in decoder.spec.blocks)
    one_width = one_width and decoder.spec.embedding.width is None
    return one_width and embedding.positions is None and embedding.norm is None and embedding.scale is None


def _joint(mixer: Ted) -> Map:
    weight = torch.cat([mixer.quantity_gate.weight, -mixer.rate_weight]).detach()
    if mixer.rate_bias is None:
        return _map(weight, None)
    return _map(weight, F.pad(-mixer.rate_bias.detach(), (mixer.quantity_gate.out_features, 0)))


def _map(weight_OI: Tensor, bias_O: Tensor | None) -> Map:
    """`x W^T + b` of a row; the transposed view is made once."""
    if SLICED:
        return lambda x_1I: linear(x_1I, weight_OI, bias_O)
    weight_IO = weight_OI.t()
    if bias_O is None:
        return lambda x_1I: torch.mm(x_1I, weight_IO)
    return lambda x_1I: torch.addmm(bias_O, x_1I, weight_IO)
