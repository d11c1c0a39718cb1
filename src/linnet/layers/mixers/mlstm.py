"""The mLSTM of xLSTM: a matrix memory with exponential gates (Beck et al., 2024, arXiv 2405.04517, section 2.3).

As in xLSTM 7B (Beck et al., 2025, arXiv 2503.13427): no convolution, gate logits with a soft cap, a norm for each head
and an output gate.

Shapes: `B` batch, `T` tokens of the chunk, `D` model width, `N` heads, `K` width of queries and keys, `V` width of
values, `U` = V + 1: values and the normalizer.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from linnet.core.spec import Extent
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import MixerSpec, MuonParameter, Place, RecurrentMixer, muon_parameter_of
from linnet.layers.state import State
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import FusedLinear, Linear
from linnet.nn.norms import HeadLayerNorm
from linnet.ops.cross_entropy import apply_soft_cap
from linnet.ops.xlstm import mlstm, mlstm_flops, mlstm_reference, mlstm_segment_length

STATE_BYTES = 4
INPUT_BIAS = -10.0
FORGET_BIASES = 3.0, 6.0
"""The initial biases of the forget gates of the first and the last head."""


class MlstmSpec(MixerSpec):
    """heads: number of heads. value_dim: width of a head's values (null: the model's width over `heads`).

    head_dim: width of a head's queries and keys (null: half of that of the values, as published). gate_cap: soft cap of
    the gate logits (null: none). eps: of the norm of the heads.
    """

    kind: Literal["mlstm"] = "mlstm"
    heads: Extent
    head_dim: Extent | None = None
    value_dim: Extent | None = None
    gate_cap: PositiveFloat | None = 15.0
    eps: PositiveFloat = 1e-6

    @classmethod
    def examples(cls) -> list[Self]:
        """As published; with own widths and without a cap.

        `eps` is larger than published, because the norm of heads this narrow amplifies rounding.
        """
        return [cls(heads=2, eps=1e-3), cls(heads=3, head_dim=5, value_dim=4, gate_cap=None, eps=1e-2)]

    def check(self, width: int) -> None:
        if self.value_dim is None and width % self.heads:
            raise ValueError(f"heads: {self.heads}: must divide the width {width}, or value_dim must be given")
        if self.widths(width)[0] == 0:
            raise ValueError(
                f"head_dim: null: half of values of width {self.widths(width)[1]} is nothing; give a number"
            )

    def widths(self, d_model: int) -> tuple[int, int]:
        """The widths of a key and of a value."""
        value = self.value_dim or d_model // self.heads
        return self.head_dim or value // 2, value

    def build(self, place: Place) -> "Mlstm":
        return Mlstm(self, place.width)

    def cost(self, place: Place) -> Cost:
        """Maps, gates, the memory and the norm; the state is a memory and its peak for each head."""
        width, (key, value) = place.width, self.widths(place.width)
        values = self.heads * value

        def activation_memory(sequences: int, tokens: int) -> int:
            # For each token the joint projection, logits (with a cap also its input), the output, its normalizer and
            # norm, the gate and two products with it; a memory for each segment and at the end, and a peak.
            logits = 2 if self.gate_cap is None else 4
            per_token = 2 * (key + value) + logits + 1 + 5 * value + 2
            segments = -(-tokens // mlstm_segment_length(sequences, self.heads, value)) if tokens > 1 else 0
            return sequences * self.heads * (tokens * per_token + (segments + 1) * key * (value + 1) + 1)

        maps = linear_cost(width, 2 * self.heads * (key + value), False) + linear_cost(values, width, False)
        return (
            maps
            + linear_cost(width, 2 * self.heads, True)
            + Cost(
                parameters=values,
                flops_by_length=(partial(mlstm_flops, heads=self.heads, keys=key, values=value),),
                state_fixed_bytes=STATE_BYTES * self.heads * (key * (value + 1) + 1),
                activations_per_token=width,
                activation_memory=(activation_memory,),
            )
        )


@dataclass
class MlstmState(State):
    """The memories, with the normalizer as last column, and the largest exponent so far, by whose exponential they are
    divided: `[B, N, K, U]` and `[B, N]`, float32 or wider.
    """

    memory: Tensor
    peak: Tensor


class Mlstm(RecurrentMixer):
    """A joint projection, a matrix memory for each head, and a gated norm."""

    references: ClassVar[Mapping[str, Callable[..., Any]]] = {"remember": mlstm_reference}

    def __init__(self, spec: MlstmSpec, d_model: int) -> None:
        super().__init__()
        self.heads, self.gate_cap, (self.key_width, self.value_width) = spec.heads, spec.gate_cap, spec.widths(d_model)
        keys, values = self.heads * self.key_width, self.heads * self.value_width
        self.query_key_value_gate = FusedLinear(d_model, [keys, keys, values, values], bias=False)
        self.input_forget = nn.Linear(d_model, 2 * self.heads)
        self.remember = mlstm
        self.norm = HeadLayerNorm(self.heads, self.value_width, spec.eps)
        self.out = Linear(values, d_model, bias=False)
        # At first gates do not depend on the token: input gates are almost closed, heads have different lifetimes.
        nn.init.zeros_(self.input_forget.weight)
        with torch.no_grad():
            self.input_forget.bias[: self.heads] = INPUT_BIAS
            self.input_forget.bias[self.heads :] = torch.linspace(*FORGET_BIASES, self.heads)

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> MlstmState:
        wide = torch.promote_types(dtype, torch.float32)
        shape = (batch, self.heads, self.key_width, self.value_width + 1)
        memory, peak = (torch.zeros(part, device=device, dtype=wide) for part in (shape, shape[:2]))
        return MlstmState(memory, peak)

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, MlstmState)
        *joint, gate_BTF = self.query_key_value_gate.split(self.query_key_value_gate(x_BTD))
        logits_BTN = self.input_forget(x_BTD)
        with torch.autocast(x_BTD.device.type, enabled=False):
            wide = torch.promote_types(logits_BTN.dtype, torch.float32)
            q_BNTK, k_BNTK, v_BNTV = (torch.unflatten(x.to(wide), -1, (self.heads, -1)).transpose(1, 2) for x in joint)
            logits_BTN = logits_BTN.to(wide)
            if self.gate_cap is not None:
                logits_BTN = apply_soft_cap(logits_BTN, self.gate_cap)
            input_BNT, forget_BNT = logits_BTN.transpose(1, 2).chunk(2, dim=1)
            before = () if state is None else (state.memory, state.peak)
            h_BNTV, memory, peak = self.remember(q_BNTK, k_BNTK, v_BNTV, input_BNT, forget_BNT, *before)
            if state is not None:
                state.memory, state.peak = memory.detach().contiguous(), peak.detach().contiguous()
            normed_BTF = self.norm(h_BNTV.transpose(1, 2))
        out_BTD: Tensor = self.out(normed_BTF.to(gate_BTF.dtype) * gate_BTF.sigmoid())
        return out_BTD

    def muon_parameters(self) -> Iterator[MuonParameter]:
        """All maps but that to the gates, whose outputs are one number for each head."""
        return map(muon_parameter_of, (self.query_key_value_gate, self.out))
