"""minLSTM: an LSTM that can be computed in parallel over tokens (Feng et al., 2024, arXiv 2410.01201, section 3.2).

`y_t = W_o h_t`, `h_t = f'_t h_(t-1) + i'_t c_t`, where both gates and c depend on the token alone and `f' + i' = 1`.

Shapes: `B` batch, `T` tokens of the chunk, `D` model width, `E` channels of the recurrence.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from linnet.core.spec import Extent
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import MixerSpec, Place, RecurrentMixer
from linnet.layers.state import State
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import FusedLinear, Linear
from linnet.ops.linear_scan import minlstm, minlstm_reference, positive

STATE_BYTES = 4


class MinLstmSpec(MixerSpec):
    """channels: of the recurrence (null: the model's width). candidate: c through a positive function, or linear."""

    kind: Literal["minlstm"] = "minlstm"
    channels: Extent | None = None
    candidate: Literal["positive", "linear"] = "positive"

    @classmethod
    def examples(cls) -> list[Self]:
        """As in the paper's appendix; as in its main text, with own channels."""
        return [cls(), cls(channels=11, candidate="linear")]

    def build(self, place: Place) -> "MinLstm":
        return MinLstm(self, place.width)

    def cost(self, place: Place) -> Cost:
        """Maps only; the state is one number for each channel."""
        width, channels = place.width, self.channels or place.width
        # For each token three logits, an intermediate of both gates, both gates, the state and three intermediates of a
        # positive candidate; for each sequence the initial state.
        per_token = 11 if self.candidate == "positive" else 8
        maps = linear_cost(width, 3 * channels, True) + linear_cost(channels, width, False)
        return maps + Cost(
            state_fixed_bytes=STATE_BYTES * channels,
            activations_per_token=width,
            activation_memory=(lambda sequences, tokens: sequences * channels * (per_token * tokens + 1),),
        )


@dataclass
class MinLstmState(State):
    """The recurrence's state `[B, E]`, float32 or wider."""

    hidden: Tensor


class MinLstm(RecurrentMixer):
    """One map to both gates and the candidate, the recurrence, and an output projection."""

    references: ClassVar[Mapping[str, Callable[..., Any]]] = {"scan": minlstm_reference}

    def __init__(self, spec: MinLstmSpec, d_model: int) -> None:
        super().__init__()
        self.spec, self.channels = spec, spec.channels or d_model
        self.forget_input_candidate = FusedLinear(d_model, [self.channels] * 3, bias=True)
        self.scan = minlstm
        self.out = Linear(self.channels, d_model, bias=False)

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> MinLstmState:
        wide = torch.promote_types(dtype, torch.float32)
        return MinLstmState(torch.zeros(batch, self.channels, device=device, dtype=wide))

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, MinLstmState)
        joint_BTF = self.forget_input_candidate(x_BTD)
        with torch.autocast(x_BTD.device.type, enabled=False):
            wide_BTF = joint_BTF.to(torch.promote_types(joint_BTF.dtype, torch.float32))
            forget_BTE, input_BTE, candidate_BTE = self.forget_input_candidate.split(wide_BTF)
            if self.spec.candidate == "positive":
                candidate_BTE = positive(candidate_BTE)
            before_BE = torch.zeros_like(candidate_BTE[:, 0]) if state is None else state.hidden
            states_BTE, last_BE = self.scan(forget_BTE, input_BTE, candidate_BTE, before_BE)
            if state is not None:
                state.hidden = last_BE.detach().clone()  # a view would keep the states of all tokens
        out_BTD: Tensor = self.out(states_BTE.to(joint_BTF.dtype))
        return out_BTD
