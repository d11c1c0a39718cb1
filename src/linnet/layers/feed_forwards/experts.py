"""Mixture of experts: many feed-forwards, of which a router chooses a few for each token.

As in Mixtral (Jiang et al., arXiv 2401.04088) and, with a shared expert behind a gate, Qwen's (arXiv 2407.10671). The
router computes in float32 at least; a pass of training adds a loss that keeps all experts in use, and one that keeps
the router's logits small (`ops.experts`).

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
from linnet.layers.batch_layout import EXPERTS_USED, AuxiliaryOutputs, BatchLayout
from linnet.layers.contract import DecodeStep, FeedForward, FeedForwardSpec, MuonParameter, Place, Traits
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
    """`experts` feed-forwards of width `hidden` within; each token goes to `top_k` of them.

    gated: whether they are gated feed-forwards or plain ones. scoring, normalize: see `ops.routing.routes`. shared: the
    width within one more, which every token passes (null: there is none). shared_gate: multiply that by a sigmoid of
    the token. capacity: in training an expert takes so many times its even share of a row's tokens, and what is beyond
    is dropped (null: nothing ever is). balance, router_z: coefficients of the two losses.
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
        """As in Mixtral; as Qwen's with a shared expert; plain experts scored by sigmoids, which drop in training."""
        plain = cls(hidden=6, experts=4, gated=False, activation="gelu", scoring="sigmoid", capacity=0.5, shared=5)
        return [
            cls(hidden=12, experts=4),
            cls(hidden=6, experts=5, top_k=3, normalize=False, activation="relu_squared", shared=8, router_z=0.0),
            plain.model_copy(update={"shared_gate": False, "top_k": 1, "normalize": False, "balance": 0.1}),
        ]

    def check(self, width: int) -> None:
        """A token cannot go to more experts than there are."""
        if self.top_k > self.experts:
            raise ValueError(f"top_k: {self.top_k}: must be at most experts, {self.experts}")
        if self.shared is None and not self.shared_gate:
            raise ValueError("shared_gate: False: is that of a shared expert; give shared, its width within, too")

    def part(self, hidden: int) -> GatedSpec | PlainSpec:
        """The description of one expert."""
        kind = GatedSpec if self.gated else PlainSpec
        return kind(hidden=hidden, activation=self.activation)

    def build(self, place: Place) -> "Experts":
        return Experts(self, place)

    def cost(self, place: Place) -> Cost:
        """All experts are stored, a token passes `top_k`; the router's map is in float32 and no matrix of few bits."""
        width, count, k = place.width, self.experts, self.top_k
        up = linear_cost(width, self.hidden, False).repeated(2 if self.gated else 1)
        expert = up + linear_cost(self.hidden, width, False)
        routed = Cost(
            parameters=count * (expert.parameters + width),
            matrices=expert.matrices * count,
            inactive_experts=expert.matrices * (count - k),
            flops_per_token=k * expert.flops_per_token + 2 * width * count,
            activations_per_token=width + k * len(up.matrices) * self.hidden + self._kept_of_routes(),
        )
        return routed if self.shared is None else routed + self._shared_cost(place, self.shared)

    def _kept_of_routes(self) -> int:
        """Scores, weights, and as whole numbers of 8 bytes the chosen experts and the places sorted by them."""
        divided = self.top_k + 2 if self.normalize else 0
        return self.experts + 5 * self.top_k + divided

    def _shared_cost(self, place: Place, hidden: int) -> Cost:
        """It keeps what the router keeps; its gate one number, and what it multiplies."""
        shared = self.part(hidden).cost(place) + Cost(activations_per_token=-place.width)
        if self.shared_gate:
            shared += linear_cost(place.width, 1, False) + Cost(activations_per_token=place.width + 1)
        return shared


