"""Mixture of experts: a router chooses a few of many feed-forwards for each token.

As in Mixtral (Jiang et al., arXiv 2401.04088) and, with a gated shared expert, in Qwen (arXiv 2407.10671). The router
computes in float32 at least. Training passes add a loss that keeps all experts in use, and one that keeps the logits of
the router small (`ops.experts`).

Shapes: `B` batch, `T` tokens, `R` tokens of all rows, `D` width, `E` experts, `K` experts of a token, `U` outputs of
an expert's first map, `F` its hidden width.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor, nn

from linnet.core.spec import Count, Extent
from linnet.layers.batch_layout import EXPERTS_USED, BatchLayout
from linnet.layers.contract import FeedForward, FeedForwardSpec, MuonParameter, Place, Traits
from linnet.layers.feed_forwards.glu import GatedFeedForward, GatedSpec
from linnet.layers.feed_forwards.mlp import PlainFeedForward, PlainSpec
from linnet.layers.state import State
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.gates import Activation
from linnet.nn.linear import Linear
from linnet.ops.experts import (
    Routes,
    Scoring,
    balance_loss,
    counts,
    dispatch_experts,
    experts,
    experts_reference,
    router_z_loss,
    routes,
    within_capacity,
)


class ExpertsSpec(FeedForwardSpec):
    """`experts` feed-forwards of hidden width `hidden`; each token goes to `top_k` of them.

    gated: whether they are gated or plain feed-forwards. scoring, normalize: see `ops.experts.routes`. shared: the
    hidden width of one more feed-forward, which every token passes (null: none). shared_gate: multiply its output by a
    sigmoid of the token. capacity: in training, the largest number of a row's tokens per expert, as a multiple of the
    mean; further tokens are dropped (null: no limit). balance, router_z: coefficients of the two losses.
    """

    kind: Literal["experts"] = "experts"
    experts: Count
    top_k: Count = 2
    gated: bool = True
    activation: Activation = "silu"
    scoring: Scoring = "softmax"
    normalize: bool = True
    shared: Extent | None = None
    shared_gate: bool = True
    capacity: PositiveFloat | None = None
    balance: NonNegativeFloat = 0.01
    router_z: NonNegativeFloat = 0.001

    @classmethod
    def examples(cls) -> list[Self]:
        """As in Mixtral; as in Qwen with a shared expert; plain experts with sigmoid scores that drop in training."""
        plain = cls(hidden=6, experts=4, gated=False, activation="gelu", scoring="sigmoid", capacity=0.5, shared=5)
        return [
            cls(hidden=12, experts=4),
            cls(hidden=6, experts=5, top_k=3, normalize=False, activation="relu_squared", shared=8, router_z=0.0),
            plain.model_copy(update={"shared_gate": False, "top_k": 1, "normalize": False, "balance": 0.1}),
        ]

    def check(self, width: int) -> None:
        """Check the fields that depend on each other."""
        if self.top_k > self.experts:
            raise ValueError(f"top_k: {self.top_k}: must be at most experts, {self.experts}")
        if self.shared is None and not self.shared_gate:
            raise ValueError("shared_gate: False: requires a shared expert; give shared, its hidden width, too")

    def part(self, hidden: int) -> GatedSpec | PlainSpec:
        """The spec of one expert."""
        kind = GatedSpec if self.gated else PlainSpec
        return kind(hidden=hidden, activation=self.activation)

    def build(self, place: Place) -> "Experts":
        return Experts(self, place)

    def cost(self, place: Place) -> Cost:
        """All experts are stored, a token passes `top_k`; the router is in float32 and never quantized."""
        width, count, k = place.width, self.experts, self.top_k
        up = linear_cost(width, self.hidden, False).repeated(2 if self.gated else 1)
        expert = up + linear_cost(self.hidden, width, False)
        # Scores and weights are kept, and as int64 the chosen experts and the tokens sorted by expert.
        routes_memory = count + 5 * k + (k + 2 if self.normalize else 0)
        cost = Cost(
            parameters=count * (expert.parameters + width),
            matrices=expert.matrices * count,
            inactive_experts=expert.matrices * (count - k),
            flops_per_token=k * expert.flops_per_token + 2 * width * count,
            activations_per_token=width + k * len(up.matrices) * self.hidden + routes_memory,
        )
        if self.shared is None:
            return cost
        cost += self.part(self.shared).cost(place) + Cost(activations_per_token=-width)  # the router keeps its input
        if self.shared_gate:
            cost += linear_cost(width, 1, False) + Cost(activations_per_token=width + 1)
        return cost


class Router(nn.Module):
    """The logits of the experts, in float32 at least: with fewer bits, rounding would decide the route."""

    def __init__(self, d_model: int, count: int) -> None:
        super().__init__()
        self.map = Linear(d_model, count, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., D] -> [..., E]`."""
        precision = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.to(precision), self.map.weight.to(precision))


