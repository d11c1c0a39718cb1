"""The description of power-law graph attention, and what it costs.

Gokden, "PLDR-LLMs learn a generalizable tensor operator that can replace its own deep neural net at inference"
(arXiv 2502.13502).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import model_validator
from torch import Tensor

from linnet.core.spec import Count, Extent
from linnet.layers.attention_cost import AttentionShape
from linnet.layers.cache_policy import CachePolicy, RecalibratingCache
from linnet.layers.contract import MixerSpec, Place
from linnet.layers.mixers.plga.density import DensitySpec, density_cost
from linnet.layers.mixers.plga.files import OPERATOR, choose_operators, save_operators
from linnet.layers.mixers.plga.module import Plga
from linnet.layers.mixers.plga.operator import Start, fixed_cost, operator_cost
from linnet.layers.rotary import RotarySpec, check_heads
from linnet.nn.cost import Cost, linear_cost

NET_FIELDS = ("metric_hidden", "residual_units", "gated_units", "density", "start")
"""The fields that describe the net behind a learned operator."""


class PlgaSpec(MixerSpec):
    """Power-law graph attention; `metric_hidden` is the paper's `A_dff`.

    operator: `learned`, deduced from the text by a net; or `fixed`, one matrix per head that is given and not trained
    (the paper's v51G), without a net. The fields below `rotary` describe the net and go with `learned`.

    density: the text that the operator is deduced from.

    start: the operator's starting values, the paper's or near the identity (which short runs need).
    """

    cache_policies: ClassVar[tuple[type[CachePolicy], ...]] = (RecalibratingCache,)

    kind: Literal["plga"] = "plga"
    heads: Extent
    operator: Literal["learned", "fixed"] = "learned"
    rotary: RotarySpec | None = RotarySpec(pairing="adjacent")
    metric_hidden: Extent = 170
    residual_units: Count = 8
    gated_units: Count = 2
    density: DensitySpec = DensitySpec()
    start: Start = "paper"

    @model_validator(mode="after")
    def _no_net_behind_a_fixed_operator(self) -> Self:
        for name in NET_FIELDS if self.operator == "fixed" else ():
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise ValueError(f"{name}: {value}: goes with operator: learned; a fixed operator has no net")
        return self

    @classmethod
    def examples(cls) -> list[Self]:
        """One head and several; different depths of the net behind the operator; no positions; causal, nearly so."""
        return [
            cls(heads=2, metric_hidden=12, residual_units=2),
            cls(heads=1, metric_hidden=5, residual_units=1, gated_units=1, rotary=None, start="identity"),
            cls(heads=2, metric_hidden=6, residual_units=1, density=DensitySpec(scope="prefix")),
            cls(
                heads=2,
                metric_hidden=6,
                residual_units=1,
                start="identity",
                density=DensitySpec(scope="prefix", tokens=3),
            ),
            cls(heads=2, operator="fixed"),
        ]

    def check(self, width: int) -> None:
        """Heads must divide the width."""
        check_heads(self.heads, None, width, self.rotary)

    @property
    def calibration(self) -> Literal["text", "stored"]:
        return "text" if self.operator == "learned" else "stored"

    def with_calibration(self, where: Literal["text", "stored"]) -> "PlgaSpec":
        """A fixed operator has no net, and so none of the fields that describe one."""
        kept = self.model_dump(exclude=set(NET_FIELDS) if where == "stored" else None)
        return PlgaSpec.model_validate({**kept, "operator": "learned" if where == "text" else "fixed"})

    @classmethod
    def read_calibrations(
        cls, source: str, shapes: Sequence[Mapping[str, Sequence[int]]], origin: str
    ) -> list[dict[str, Tensor]]:
        operators = choose_operators(source, [shape[OPERATOR] for shape in shapes], origin)
        return [{OPERATOR: operator} for operator in operators]

    @classmethod
    def save_calibrations(cls, layers: Sequence[Mapping[str, Tensor]], path: str | Path) -> None:
        save_operators(layers, path)

    def build(self, place: Place) -> Plga:
        """Build the module."""
        return Plga(self, place.width)

    def cost(self, place: Place) -> Cost:
        """Attention's cost, `q G` for each token, and the net behind a learned operator once per sequence."""
        d_model = place.width
        head_dim = d_model // self.heads
        projections = linear_cost(d_model, d_model, bias=True).repeated(4)
        shape = AttentionShape(self.heads, self.heads, head_dim, self.rotary is not None)
        pairs = shape.cost() + Cost(flops_per_token=2 * d_model * head_dim, activations_per_token=2 * d_model)
        if self.operator == "fixed":
            return projections + pairs + fixed_cost(self.heads, head_dim)
        net = operator_cost(self.heads, head_dim, self.metric_hidden, self.residual_units, self.gated_units)
        return projections + pairs + net + density_cost(self.heads, head_dim, self.density.prefix)