class Router(nn.Module):
    """The logits of the experts, in float32 at least: in fewer bits a rounding decides the route."""

    def __init__(self, d_model: int, count: int) -> None:
        super().__init__()
        self.map = Linear(d_model, count, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., D] -> [..., E]`."""
        precision = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.to(precision), self.map.weight.to(precision))


class Experts(FeedForward):
    """A router, experts, and maybe one that is shared."""

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
        logits_BTE = self.router(x_BTD)
        found = self._routes(logits_BTE)
        if layout.collects_outputs:
            layout.add_output(EXPERTS_USED, torch.stack([counts(row_TK, self.spec.experts) for row_TK in found.chosen]))
        chosen_BTK = self._trained(logits_BTE, found, layout) if layout.training else found.chosen
        out_RD = self._mixed(x_BTD.flatten(0, 1), found.weight.flatten(0, 1), chosen_BTK.flatten(0, 1))
        out_BTD = out_RD.view_as(x_BTD)
        return out_BTD if self.shared is None else out_BTD + self._shared(x_BTD)

    def _routes(self, logits: Tensor) -> Routes:
        return routes(logits, self.spec.top_k, self.spec.scoring, self.spec.normalize)

    def _mixed(self, x_RD: Tensor, weight_RK: Tensor, chosen_RK: Tensor) -> Tensor:
        parts = list(self._parts())
        if not (torch.is_grad_enabled() and all(isinstance(part.up, Linear) for part in parts)):
            out_RD: Tensor = dispatch_experts(x_RD, weight_RK, chosen_RK, parts)
            return out_RD
        ups, downs = [part.up.weight for part in parts], [part.down.weight for part in parts]
        return self.mix(x_RD, weight_RK, chosen_RK, ups, downs, parts[0].inner)

    def _shared(self, x_BTD: Tensor) -> Tensor:
        assert self.shared is not None
        out_BTD: Tensor = self.shared(x_BTD)
        return out_BTD if self.shared_gate is None else self.shared_gate(x_BTD).sigmoid() * out_BTD

    def _parts(self) -> Iterator[GatedFeedForward | PlainFeedForward]:
        """The experts, typed."""
        return (part for part in self.experts if isinstance(part, GatedFeedForward | PlainFeedForward))

    def _trained(self, logits_BTE: Tensor, found: Routes, layout: BatchLayout) -> Tensor:
        """The experts that tokens go to in training, `[B, T, K]`; losses and figures go into the layout.

        Shares of tokens are those of the whole batch, whatever part of its rows this process reads.
        """
        spec, chosen_BTK, real_BT = self.spec, found.chosen, layout.real(logits_BTE.shape[1], logits_BTE.device)
        score_RE, logits_RE = found.score.flatten(0, 1), logits_BTE.flatten(0, 1)
        if real_BT is not None:
            chosen_BTK = chosen_BTK.masked_fill(~real_BT[..., None], spec.experts)
            score_RE, logits_RE = found.score[real_BT], logits_BTE[real_BT]
        used_E = self.total(counts(chosen_BTK, spec.experts))
        share_E = spec.top_k * used_E.to(score_RE.dtype) / used_E.sum()
        if spec.balance:
            layout.add_loss("balance", balance_loss(score_RE, share_E), spec.balance)
        if spec.router_z:
            layout.add_loss("router_z", router_z_loss(logits_RE), spec.router_z)
        for number, share in enumerate((share_E / spec.top_k).unbind()):
            layout.add_figure(f"layer{self.index}.expert{number}", share)
        return chosen_BTK if spec.capacity is None else self._within(chosen_BTK, spec.capacity, layout)

    def _within(self, chosen_BTK: Tensor, capacity: float, layout: BatchLayout) -> Tensor:
        count, even = self.spec.experts, chosen_BTK[0].numel() / self.spec.experts
        kept_BTK = within_capacity(chosen_BTK, count, max(1, math.ceil(capacity * even)))
        before, after = ((choices != count).sum() for choices in (chosen_BTK, kept_BTK))
        layout.add_figure("dropped", 1 - after / before)
        return kept_BTK

    def muon_parameters(self) -> Iterator[MuonParameter]:
        """All but the router's and the gate's, which give no hidden vector."""
        for part in (*self._parts(), self.shared):
            if part is not None:
                yield from part.muon_parameters()

    def skip_quantization(self) -> Iterator[nn.Module]:
        """The router: a rounding of its weights sends tokens elsewhere."""
        yield self.router

    def output_projections(self) -> Iterator[nn.Linear]:
        """Each expert's."""
        for part in (*self._parts(), self.shared):
            if part is not None:
                yield from part.output_projections()

    def decode_step(self, state: State | None, record: AuxiliaryOutputs | None = None) -> DecodeStep | None:
        found = [part.decode_step(None) for part in self._parts()]
        steps = [step for step in found if step is not None]
        shared = None if self.shared is None else self.shared.decode_step(None)
        if len(steps) < len(found) or (self.shared is not None and shared is None):
            return None
        zero_1D = torch.zeros(1, self.router.map.in_features, device=self.router.map.weight.device)

        def step(sum_1D: Tensor, x_1D: Tensor, position: int) -> Tensor:
            found = self._routes(self.router(x_1D))
            for expert, weight in zip(found.chosen[0].tolist(), found.weight[0].tolist(), strict=True):
                sum_1D = sum_1D.add(steps[expert](zero_1D, x_1D, position), alpha=weight)
            if shared is None:
                return sum_1D
            gate = 1.0 if self.shared_gate is None else float(self.shared_gate(x_1D).sigmoid())
            return sum_1D.add(shared(zero_1D, x_1D, position), alpha=gate)

        return step
