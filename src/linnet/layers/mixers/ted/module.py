"""TED, trainable exponential decays: every past token fades at rates that it chose itself (github.com/biuq/ted).

`rate_j = -log(sigmoid(x_j w))`, `v_j = x_j W_q`, `o_t = sum_{j <= t} exp(-rate_j (t - j)) v_j`,
`y_t = (silu(o_t) W_o) * (x_t W_gate)`. The rate holds for the rest of the token's life. With several heads
(ours) a token has a rate for each, which holds for the head's share of the channels. Ours too: `conv`, by which a token
knows those just before it, and `key_width`, by which a reader chooses among what is left.

Shapes: `B` batch, `T` tokens of the chunk, `N` heads, `C` channels of a head, `D` model width, `M` width of a key.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from linnet.core.spec import Extent
from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy, FullCache
from linnet.layers.contract import DecodeStep, Mixer, MixerSpec, Place, Traits
from linnet.layers.mixers.ted.bank import BankState
from linnet.layers.mixers.ted.eviction import EvictionState
from linnet.layers.mixers.ted.full import FullState
from linnet.layers.mixers.ted.policies import LONGEST, BankCache, EvictionCache
from linnet.layers.mixers.ted.state import Shape, TedState
from linnet.layers.state import State
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import FusedLinear, Linear, uses_fused_backward
from linnet.nn.neighbors import CausalConvolution, convolution_cost
from linnet.nn.packed_linear import gemv, gemv_of
from linnet.ops.decay.rates import MAX_TOLERANCE, MIN_TOLERANCE, rate_bank
from linnet.ops.decay.reference import Keys, decay_definition, decay_rates
from linnet.ops.decay.sums import TOLERANCE, Form, decay, decay_flops, default_chunk, uses_chunks
from linnet.ops.gated_feed_forward import gated_output
from linnet.ops.rms_norm import l2_normalize

RATE_BYTES = 4
HALF = 0.5**0.5
"""A length whose square is a half."""


class TedSpec(MixerSpec):
    """Trainable exponential decays with `heads` rates per token; 1 as published.

    key_width: of a query and a key of length 1 for each head; each weight is multiplied by `(1 + q_t . k_j) / 2`. conv:
    tokens that a convolution sees, whose outputs are added to the inputs first. None: as published.
    `form`, `tolerance` and `chunk` say how the sums are computed, not what they are; chunk None: the fastest.
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
        """One rate per token, a rate per head, and sums in linear time, as exact as they can be; both with keys."""
        linear = cls(heads=2, form="chunked", tolerance=MIN_TOLERANCE, chunk=2)
        keyed = cls(heads=4, rate_bias=True, key_width=3, conv=3)
        return [cls(), cls(heads=4, rate_bias=True), linear, keyed, linear.model_copy(update={"key_width": 5})]

    def check(self, width: int) -> None:
        if width % self.heads:
            raise ValueError(f"heads: {self.heads}: must divide the width {width}")

    def build(self, place: Place) -> "Ted":
        return Ted(self, place.width, place.context_length)

    def cost(self, place: Place) -> Cost:
        """Projections, the rates, and a weighted sum over the past; quantities, keys and rates as state."""
        d_model, keys = place.width, self.heads * self.key_places
        projections = linear_cost(d_model, d_model, bias=False).repeated(3)
        if self.key_width:
            projections += linear_cost(d_model, self.heads * self.key_width, bias=False).repeated(2)
        if self.conv:
            projections += convolution_cost(d_model, self.conv, bias=False)
        rates = replace(linear_cost(d_model, self.heads, self.rate_bias), matrices=())  # too narrow for one
        rate_bytes = RATE_BYTES * self.heads
        state = Cost(state_elements_per_token=d_model + keys, state_bytes_per_token=rate_bytes)
        sums = partial(
            decay_flops,
            width=d_model,
            heads=self.heads,
            form=self.form,
            tolerance=self.tolerance,
            chunk=self.chunk,
            key=self.key_places,
        )
        kept = partial(self._kept, d_model)
        return projections + rates + state + Cost(flops_by_length=(sums,), activation_memory=(kept,))

    @property
    def key_places(self) -> int:
        """Numbers of a key: its width, and one that is the same for all; 0 without keys."""
        return self.key_width + 1 if self.key_width else 0

    def _kept(self, width: int, sequences: int, tokens: int) -> int:
        """Elements kept for the backward pass: of the chunked form its inputs; of the other the weights too, twice.

        Of queries and keys themselves, without what is the same for all and with it, and their lengths; of the other
        form scores, and their products with weights.
        """
        heads, key = self.heads, self.key_places
        chunked = uses_chunks(self.form, tokens)
        of_token = 5 * width + heads + 4 * heads * key
        extra = self.key_width or 0  # a gain
        if self.conv:
            of_token += 2 * width
            extra += sequences * (self.conv - 1) * width
        if chunked:
            return sequences * tokens * (of_token + heads) + extra
        if heads > 1:
            of_token += width
        matrices = heads * (4 if key else 2)
        extra += (8 + 1) * tokens * tokens // 4  # ages and a mask
        return sequences * tokens * (of_token + matrices * tokens) + extra


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
        """Spread the first lifetimes, over the tokens or over the heads.

        A token that fades at once gets no gradient from what comes later, so some have to live long from the start.
        Without a bias `x w` has a standard deviation of 3 for a normalized x: rates from 0.05 to 3. With biases it has
        one of 1, and the heads' lifetimes are spaced evenly in their logarithm from 1 to the context length.
        """
        heads, width = self.rate_weight.shape
        if self.rate_bias is None:
            nn.init.normal_(self.rate_weight, std=3 * width**-0.5)
            return
        nn.init.normal_(self.rate_weight, std=width**-0.5)
        # One head starts in the middle, not at the short end.
        exponents_N = torch.linspace(0, 1, heads) if heads > 1 else torch.tensor([0.5])
        lifetimes_N = self.context_length**exponents_N
        with torch.no_grad():
            self.rate_bias.copy_(-lifetimes_N.reciprocal().expm1().log())

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> TedState:
        """An empty state; with `FULL` there is room for `capacity` tokens."""
        heads, width = self.rate_weight.shape
        before = 0 if self.conv is None else self.conv.before
        shape = Shape(batch, heads, width // heads, device, dtype, self.key_places, before)
        match cache_policy:
            case EvictionCache():
                return EvictionState.empty(shape, cache_policy)
            case BankCache():
                length = min(capacity, LONGEST) if cache_policy.length is None else cache_policy.length
                bank = rate_bank(self.tolerance, self.chunk, 1 << (length - 1).bit_length())
                return BankState.empty(shape, bank)
            case _:
                return FullState.empty(shape, capacity)

    def supports(self, layout: BatchLayout, length: int, state: State | None) -> bool:
        """What the state can take in; without one anything. A convolution goes on at once, not behind padding."""
        if not isinstance(state, TedState):
            return True
        return state.supports(layout, length) and (self.conv is None or layout.padding is None or layout.starts == 0)

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, TedState)
        real_BT = layout.real(x_BTD.shape[1], x_BTD.device)
        x_BTD = self._convolved(x_BTD, real_BT, state)
        v_BTD, gate_BTD = self.quantity_gate.split(self.quantity_gate(x_BTD))
        rates_BTN = self.rates(x_BTD)
        keys = self._keys(x_BTD)
        if real_BT is not None:
            v_BTD = v_BTD.masked_fill(~real_BT[..., None], 0.0)
        if state is None:
            v_BTNC = v_BTD.view(*rates_BTN.shape, -1)
            o_BTD = self.decay(rates_BTN, v_BTNC, x_BTD.shape[1], keys=keys).flatten(2)
        else:
            o_BTD = state.read(rates_BTN, v_BTD, layout, self.decay, keys)
        return self._output(o_BTD, gate_BTD)

    def _convolved(self, x_BTD: Tensor, real_BT: Tensor | None, state: TedState | None) -> Tensor:
        """Each token with what the convolution makes of it and those before, `[B, T, D]`; advances the state."""
        if self.conv is None:
            return x_BTD
        if real_BT is not None:
            x_BTD = x_BTD.masked_fill(~real_BT[..., None], 0.0)
        before_BDW = None if state is None else state.inputs
        added_BDT, last_BDW = self.conv.following(x_BTD.transpose(1, 2), before_BDW)
        if state is not None and before_BDW is not None:
            state.inputs = last_BDW.detach().to(before_BDW.dtype).clone()
        return x_BTD + added_BDT.transpose(1, 2)

    def _convolved_row(self, state: TedState) -> Callable[[Tensor], Tensor]:
        """As `_convolved`, of a row `[1, D]` at a time; writes into the state's tensor."""
        inputs_1DW, conv = state.inputs, self.conv
        if inputs_1DW is None or conv is None:
            return lambda x_1D: x_1D
        weight_DW = conv.weight.detach()[:, 0]

        def convolved(x_1D: Tensor) -> Tensor:
            window_DW = torch.cat([inputs_1DW[0], x_1D.t()], dim=1)
            inputs_1DW.copy_(window_DW[None, :, 1:])
            return x_1D + (window_DW * weight_DW).sum(1)

        return convolved

    def _keys(self, x_BTD: Tensor) -> Keys | None:
        """Of length 1 with a place that is the same for all, so that their products are `(1 + q . k) / 2`."""
        if self.query_key is None:
            return None
        return self._matching(self.query_key(x_BTD))

    def _matching(self, both_BTJ: Tensor) -> Keys:
        both_BT2NM = torch.unflatten(both_BTJ, -1, (2, -1, self.key_places - 1))
        both_BT2NM = l2_normalize(both_BT2NM, HALF)
        return Keys(*F.pad(both_BT2NM, (0, 1), value=HALF).unbind(2))

    def _output(self, o_BTD: Tensor, gate_BTD: Tensor) -> Tensor:
        if uses_fused_backward(o_BTD, self.out):
            return gated_output(o_BTD, self.out.weight, gate_BTD)
        out_BTD: Tensor = self.out(F.silu(o_BTD)) * gate_BTD
        return out_BTD

    @property
    def reads_alone(self) -> bool:
        """Whether what a token leaves behind depends on its own input alone, on none before it."""
        return self.conv is None

    def contributions(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """What each token leaves behind: its quantity, by head `[B, T, N, C]`, and its rates `[B, T, N]` per step."""
        x_BTD = self._convolved(x_BTD, None, None)
        quantity_BTD, _ = self.quantity_gate.split(self.quantity_gate(x_BTD))
        rates_BTN = self.rates(x_BTD)
        return quantity_BTD.view(*rates_BTN.shape, -1), rates_BTN

    def rates(self, x_BTD: Tensor) -> Tensor:
        """The decay rates of each token, `[B, T, N]`, per step; float32 or wider."""
        if torch.is_autocast_enabled(x_BTD.device.type):
            with torch.autocast(x_BTD.device.type, enabled=False):
                return self._rates(x_BTD)
        return self._rates(x_BTD)

    def _rates(self, x_BTD: Tensor) -> Tensor:
        wide = torch.promote_types(x_BTD.dtype, torch.float32)
        bias_N = None if self.rate_bias is None else self.rate_bias.to(wide)
        return decay_rates(F.linear(x_BTD.to(wide), self.rate_weight.to(wide), bias_N))

    def no_weight_decay(self) -> Iterator[nn.Parameter]:
        """Biases and the convolution alone: the weights of the rates decay like those of linear maps."""
        return (parameter for parameter in self.parameters() if parameter.dim() != 2)

    def _joint_row(self) -> Callable[[Tensor], Tensor] | None:
        """Quantity, gate, the logits of the rates times -1, query and key side by side, of a row `[1, D]`.

        One product where weights are a plain matrix; else what is not packed has one of its own.
        """
        matching = [] if self.query_key is None else [self.query_key.weight]
        narrow = torch.cat([-self.rate_weight, *matching]).detach()
        bias = (
            None
            if self.rate_bias is None
            else F.pad(-self.rate_bias.detach(), (0, len(narrow) - len(self.rate_weight)))
        )
        if isinstance(self.quantity_gate, Linear):
            weight = torch.cat([self.quantity_gate.weight.detach(), narrow])
            return gemv(weight, None if bias is None else F.pad(bias, (len(weight) - len(narrow), 0))).of
        wide, rest = gemv_of(self.quantity_gate), gemv(narrow, bias)
        return None if wide is None else lambda x_1D: torch.cat([wide.of(x_1D), rest.of(x_1D)], dim=1)

    def decode_step(self, state: State | None, record: AuxiliaryOutputs | None = None) -> DecodeStep | None:
        assert isinstance(state, TedState)
        out, joint = gemv_of(self.out), self._joint_row()
        if out is None or joint is None or any(len(held) != 1 for held in state.tensors().values()):
            return None
        heads, width = self.rate_weight.shape
        parts = [width, width, heads, 0 if self.query_key is None else self.query_key.out_features]
        read, convolved = state.row_reader(), self._convolved_row(state)

        def step(sum_1D: Tensor, x_1D: Tensor, position: int) -> Tensor:
            quantity_1D, gate_1D, rates_1N, matching_1J = torch.split(joint(convolved(x_1D)), parts, dim=1)
            keys = None if self.query_key is None else self._matching(matching_1J[None])
            read_1D = read(F.softplus(rates_1N), quantity_1D, position, keys)
            return torch.addcmul(sum_1D, out.of(F.silu(read_1D)), gate_1D)

        return step
