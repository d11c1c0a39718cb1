"""Power-law graph attention: attention through an operator that a deep network deduces from the text.

Gokden, "PLDR-LLMs learn a generalizable tensor operator that can replace its own deep neural net at inference" (arXiv
2502.13502). Scores are `q G k^T / sqrt(K)`, so a fused attention kernel computes them from `q G`.

Shapes: `B` batch, `T` tokens of the chunk, `H` heads, `K` head width, `D` model width.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn

from linnet.core.spec import Amount, Count, Extent, Spec
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy, FullCache, RecalibratingCache
from linnet.layers.contract import Mixer, MixerSpec, MuonParameter, Place, Traits, muon_parameter_of
from linnet.layers.key_value import (
    AttentionShape,
    KeyValueState,
    cache_dtype,
    key_value_tensors,
    visible_keys,
)
from linnet.layers.mixers.plga.files import OPERATOR, choose_operators, save_operators
from linnet.layers.mixers.plga.operator import (
    OUTPUTS,
    DeductiveOutputs,
    FixedOperator,
    PowerLawOperator,
    Start,
    acyclicity,
    fixed_cost,
    operator_cost,
)
from linnet.layers.rotary import RotarySpec, check_heads, queries_keys_values
from linnet.layers.state import State
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import FusedLinear, Linear
from linnet.ops.attention import KeyRange, attention, attention_reference
from linnet.ops.power_law import density


class DensitySpec(Spec):
    """The tokens that the density matrix is summed over.

    scope: `sequence`: all of the first chunk, in training the whole sequence, with later tokens (the paper).
    `prefix`: the first `tokens` of a stream, 1 by default (an extension of linnet). Later tokens do not change the
    operator, and it is the same in training and inference. With 1, the token that starts a document, the mixer is
    causal.
    """

    scope: Literal["sequence", "prefix"] = "sequence"
    tokens: Amount | None = None

    @model_validator(mode="after")
    def _tokens_need_a_prefix(self) -> Self:
        if self.scope == "sequence" and self.tokens is not None:
            raise ValueError(f"tokens: {self.tokens}: must be null with scope: sequence")
        return self

    @property
    def prefix(self) -> int | None:
        """The number of tokens; None for all."""
        return None if self.scope == "sequence" else self.tokens or 1


def density_cost(heads: int, head_dim: int, tokens: int | None) -> Cost:
    """`q^T q` of every head over the first `tokens` of a sequence; None: over all."""
    flops = 2 * heads * head_dim**2
    copied = 2 * heads * head_dim if heads > 1 else 0
    if tokens is None:
        return Cost(flops_per_token=flops, activations_per_token=copied)
    return Cost(
        flops_by_length=(lambda length: flops * min(length, tokens),),
        activation_memory=(lambda sequences, length: sequences * copied * min(length, tokens),),
    )


PENALTY = "dag"
PENALTIES = {PENALTY: {"a_lm": 0.05, "a_p": 0.05, "g": 0.05}}
"""The acyclicity regularizer, with the coefficients of the paper's DAG model for each of these tensors."""


@dataclass
class PlgaState(KeyValueState):
    """Keys, values, and the operator `[B, H, K, K]`, which is deduced from the first chunk (the prompt).

    recalibrate: store `A` instead of the operator, which each chunk computes from it again (the paper's KV-cache
    without its G-cache).
    """

    operator: Tensor | None = None
    a: Tensor | None = None
    recalibrate: bool = False

    @property
    def cache_policy(self) -> CachePolicy:
        return RecalibratingCache() if self.recalibrate else FULL

    def forget(self) -> Self:
        """A copy without tokens, with the operator, for reuse of a frozen operator."""
        return self.fork()

    def crop(self, length: int) -> None:
        """Forget later tokens; with length 0 also the operator, and the next chunk deduces a new one."""
        if length == 0:
            self.operator = self.a = None


