"""Power-law graph attention: attention through an operator that a deep net deduces from the text.

Scores are `q G k^T / sqrt(K)`, so a fused attention kernel serves once `q` is replaced by `q G` (Gokden, arXiv
2502.13502).

Legend: `B` batch, `T` tokens of the chunk, `H` heads, `K` head width, `D` model width.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor, nn

from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy, FullCache, RecalibratingCache
from linnet.layers.contract import DecodeStep, Mixer, MuonParameter, Traits, muon_parameter_of
from linnet.layers.key_value import KeyValueState, cache_dtype, key_value_decode_step, key_value_tensors, visible_keys
from linnet.layers.mixers.plga.operator import OUTPUTS, DeductiveOutputs, FixedOperator, PowerLawOperator, acyclicity
from linnet.layers.rotary import queries_keys_values
from linnet.layers.state import State
from linnet.nn.gemv import native_library_of
from linnet.nn.linear import FusedLinear, Linear
from linnet.ops.attention import KeyRange, attention, attention_reference
from linnet.ops.power_law import density

if TYPE_CHECKING:
    from linnet.layers.mixers.plga.spec import PlgaSpec

PENALTY = "dag"
PENALTIES = {PENALTY: {"a_lm": 0.05, "a_p": 0.05, "g": 0.05}}
"""The acyclicity regularizer, with the coefficients of the paper's DAG model for each of these tensors."""


@dataclass
class PlgaState(KeyValueState):
    """Keys, values, and the operator `[B, H, K, K]`, which the first chunk (the prompt) fixes for the whole stream.

    recalibrate: keep `A` instead of the operator, which each chunk computes from it anew (the paper's KV-cache without
    its G-cache).
    """

    operator: Tensor | None = None
    a: Tensor | None = None
    recalibrate: bool = False

    @property
    def cache_policy(self) -> CachePolicy:
        return RecalibratingCache() if self.recalibrate else FULL

    def forget(self) -> Self:
        """Forget the tokens, keep the operator: this is how a frozen operator is reused."""
        return self.fork()

    def crop(self, length: int) -> None:
        """Forget later tokens; without any token left the operator goes too, and the next chunk deduces its own."""
        if length == 0:
            self.operator = self.a = None


class Plga(Mixer):
    """Power-law graph attention.

    Without a state a learned operator comes from the whole sequence, later tokens included: NOT causal, but where the
    density is that of a prefix. With a state the first chunk deduces the operator, the state keeps it, and from then on
    the net behind it is not run. A fixed operator is part of the weights, and the mixer is causal.
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
            self.traits, self.penalties = spec.density.traits, PENALTIES
            self.cache_policies = frozenset({FullCache, RecalibratingCache})
            self.operator = PowerLawOperator(
                spec.heads, self.head_dim, spec.metric_hidden, spec.residual_units, spec.gated_units, spec.start
            )

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> PlgaState:
        """Room for the keys and values of `capacity` tokens, and no operator yet."""
        kept_in = cache_dtype(self.query_key_value, dtype)
        tensors = key_value_tensors(batch, self.heads, capacity, self.head_dim, device, kept_in)
        return PlgaState(*tensors, recalibrate=isinstance(cache_policy, RecalibratingCache))

    def supports(self, layout: BatchLayout, length: int, state: State | None) -> bool:
        """Anything."""
        return True

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        """`[B, T, D] -> [B, T, D]`."""
        assert state is None or isinstance(state, PlgaState)
        heads = (self.heads, self.heads, self.heads)
        q_BHTK, k_BHTK, v_BHTK = queries_keys_values(self.query_key_value(x_BTD), heads, self.rotary, layout)
        g_BHKK = self._operator(q_BHTK, state, layout)
        seen = visible_keys(k_BHTK, v_BHTK, state, layout)
        out_BHTK = self.attend(q_BHTK @ g_BHKK, seen.keys, seen.values, KeyRange(seen.first_B, last_BT=seen.last_BT))
        out_BTD: Tensor = self.out(out_BHTK.transpose(1, 2).flatten(2))
        return out_BTD

    def _operator(self, q_BHTK: Tensor, state: PlgaState | None, layout: BatchLayout) -> Tensor:
        """The state's operator, or the one that this chunk deduces (and leaves in the state), or the fixed one."""
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
            state.operator, state.a = (None, outputs.a) if state.recalibrate else (g_BHKK, None)
        return g_BHKK

    def _deduced(self, q_BHTK: Tensor, layout: BatchLayout) -> DeductiveOutputs:
        """What the chunk's queries give; what training asks of it goes into the layout."""
        assert isinstance(self.operator, PowerLawOperator)
        if layout.padding is not None and max(layout.padding) == q_BHTK.shape[2]:
            raise ValueError("a row without a token: no operator can be deduced of it; join it when it has read some")
        counted = self.density.part(q_BHTK, layout.real(q_BHTK.shape[2], q_BHTK.device))
        with torch.autocast(device_type=q_BHTK.device.type, enabled=False):
            density_BHKK = density(*counted)
        outputs: DeductiveOutputs = self.operator(density_BHKK)
        for name, coefficient in layout.requested_penalties(PENALTY).items():
            layout.add_loss(f"{PENALTY}_{name}", acyclicity(getattr(outputs, name)), coefficient)
        return outputs

    def no_weight_decay(self) -> Iterator[nn.Parameter]:
        """Biases and norms: the matrices of the operator decay like those of linear maps (the paper)."""
        return (p for name, p in self.named_parameters() if p.dim() < 2 or name.endswith("bias"))

    def muon_parameters(self) -> Iterator[MuonParameter]:
        """The maps from and to hidden vectors: the operator's net reads rows of a density matrix."""
        return map(muon_parameter_of, (self.query_key_value, self.out))

    def low_lr_parameters(self) -> Iterator[nn.Parameter]:
        """The net behind the operator: powers of numbers near zero make large changes of small ones."""
        return self.operator.parameters()

    def skip_quantization(self) -> Iterator[nn.Module]:
        """The net behind the operator, whose powers multiply rounding."""
        if isinstance(self.operator, PowerLawOperator):
            yield self.operator

    def output_projections(self) -> Iterator[nn.Linear]:
        """The map behind the heads; those of the operator's net are built after it."""
        return iter((self.out,))

    def calibration(self, state: State | None = None) -> dict[str, Tensor]:
        if isinstance(self.operator, FixedOperator):
            return {OUTPUTS[-1]: self.operator.g}
        operator_BHKK = state.operator if isinstance(state, PlgaState) else None
        return {} if operator_BHKK is None else {OUTPUTS[-1]: operator_BHKK[0]}

    @property
    def bfloat16_decode(self) -> bool:
        """See `Sublayer`: where products are compiled, and so is what the operator makes of queries."""
        return native_library_of(self.query_key_value) is not None

    def decode_step(self, state: State | None, record: AuxiliaryOutputs | None = None) -> DecodeStep | None:
        """See `Sublayer`; with the operator in the state, or a fixed one."""
        assert isinstance(state, PlgaState)
        operator_HKK = self.calibration(state).get(OUTPUTS[-1])
        if operator_HKK is None:
            return None
        return key_value_decode_step(
            self.query_key_value, self.out, state, self.heads, self.rotary, operator_NKK=operator_HKK.detach()
        )
