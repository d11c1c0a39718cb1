"""TED's decoder as the published Python steps it: every map a product of its own, the context a list of tensors.

The contestant of `ted_decode.py`; written from the description in docs/mixers/ted.md, with linnet's weights.

Legend: `V` vocabulary, `D` width, `F` hidden width, `S` tokens in the context.
"""

import torch
import torch.nn.functional as F
from linnet.nn.norms import RmsNorm
from torch import Tensor

from linnet.mixers.ted import Ted
from linnet.model.decoder import Decoder, Layer
from linnet.nn.feed_forward import GatedFeedForward


def rms(x: Tensor, gain_D: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * gain_D


class PlainLayer:
    """One layer and its context: ages, rates, norms `[S]` and quantities `[S, D]`."""

    def __init__(self, layer: Layer, threshold: float) -> None:
        mixer, feed_forward = layer.mixer, layer.feed_forward
        assert isinstance(mixer, Ted) and isinstance(feed_forward, GatedFeedForward)
        assert isinstance(layer.mixer_norm, RmsNorm) and isinstance(layer.feed_forward_norm, RmsNorm)
        self.norms = [(norm.weight, norm.eps) for norm in (layer.mixer_norm, layer.feed_forward_norm)]
        self.quantity_DD, self.gate_DD = mixer.quantity_gate.part_weights()
        self.rate_1D, self.out_DD = mixer.rate_weight, mixer.out.weight
        self.hidden_gate_FD, self.hidden_FD = feed_forward.up.part_weights()
        self.back_DF, self.threshold = feed_forward.down.weight, threshold
        self.ages = self.minus_rates = self.magnitudes = torch.empty(0)
        self.quantities = torch.empty(0, len(self.out_DD))

    def step(self, x_D: Tensor) -> Tensor:
        x_D = x_D + self.decay(rms(x_D, *self.norms[0]))
        y_D = rms(x_D, *self.norms[1])
        return x_D + F.linear(F.linear(y_D, self.hidden_FD) * F.silu(F.linear(y_D, self.hidden_gate_FD)), self.back_DF)

    def decay(self, x_D: Tensor) -> Tensor:
        minus_rate = F.linear(x_D, self.rate_1D).sigmoid().log()
        quantity_D = F.linear(x_D, self.quantity_DD)
        self.ages = self.ages + 1
        sum_D = quantity_D + (self.minus_rates * self.ages).exp() @ self.quantities
        self.ages = torch.cat([self.ages, torch.zeros(1)])
        self.minus_rates = torch.cat([self.minus_rates, minus_rate])
        self.quantities = torch.cat([self.quantities, quantity_D[None]])
        self.magnitudes = torch.cat([self.magnitudes, torch.linalg.vector_norm(quantity_D, keepdim=True)])
        self.evict()
        return F.linear(F.silu(sum_D), self.out_DD) * F.linear(x_D, self.gate_DD)

    def evict(self) -> None:
        relevance = self.magnitudes * (self.minus_rates * self.ages).exp()
        (stay,) = torch.where(relevance >= self.threshold)
        if stay.numel() == 0:
            stay = torch.topk(relevance, 1).indices
        self.ages, self.minus_rates = self.ages[stay], self.minus_rates[stay]
        self.quantities, self.magnitudes = self.quantities[stay], self.magnitudes[stay]


class PlainTed:
    """The whole model, one token at a time."""

    def __init__(self, decoder: Decoder, threshold: float) -> None:
        self.embedding_VD = decoder.embedding.tokens.weight
        self.layers = [PlainLayer(layer, threshold) for layer in decoder.layers]
        assert isinstance(decoder.norm, RmsNorm)
        self.norm = (decoder.norm.weight, decoder.norm.eps)

    def step(self, token: int) -> Tensor:
        """Logits `[V]` after this token."""
        x_D = self.embedding_VD[token]
        for layer in self.layers:
            x_D = layer.step(x_D)
        return F.linear(rms(x_D, *self.norm), self.embedding_VD)