class Plga(Mixer):
    """Power-law graph attention.

    Without a state a learned operator is deduced from the whole sequence, with later tokens, so the mixer is NOT causal
    unless the density is that of a prefix. With a state the operator is deduced from the first chunk and stored in the
    state, and the network is not run again. A fixed operator is part of the weights, and the mixer is causal.
    """

    references: ClassVar[Mapping[str, Callable[..., Tensor]]] = {"attend": attention_reference}

    def __init__(self, spec: "PlgaSpec", d_model: int) -> None:
        super().__init__()
        self.heads, self.head_dim = spec.heads, d_model // spec.heads
        self.rotary, self.density = spec.rotary, spec.density
        self.query_key_value = FusedLinear(d_model, [d_model] * 3, bias=True)
        self.attend = attention
        self.out = Linear(d_model, d_model, bias=True)
        self.operator: PowerLawOperator | FixedOperator
        if spec.operator == "fixed":
            self.traits = Traits()
            self.operator = FixedOperator(spec.heads, self.head_dim)
        else:
            prefix = spec.density.prefix
            causal, self.penalties = prefix == 1, PENALTIES
            self.traits = Traits(causal=causal, exact_when_split=causal, calibrates=True, calibrated_after=prefix)
            self.cache_policies = frozenset({FullCache, RecalibratingCache})
            self.operator = PowerLawOperator(
                spec.heads, self.head_dim, spec.metric_hidden, spec.residual_units, spec.gated_units, spec.start
            )

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> PlgaState:
        """Empty keys and values for `capacity` tokens, without an operator."""
        dtype = cache_dtype(self.query_key_value, dtype)
        tensors = key_value_tensors(batch, self.heads, capacity, self.head_dim, device, dtype)
        return PlgaState(*tensors, recalibrate=isinstance(cache_policy, RecalibratingCache))

    def supports(self, layout: BatchLayout, length: int, state: State | None) -> bool:
        return True

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, PlgaState)
        heads = (self.heads, self.heads, self.heads)
        q_BHTK, k_BHTK, v_BHTK = queries_keys_values(self.query_key_value(x_BTD), heads, self.rotary, layout)
        g_BHKK = self._operator(q_BHTK, state, layout)
        seen = visible_keys(k_BHTK, v_BHTK, state, layout)
        out_BHTK = self.attend(q_BHTK @ g_BHKK, seen.keys, seen.values, KeyRange(seen.first_B, last_BT=seen.last_BT))
        out_BTD: Tensor = self.out(out_BHTK.transpose(1, 2).flatten(2))
        return out_BTD

    def _operator(self, q_BHTK: Tensor, state: PlgaState | None, layout: BatchLayout) -> Tensor:
        """The fixed operator, that of the state, or a new one from this chunk, which is stored in the state."""
        if isinstance(self.operator, FixedOperator):
            layout.add_output(OUTPUTS[-1], self.operator.g[None])
            return self.operator.g.to(q_BHTK.dtype)
        if state is not None and state.operator is not None:
            return state.operator
        if state is not None and state.a is not None:
            outputs = self.operator(state.a, metric_known=True)
        else:
            outputs = self._deduced(q_BHTK, layout)
        for name, x_BHKK in zip(OUTPUTS, outputs, strict=True):
            layout.add_output(name, x_BHKK)
        g_BHKK: Tensor = outputs.g.to(q_BHTK.dtype)
        if state is not None and state.a is None:
            state.operator, state.a = (None, outputs.a.clone()) if state.recalibrate else (g_BHKK.clone(), None)
        return g_BHKK

    def _deduced(self, q_BHTK: Tensor, layout: BatchLayout) -> DeductiveOutputs:
        """The deductive outputs for the queries of a chunk; adds the penalties that training requests."""
        assert isinstance(self.operator, PowerLawOperator)
        if layout.padding is not None and max(layout.padding) == q_BHTK.shape[2]:
            raise ValueError("a row without tokens has no operator; join it after its first tokens")
        queries, real_BT, prefix = q_BHTK, layout.real(q_BHTK.shape[2], q_BHTK.device), self.density.prefix
        if prefix is not None:
            if real_BT is None:
                queries = q_BHTK[:, :, :prefix]
            else:
                real_BT = real_BT & (real_BT.cumsum(dim=1) <= prefix)
        with torch.autocast(device_type=q_BHTK.device.type, enabled=False):
            density_BHKK = density(queries, real_BT)
        outputs: DeductiveOutputs = self.operator(density_BHKK)
        for name, coefficient in layout.requested_penalties(PENALTY).items():
            layout.add_loss(f"{PENALTY}_{name}", acyclicity(getattr(outputs, name)), coefficient)
        return outputs

    def no_weight_decay(self) -> Iterator[nn.Parameter]:
        """Biases and norms; the matrices of the operator have weight decay like linear layers (the paper)."""
        return (p for name, p in self.named_parameters() if p.dim() < 2 or name.endswith("bias"))

    def muon_parameters(self) -> Iterator[MuonParameter]:
        """The maps from and to hidden vectors; the operator's network reads rows of a density matrix."""
        return map(muon_parameter_of, (self.query_key_value, self.out))

    def low_lr_parameters(self) -> Iterator[nn.Parameter]:
        """The operator's network: powers of numbers near zero amplify small changes."""
        return self.operator.parameters()

    def skip_quantization(self) -> Iterator[nn.Module]:
        """The operator's network, whose powers amplify rounding."""
        if isinstance(self.operator, PowerLawOperator):
            yield self.operator

    def output_projections(self) -> Iterator[nn.Linear]:
        """The output projection; the linear layers of the operator's network are built after it."""
        return iter((self.out,))

    def calibration(self, state: State | None = None) -> dict[str, Tensor]:
        if isinstance(self.operator, FixedOperator):
            return {OUTPUTS[-1]: self.operator.g}
        operator_BHKK = state.operator if isinstance(state, PlgaState) else None
        return {} if operator_BHKK is None else {OUTPUTS[-1]: operator_BHKK[0]}


