"""Gated DeltaNet: linear attention with the gated delta rule (Yang et al., arXiv 2412.06464).

As in Qwen3-Next: short convolutions, queries and keys of length 1, fewer key heads than value heads, a norm for each
head and a gate. `decay: channel` has a decay for each channel of the key, as in Kimi Linear (arXiv 2510.26692).

Shapes: `B` batch, `T` tokens of the chunk, `D` model width, `M` key heads, `N` value heads, `J` heads of queries and
keys together (`J = 2 M`), `K` width of these, `V` width of values, `G` decays of a head: 1, or K; `F` channels of
queries, keys and values together, `P` inputs of the convolution before the current one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor, nn

from linnet.core.spec import Extent
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import MixerSpec, MuonParameter, Place, RecurrentMixer, muon_parameter_of
from linnet.layers.diagonal_ssm import step_biases
from linnet.layers.rotary import check_heads
from linnet.layers.state import State
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import FusedLinear, Linear
from linnet.nn.neighbors import CausalConvolution, convolution_cost
from linnet.nn.norms import RmsNorm
from linnet.ops.delta_rule import chunk_length
from linnet.ops.gated_delta import gated_delta, gated_delta_flops, gated_delta_reference
from linnet.ops.rms_norm import l2_normalize

STATE_BYTES = 4
MAX_RATE = 16.0


class GatedDeltaSpec(MixerSpec):
    """heads: of values. key_heads: of queries and keys (null: as many); each serves consecutive value heads.

    head_dim: width of queries and keys (null: the model's width over `heads`). value_dim: width of values (null: that
    of keys). conv: tokens that the convolutions read. decay: one for each head, or for each channel of its key. gate:
    the function of the output gate. gate_rank: rank of the map to the gate (null: full rank). eps: of the norm of the
    heads.
    """

    kind: Literal["gated_delta"] = "gated_delta"
    heads: Extent
    key_heads: Extent | None = None
    head_dim: Extent | None = None
    value_dim: Extent | None = None
    conv: Extent = 4
    decay: Literal["head", "channel"] = "head"
    gate: Literal["silu", "sigmoid"] = "silu"
    gate_rank: Extent | None = None
    eps: PositiveFloat = 1e-6

    @classmethod
    def examples(cls) -> list[Self]:
        """As in Qwen3-Next; as in Kimi Linear; both, with a convolution over a single token.

        `eps` is larger than published, because the norm of heads this narrow amplifies rounding.
        """
        return [
            cls(heads=4, key_heads=2, head_dim=6, value_dim=3, eps=1e-3),
            cls(heads=2, decay="channel", gate="sigmoid", gate_rank=3, eps=1e-3),
            cls(heads=2, key_heads=1, head_dim=3, conv=1, decay="channel", gate_rank=5, eps=1e-2),
        ]

    def check(self, width: int) -> None:
        check_heads(self.heads, self.head_dim, width, None)
        if self.key_heads is not None and self.heads % self.key_heads:
            raise ValueError(f"key_heads: {self.key_heads}: must divide heads, {self.heads}")

    def widths(self, d_model: int) -> tuple[int, int]:
        """The widths of a key and of a value."""
        key = self.head_dim or d_model // self.heads
        return key, self.value_dim or key

    def totals(self, d_model: int) -> tuple[int, int, int]:
        """The widths of keys, values and decays of all heads together."""
        key, value = self.widths(d_model)
        key_heads = self.key_heads or self.heads
        return key_heads * key, self.heads * value, self.heads * (key if self.decay == "channel" else 1)

    def build(self, place: Place) -> "GatedDelta":
        return GatedDelta(self, place.width)

    def cost(self, place: Place) -> Cost:
        """Maps, convolutions and the rule; the state is the inputs of the convolutions and a matrix for each head."""
        width, (key, value) = place.width, self.widths(place.width)
        keys, values, decays = self.totals(width)
        key_heads, mixed, rank, by_channel = keys // key, 2 * keys + values, self.gate_rank, self.decay == "channel"

        def activation_memory(sequences: int, tokens: int) -> int:
            # For each token the inputs and outputs of the convolutions, queries and keys with their lengths, four
            # tensors of values, norms, write strengths, decays, and inputs of the gate; a state for each chunk.
            decay = 3 * decays + (self.heads + key if by_channel else 0)
            joint = mixed + (rank or values) if rank or self.gate == "silu" else 0
            gate = joint + (values if rank and self.gate == "silu" else 0)
            per_token = 2 * mixed + 2 * keys + 2 * key_heads + 4 * values + 2 * self.heads + decay + gate
            states = -(-tokens // chunk_length(tokens)) * self.heads * key * value
            return sequences * (tokens * per_token + mixed * (self.conv - 1) + states)

        maps = linear_cost(width, mixed + (rank or values), False) + linear_cost(values, width, False)
        maps += linear_cost(width, self.heads + (key if by_channel else self.heads), False)
        if rank:
            maps += linear_cost(rank, values, False)
        if by_channel:
            maps += linear_cost(key, decays, False)
        heads, gates = (key_heads, self.heads), key if by_channel else 1
        rule = Cost(
            parameters=self.heads + decays + value,
            flops_by_length=(lambda tokens: gated_delta_flops(tokens, heads, (key, value), gates),),
            state_fixed_bytes=STATE_BYTES * self.heads * key * value,
            activations_per_token=width,
            activation_memory=(activation_memory,),
        )
        return maps + convolution_cost(mixed, self.conv, False) + rule


@dataclass
class GatedDeltaState(State):
    """The convolutions' last inputs `[B, F, P]`, and the matrices `[B, N, K, V]`, float32 or wider."""

    inputs: Tensor
    matrices: Tensor


