"""TED's decoder as the published Python steps it (github.com/biuq/ted): the contestant of `ted_decode.py`.

Every map is a product of its own, ages and rates are rows of their own, relevance is computed anew after the token has
joined, and what stays is taken out of four tensors. Written from docs/layers/ted.md, with linnet's weights.

Legend: `V` vocabulary, `D` width, `F` hidden width, `S` tokens in the context; a batch of one stands before them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnet.layers.feed_forwards.glu import GatedFeedForward
from linnet.layers.mixers.ted import Ted
from linnet.model.decoder import Decoder
from linnet.model.stack import Layer
from linnet.nn.norms import RmsNorm


def linear(weight: Tensor) -> nn.Linear:
    """A map with these weights."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    made.weight = nn.Parameter(weight.detach().clone())
    return made


class PlainNorm(nn.Module):
    """Root mean square, in float32."""

    def __init__(self, norm: nn.Module | None) -> None:
        super().__init__()
        assert isinstance(norm, RmsNorm)
        self.weight, self.eps = norm.weight, norm.eps

    def forward(self, x_1TD: Tensor) -> Tensor:
        wide = x_1TD.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return normed.type_as(x_1TD) * self.weight


class PlainFeedForward(nn.Module):
    """Two maps up, one down."""

    def __init__(self, layer: GatedFeedForward) -> None:
        super().__init__()
        gate_FD, hidden_FD = layer.up.part_weights()
        self.gate, self.hidden, self.back = linear(gate_FD), linear(hidden_FD), linear(layer.down.weight)

    def forward(self, x_1TD: Tensor) -> Tensor:
        hidden_1TF, gate_1TF = self.hidden(x_1TD), self.gate(x_1TD)
        back: Tensor = self.back(hidden_1TF * F.silu(gate_1TF))
        return back


class PlainContext:
    """Ages, rates and norms `[1, 1, S]`, quantities `[1, S, D]`."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.ages = self.minus_rates = self.norms = torch.empty(1, 1, 0)
        self.quantities: Tensor | None = None

    def fading(self) -> Tensor:
        return (self.minus_rates * self.ages).exp()

    def influence(self) -> Tensor | float:
        self.ages = self.ages + torch.linspace(1, 1, 1)
        return 0.0 if self.quantities is None else self.fading() @ self.quantities

    def add(self, minus_rate_11T: Tensor, quantity_1TD: Tensor) -> None:
        norm_11T = torch.linalg.vector_norm(quantity_1TD, dim=-1, keepdim=True).swapaxes(-1, -2)
        self.ages = torch.cat([self.ages, torch.zeros(1, 1, 1)], dim=-1)
        self.minus_rates = torch.cat([self.minus_rates, minus_rate_11T], dim=-1)
        held = quantity_1TD[:, :0] if self.quantities is None else self.quantities
        self.quantities = torch.cat([held, quantity_1TD], dim=-2)
        self.norms = torch.cat([self.norms, norm_11T], dim=-1)
        self.evict()

    def evict(self) -> None:
        assert self.quantities is not None
        relevance = self.norms * self.fading()[..., -1:, :]
        stay = torch.where(relevance >= self.threshold)[2]
        if stay.numel() < 1:
            stay = torch.topk(relevance, 1, dim=-1).indices[0, 0]
        self.ages, self.minus_rates = self.ages[:, :, stay], self.minus_rates[:, :, stay]
        self.quantities, self.norms = self.quantities[:, stay, :], self.norms[:, :, stay]


class PlainDecay(nn.Module):
    """The token mixer with its context."""

    def __init__(self, mixer: Ted, threshold: float) -> None:
        super().__init__()
        quantity_DD, gate_DD = mixer.quantity_gate.part_weights()
        self.quantity, self.gate, self.out = linear(quantity_DD), linear(gate_DD), linear(mixer.out.weight)
        self.rate, self.context = linear(mixer.rate_weight), PlainContext(threshold)
        self.time = torch.zeros(1, 1)

    def forward(self, x_1TD: Tensor) -> Tensor:
        minus_rate_11T = self.rate(x_1TD).sigmoid().log().swapaxes(-1, -2)
        quantity_1TD = self.quantity(x_1TD)
        sum_1TD = (minus_rate_11T * self.time).exp().tril() @ quantity_1TD
        sum_1TD = sum_1TD + self.context.influence()
        self.context.add(minus_rate_11T, quantity_1TD)
        out: Tensor = self.out(F.silu(sum_1TD)) * self.gate(x_1TD)
        return out


class PlainLayer(nn.Module):
    """Two residual branches."""

    def __init__(self, layer: Layer, threshold: float) -> None:
        super().__init__()
        assert isinstance(layer.mixer, Ted) and isinstance(layer.feed_forward, GatedFeedForward)
        self.decay_norm, self.decay = PlainNorm(layer.mixer_norm), PlainDecay(layer.mixer, threshold)
        self.norm, self.feed_forward = PlainNorm(layer.feed_forward_norm), PlainFeedForward(layer.feed_forward)

    def forward(self, x_1TD: Tensor) -> Tensor:
        x_1TD = x_1TD + self.decay(self.decay_norm(x_1TD))
        out: Tensor = x_1TD + self.feed_forward(self.norm(x_1TD))
        return out


class PlainTed(nn.Module):
    """The whole model, one token at a time."""

    def __init__(self, decoder: Decoder, threshold: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(PlainLayer(layer, threshold) for layer in decoder.layers)
        self.norm, self.head = PlainNorm(decoder.norm), linear(decoder.embedding.tokens.weight)

    def sizes(self) -> list[int]:
        """Tokens in the context of each layer."""
        return [layer.decay.context.ages.shape[-1] for layer in self.layers if isinstance(layer, PlainLayer)]

    def step(self, token: int) -> Tensor:
        """Logits `[V]` after this token."""
        x_1TD = F.embedding(torch.tensor([[token]]), self.head.weight)
        for layer in self.layers:
            x_1TD = layer(x_1TD)
        logits: Tensor = self.head(self.norm(x_1TD))
        return logits[0, 0]