NET_FIELDS = ("metric_hidden", "residual_units", "gated_units", "density", "start")
"""The fields of the network behind a learned operator."""


class PlgaSpec(MixerSpec):
    """Power-law graph attention; `metric_hidden` is the paper's `A_dff`.

    operator: `learned`, deduced from the text by a network; or `fixed`, one stored matrix per head that is not trained
    (the paper's v51G). The fields below `rotary` describe the network and need `learned`.

    density: the tokens that the operator is deduced from.

    start: the initialization of the operator, the paper's or near the identity (which short runs need).
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
    def _no_network_with_a_fixed_operator(self) -> Self:
        for name in NET_FIELDS if self.operator == "fixed" else ():
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise ValueError(f"{name}: {value}: needs operator: learned; a fixed operator has no network")
        return self

    @classmethod
    def examples(cls) -> list[Self]:
        """One head and several; networks of different depth; no positions; prefixes of one and of three tokens."""
        one, three = DensitySpec(scope="prefix"), DensitySpec(scope="prefix", tokens=3)
        return [
            cls(heads=2, metric_hidden=12, residual_units=2),
            cls(heads=1, metric_hidden=5, residual_units=1, gated_units=1, rotary=None, start="identity"),
            cls(heads=2, metric_hidden=6, residual_units=1, density=one),
            cls(heads=2, metric_hidden=6, residual_units=1, start="identity", density=three),
            cls(heads=2, operator="fixed"),
        ]

    def check(self, width: int) -> None:
        check_heads(self.heads, None, width, self.rotary)

    @property
    def calibration(self) -> Literal["text", "stored"]:
        return "text" if self.operator == "learned" else "stored"

    def with_calibration(self, where: Literal["text", "stored"]) -> "PlgaSpec":
        """The same spec with a learned or a fixed operator, which has no fields of the network."""
        fields = self.model_dump(exclude=set(NET_FIELDS) if where == "stored" else None)
        return PlgaSpec.model_validate({**fields, "operator": "learned" if where == "text" else "fixed"})

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
        return Plga(self, place.width)

    def cost(self, place: Place) -> Cost:
        """The cost of attention, `q G` for each token, and the network of a learned operator once per sequence."""
        d_model = place.width
        head_dim = d_model // self.heads
        projections = linear_cost(d_model, d_model, bias=True).repeated(4)
        shape = AttentionShape(self.heads, self.heads, head_dim, self.rotary is not None)
        pairs = shape.cost() + Cost(flops_per_token=2 * d_model * head_dim, activations_per_token=2 * d_model)
        if self.operator == "fixed":
            return projections + pairs + fixed_cost(self.heads, head_dim)
        net = operator_cost(self.heads, head_dim, self.metric_hidden, self.residual_units, self.gated_units)
        return projections + pairs + net + density_cost(self.heads, head_dim, self.density.prefix)