class GatedDelta(RecurrentMixer):
    """The gated delta rule between short convolutions and a gated norm."""

    references: ClassVar[Mapping[str, Callable[..., Any]]] = {"rule": gated_delta_reference}

    def __init__(self, spec: GatedDeltaSpec, d_model: int) -> None:
        super().__init__()
        self.spec, (self.key_width, self.value_width) = spec, spec.widths(d_model)
        keys, values, decays = spec.totals(d_model)
        self.parts = [keys, keys, values]
        self.query_key_value_gate = FusedLinear(d_model, [*self.parts, spec.gate_rank or values], bias=False)
        self.conv1d = CausalConvolution(sum(self.parts), spec.conv, bias=False)
        by_channel = spec.decay == "channel"
        self.share_decay = FusedLinear(d_model, [spec.heads, self.key_width if by_channel else spec.heads], bias=False)
        self.channel_decay = Linear(self.key_width, decays, bias=False) if by_channel else None
        self.A_log = nn.Parameter(torch.empty(spec.heads))
        self.dt_bias = nn.Parameter(torch.empty(decays))
        self.rule = gated_delta
        self.gate_out = Linear(spec.gate_rank, values, bias=False) if spec.gate_rank else None
        self.gate_function = F.silu if spec.gate == "silu" else torch.sigmoid
        self.norm = RmsNorm(self.value_width, spec.eps)
        self.out = Linear(values, d_model, bias=False)
        # Heads decay at random rates from 1 to 16; steps are spread between a tenth and a thousandth, as in Mamba.
        with torch.no_grad():
            self.A_log.copy_(nn.init.uniform_(torch.empty(spec.heads), 1.0, MAX_RATE).log())
            self.dt_bias.copy_(step_biases(decays))

    def muon_parameters(self) -> Iterator[MuonParameter]:
        """The maps between hidden vectors, without those of strengths and decays, and the second one of the gate."""
        return (muon_parameter_of(linear) for linear in (self.query_key_value_gate, self.out))

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> GatedDeltaState:
        inputs = torch.zeros(batch, sum(self.parts), self.conv1d.before, device=device, dtype=dtype)
        shape = (batch, self.spec.heads, self.key_width, self.value_width)
        wide = torch.promote_types(dtype, torch.float32)
        return GatedDeltaState(inputs, torch.zeros(shape, device=device, dtype=wide))

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, GatedDeltaState)
        joint, rest = self.query_key_value_gate(x_BTD), self.share_decay(x_BTD)
        mixed_BTF, gate = joint.split([sum(self.parts), joint.shape[-1] - sum(self.parts)], dim=-1)
        mixed_BFT = F.silu(self.conv1d.advancing(mixed_BTF.transpose(1, 2), state))
        share_BTN, decay = rest.split([self.spec.heads, rest.shape[-1] - self.spec.heads], dim=-1)
        decay = decay if self.channel_decay is None else self.channel_decay(decay)
        gate_BTF = gate if self.gate_out is None else self.gate_out(gate)
        with torch.autocast(x_BTD.device.type, enabled=False):
            wide = torch.promote_types(mixed_BFT.dtype, torch.float32)
            mixed_BFT, share_BTN, decay = (x.to(wide) for x in (mixed_BFT, share_BTN, decay))
            keys, _, values = self.parts
            both_BFT, v_BFT = torch.split(mixed_BFT, [2 * keys, values], dim=1)
            both_BJTK = torch.unflatten(both_BFT, 1, (-1, self.key_width)).transpose(2, 3).contiguous()
            q_BMTK, k_BMTK = l2_normalize(both_BJTK).chunk(2, dim=1)
            v_BNTV = torch.unflatten(v_BFT, 1, (-1, self.value_width)).transpose(2, 3).contiguous()
            rates = self.A_log.to(wide).exp().repeat_interleave(len(self.dt_bias) // len(self.A_log))
            log_alpha = -rates * F.softplus(decay + self.dt_bias.to(wide))
            log_alpha_BNTG = torch.unflatten(log_alpha, -1, (self.spec.heads, -1)).transpose(1, 2)
            beta_BNT = share_BTN.sigmoid().transpose(1, 2)
            before = None if state is None else state.matrices
            o_BNTV, matrices = self.rule(q_BMTK, k_BMTK, v_BNTV, log_alpha_BNTG, beta_BNT, before)
            if state is not None:
                state.matrices = matrices.detach()
        normed_BTNV = self.norm(o_BNTV.transpose(1, 2).contiguous().to(self.norm.weight.dtype))
        out_BTD: Tensor = self.out(normed_BTNV.flatten(2) * self.gate_function(gate_BTF))
        return out_BTD
