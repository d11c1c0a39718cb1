"""TED, trainable exponential decays: every past token decays at a rate computed from it (github.com/biuq/ted).

`rate_j = -log(sigmoid(x_j w))`, `v_j = x_j W_q`, `o_t = sum_{j <= t} exp(-rate_j (t - j)) v_j`,
`y_t = (silu(o_t) W_o) * (x_t W_gate)`. The rate of a token never changes. Extensions of linnet: several heads, with a
rate for each head's share of the channels; a short convolution (`conv`); queries and keys that weight the past
(`key_width`).

Shapes: `B` batch, `T` tokens of the chunk, `N` heads, `C` channels of a head, `D` model width, `M` width of a key.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from linnet.core.spec import Extent
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy, FullCache
from linnet.layers.contract import Mixer, MixerSpec, Place, Traits
from linnet.layers.mixers.ted.bank import BankState
from linnet.layers.mixers.ted.eviction import EvictionState
from linnet.layers.mixers.ted.full import FullState
from linnet.layers.mixers.ted.policies import MAX_BANK_LENGTH, BankCache, EvictionCache
from linnet.layers.mixers.ted.state import Shape, TedState
from linnet.layers.state import State
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import FusedLinear, Linear, uses_fused_backward
from linnet.nn.neighbors import CausalConvolution, convolution_cost
from linnet.ops.decay.rates import MAX_TOLERANCE, MIN_TOLERANCE, rate_bank
from linnet.ops.decay.reference import Keys, decay_definition, decay_rates
from linnet.ops.decay.sums import TOLERANCE, Form, decay, decay_flops, default_chunk, uses_chunks
from linnet.ops.gated_feed_forward import gated_output
from linnet.ops.rms_norm import l2_normalize

RATE_BYTES = 4
HALF = 0.5**0.5
"""The length of a vector whose squared length is a half."""


class TedSpec(MixerSpec):
    """heads: decay rates per token, 1 as published. rate_bias: bias of the map to the rates.

    key_width: width of a query and a key of length 1 for each head; weights are multiplied by `(1 + q_t . k_j) / 2`.
    conv: tokens of a convolution whose outputs are added to the inputs. Both null: as published.
    form, tolerance, chunk: how the sums are computed; they do not change the model. chunk null: the fastest.
    """

    cache_policies: ClassVar[tuple[type[CachePolicy], ...]] = (BankCache, EvictionCache)

    kind: Literal["ted"] = "ted"
    heads: Extent = 1
    rate_bias: bool = False
    key_width: Extent | None = None
    conv: Extent | None = Field(default=None, ge=2)
    form: Form = "auto"
    tolerance: float = Field(default=TOLERANCE, ge=MIN_TOLERANCE, le=MAX_TOLERANCE)
    chunk: Extent | None = None

    @classmethod
    def examples(cls) -> list[Self]:
        """One rate per token; a rate per head; the most exact sums in linear time; both with keys."""
        linear = cls(heads=2, form="chunked", tolerance=MIN_TOLERANCE, chunk=2)
        keyed = cls(heads=4, rate_bias=True, key_width=3, conv=3)
        return [cls(), cls(heads=4, rate_bias=True), linear, keyed, linear.model_copy(update={"key_width": 5})]

    def check(self, width: int) -> None:
        if width % self.heads:
            raise ValueError(f"heads: {self.heads}: must divide the width {width}")

    def build(self, place: Place) -> "Ted":
        return Ted(self, place.width, place.context_length)

    def cost(self, place: Place) -> Cost:
        """Projections, the rates, and a weighted sum over the past; the state is quantities, keys and rates."""
        width, heads, key = place.width, self.heads, self.key_places

        def activation_memory(sequences: int, tokens: int) -> int:
            # Inputs, outputs and rates; queries and keys with and without their constant place, and their lengths.
            per_token, extra = 5 * width + heads + 4 * heads * key, self.key_width or 0
            if self.conv:
                per_token += 2 * width
                extra += sequences * (self.conv - 1) * width
            if uses_chunks(self.form, tokens):
                return sequences * tokens * (per_token + heads) + extra
            # The other form also keeps the weights twice, with keys the scores and their products, ages and a mask.
            per_token += (width if heads > 1 else 0) + heads * (4 if key else 2) * tokens
            return sequences * tokens * per_token + extra + (8 + 1) * tokens * tokens // 4

        cost = linear_cost(width, width, bias=False).repeated(3)
        cost += replace(linear_cost(width, heads, self.rate_bias), matrices=())  # the map to the rates is too narrow
        if self.key_width:
            cost += linear_cost(width, heads * self.key_width, bias=False).repeated(2)
        if self.conv:
            cost += convolution_cost(width, self.conv, bias=False)
        form: dict[str, Any] = {"form": self.form, "tolerance": self.tolerance, "chunk": self.chunk}
        return cost + Cost(
            flops_by_length=(partial(decay_flops, width=width, heads=heads, key=key, **form),),
            state_elements_per_token=width + heads * key,
            state_bytes_per_token=RATE_BYTES * heads,
            activation_memory=(activation_memory,),
        )

    @property
    def key_places(self) -> int:
        """The number of elements of a key: its width and a constant; 0 without keys."""
        return self.key_width + 1 if self.key_width else 0


class Ted(Mixer):
    """Trainable exponential decays with a rate per token and head."""

    traits = Traits()
    cache_policies = frozenset({FullCache, BankCache, EvictionCache})
    references: ClassVar[Mapping[str, Callable[..., Tensor]]] = {"decay": decay_definition}

    def __init__(self, spec: TedSpec, d_model: int, context_length: int) -> None:
        super().__init__()
        self.context_length = context_length
        self.tolerance = spec.tolerance
        self.chunk = spec.chunk or default_chunk(spec.key_width is not None)
        self.quantity_gate = FusedLinear(d_model, [d_model, d_model], bias=False)
        self.rate_weight = nn.Parameter(torch.empty(spec.heads, d_model))
        self.rate_bias = nn.Parameter(torch.empty(spec.heads)) if spec.rate_bias else None
        keys, self.key_places = spec.heads * (spec.key_width or 0), spec.key_places
        self.query_key = FusedLinear(d_model, [keys, keys], bias=False) if keys else None
        self.conv = CausalConvolution(d_model, spec.conv, bias=False) if spec.conv else None
        self.decay = partial(decay, form=spec.form, tolerance=spec.tolerance, chunk=self.chunk)
        self.out = Linear(d_model, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Spread the initial lifetimes over the tokens or over the heads.

        A token that decays at once gets no gradient from later tokens, so some lifetimes must be long from the start.
        Without a bias `x w` has a standard deviation of 3 for a normalized x: rates from 0.05 to 3. With biases its
        standard deviation is 1, and the lifetimes of the heads are log-uniform from 1 to the context length.
        """
        heads, width = self.rate_weight.shape
        if self.rate_bias is None:
            nn.init.normal_(self.rate_weight, std=3 * width**-0.5)
            return
        nn.init.normal_(self.rate_weight, std=width**-0.5)
        # A single head starts in the middle, not at the short end.
        exponents_N = torch.linspace(0, 1, heads) if heads > 1 else torch.tensor([0.5])
        lifetimes_N = self.context_length**exponents_N
        with torch.no_grad():
            self.rate_bias.copy_(-lifetimes_N.reciprocal().expm1().log())

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> TedState:
        """An empty state; with `FULL` it has room for `capacity` tokens."""
        heads, width = self.rate_weight.shape
        before = 0 if self.conv is None else self.conv.before
        shape = Shape(batch, heads, width // heads, device, dtype, self.key_places, before)
        match cache_policy:
            case EvictionCache():
                return EvictionState.empty(shape, cache_policy)
            case BankCache():
                length = min(capacity, MAX_BANK_LENGTH) if cache_policy.length is None else cache_policy.length
                bank = rate_bank(self.tolerance, self.chunk, 1 << (length - 1).bit_length())
                return BankState.empty(shape, bank)
            case _:
                return FullState.empty(shape, capacity)

    def supports(self, layout: BatchLayout, length: int, state: State | None) -> bool:
        """Any layout without a state, else by the state; a convolution cannot continue after padding."""
        if not isinstance(state, TedState):
            return True
        return state.supports(layout, length) and (self.conv is None or layout.padding is None or layout.starts == 0)

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, TedState)
        real_BT = layout.real(x_BTD.shape[1], x_BTD.device)
        x_BTD = self._convolved(x_BTD, real_BT, state)
        v_BTD, gate_BTD = self.quantity_gate.split(self.quantity_gate(x_BTD))
        rates_BTN = self.rates(x_BTD)
        keys = None if self.query_key is None else self._keys(self.query_key(x_BTD))
        if real_BT is not None:
            v_BTD = v_BTD.masked_fill(~real_BT[..., None], 0.0)
        if state is None:
            v_BTNC = v_BTD.view(*rates_BTN.shape, -1)
            o_BTD = self.decay(rates_BTN, v_BTNC, x_BTD.shape[1], keys=keys).flatten(2)
        else:
            o_BTD = state.read(rates_BTN, v_BTD, layout, self.decay, keys)
        if uses_fused_backward(o_BTD, self.out):
            return gated_output(o_BTD, self.out.factors(), gate_BTD)
        out_BTD: Tensor = self.out(F.silu(o_BTD)) * gate_BTD
        return out_BTD

    def _convolved(self, x_BTD: Tensor, real_BT: Tensor | None, state: TedState | None) -> Tensor:
        """The inputs plus the outputs of the convolution, `[B, T, D]`; advances the state."""
        if self.conv is None:
            return x_BTD
        if real_BT is not None:
            x_BTD = x_BTD.masked_fill(~real_BT[..., None], 0.0)
        before_BDW = None if state is None else state.inputs
        added_BDT, last_BDW = self.conv.following(x_BTD.transpose(1, 2), before_BDW)
        if state is not None and before_BDW is not None:
            state.inputs = last_BDW.detach().to(before_BDW.dtype).clone()
        return x_BTD + added_BDT.transpose(1, 2)

    def _keys(self, joint_BTJ: Tensor) -> Keys:
        """Queries and keys from their joint projection, normalized to length 1.

        A constant place is added to each, so that the product of a query and a key is `(1 + q . k) / 2`.
        """
        joint_BT2NM = torch.unflatten(joint_BTJ, -1, (2, -1, self.key_places - 1))
        joint_BT2NM = l2_normalize(joint_BT2NM, HALF)
        return Keys(*F.pad(joint_BT2NM, (0, 1), value=HALF).unbind(2))

    def contributions(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """What each token adds to the sums: its quantity `[B, T, N, C]` and its rates `[B, T, N]` per step."""
        x_BTD = self._convolved(x_BTD, None, None)
        quantity_BTD, _ = self.quantity_gate.split(self.quantity_gate(x_BTD))
        rates_BTN = self.rates(x_BTD)
        return quantity_BTD.view(*rates_BTN.shape, -1), rates_BTN

    def rates(self, x_BTD: Tensor) -> Tensor:
        """The decay rates of each token, `[B, T, N]`, per step; float32 or wider, with autocast too."""
        device, wide = x_BTD.device.type, torch.promote_types(x_BTD.dtype, torch.float32)
        bias_N = None if self.rate_bias is None else self.rate_bias.to(wide)
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            return decay_rates(F.linear(x_BTD.to(wide), self.rate_weight.to(wide), bias_N))

    def no_weight_decay(self) -> Iterator[nn.Parameter]:
        """Biases and the convolution; the weight of the rates has weight decay like linear layers."""
        return (parameter for parameter in self.parameters() if parameter.dim() != 2)