class Experts(FeedForward):
    """A router, experts, and an optional shared expert."""

    references: ClassVar[Mapping[str, Callable[..., Any]]] = {"mix": experts_reference}

    def __init__(self, spec: ExpertsSpec, place: Place) -> None:
        super().__init__()
        self.spec, self.index = spec, place.index
        self.traits = Traits(constant_state=True, window=1, same_in_training=spec.capacity is None)
        self.router = Router(place.width, spec.experts)
        self.experts = nn.ModuleList(spec.part(spec.hidden).build(place) for _ in range(spec.experts))
        self.shared = None if spec.shared is None else spec.part(spec.shared).build(place)
        gated = spec.shared is not None and spec.shared_gate
        self.shared_gate = Linear(place.width, 1, bias=False) if gated else None
        self.mix = experts

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        spec, logits_BTE = self.spec, self.router(x_BTD)
        routing = routes(logits_BTE, spec.top_k, spec.scoring, spec.normalize)
        real_BT, real_BTK = layout.real(x_BTD.shape[1], x_BTD.device), routing.chosen
        if real_BT is not None:
            real_BTK = real_BTK.masked_fill(~real_BT[..., None], spec.experts)
        if layout.collects_outputs:
            layout.add_output(EXPERTS_USED, torch.stack([counts(row_TK, spec.experts) for row_TK in real_BTK]))
        routing = routing._replace(chosen=real_BTK) if layout.training else routing
        chosen_BTK = self._train_routing(logits_BTE, routing, real_BT, layout) if layout.training else routing.chosen
        x_RD, weight_RK, chosen_RK = x_BTD.flatten(0, 1), routing.weight.flatten(0, 1), chosen_BTK.flatten(0, 1)
        parts = self._parts()
        if torch.is_grad_enabled() and all(isinstance(part.up, Linear) for part in parts):
            ups, downs = [part.up.weight for part in parts], [part.down.weight for part in parts]
            out_RD = self.mix(x_RD, weight_RK, chosen_RK, ups, downs, parts[0].inner)
        else:
            out_RD = dispatch_experts(x_RD, weight_RK, chosen_RK, parts)
        out_BTD = out_RD.view_as(x_BTD)
        if self.shared is None:
            return out_BTD
        shared_BTD: Tensor = self.shared(x_BTD)
        if self.shared_gate is not None:
            shared_BTD = self.shared_gate(x_BTD).sigmoid() * shared_BTD
        return out_BTD + shared_BTD

    def _parts(self) -> list[GatedFeedForward | PlainFeedForward]:
        """The experts, with their type."""
        return [part for part in self.experts if isinstance(part, GatedFeedForward | PlainFeedForward)]

    def _train_routing(
        self, logits_BTE: Tensor, routing: Routes, real_BT: Tensor | None, layout: BatchLayout
    ) -> Tensor:
        """The experts that tokens go to in training, `[B, T, K]`; adds losses and figures to the layout.

        The fractions of tokens per expert are those of the whole batch, over all processes. Padding goes to none.
        """
        spec, chosen_BTK = self.spec, routing.chosen
        score_RE, logits_RE = routing.score.flatten(0, 1), logits_BTE.flatten(0, 1)
        if real_BT is not None:
            score_RE, logits_RE = routing.score[real_BT], logits_BTE[real_BT]
        used_E = self.total(counts(chosen_BTK, spec.experts))
        share_E = spec.top_k * used_E.to(score_RE.dtype) / used_E.sum()
        if spec.balance:
            layout.add_loss("balance", balance_loss(score_RE, share_E), spec.balance)
        if spec.router_z:
            layout.add_loss("router_z", router_z_loss(logits_RE), spec.router_z)
        for number, share in enumerate((share_E / spec.top_k).unbind()):
            layout.add_loss(f"layer{self.index}.expert{number}", share.detach(), 0.0)
        if spec.capacity is None:
            return chosen_BTK
        longest = chosen_BTK.shape[1] - min(layout.padding_of(len(chosen_BTK)))
        mean = longest * spec.top_k / spec.experts
        kept_BTK = within_capacity(chosen_BTK, spec.experts, max(1, math.ceil(spec.capacity * mean)))
        before, after = ((choices != spec.experts).sum() for choices in (chosen_BTK, kept_BTK))
        layout.add_loss("dropped", (1 - after / before).detach(), 0.0)
        return kept_BTK

    def muon_parameters(self) -> Iterator[MuonParameter]:
        """All matrices except those of the router and the gate, whose outputs are not hidden vectors."""
        for part in (*self._parts(), self.shared):
            if part is not None:
                yield from part.muon_parameters()

    def skip_quantization(self) -> Iterator[nn.Module]:
        """The router: rounded weights would change the routes of tokens."""
        yield self.router

    def output_projections(self) -> Iterator[nn.Linear]:
        """Those of the experts."""
        for part in (*self._parts(), self.shared):
            if part is not None:
                yield from part.output_projections()
