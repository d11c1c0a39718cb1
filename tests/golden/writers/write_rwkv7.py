"""Writes `rwkv7_small.safetensors` with flash-linear-attention's layers of RWKV-7: two of time mixing, one of channels.

Its kernels want a GPU and lose digits; in their place stand the plain forms that the package's own tests hold them to:
`token_shift_ref`, `torch_addcmul_rwkv7`, `k_update_ref`, `dplr_recurrence`, `gate_output_correction_ref`.

`pip install flash-linear-attention==0.6.0 transformers==5.23.0 triton torch==2.13.0`, then
`python tests/golden/writers/write_rwkv7.py`.
"""

from importlib.metadata import version
from typing import Any

import fla.layers.rwkv7 as time_mixing
import fla.models.rwkv7.modeling_rwkv7 as channel_mixing
import torch
from fla.modules.token_shift import token_shift_ref
from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence
from fla.ops.rwkv7.fused_addcmul import torch_addcmul_rwkv7
from fla.ops.rwkv7.fused_k_update import k_update_ref
from fla.ops.rwkv7.gate_output_correction import gate_output_correction_ref
from torch import Tensor, nn
from writing import BATCH, LENGTHS, drawn, gradients, no_float32, weights, write

WIDTH, HEAD, LAYERS, HIDDEN = 12, 4, 2, 20
RANKS = {"decay_low_rank_dim": 3, "a_low_rank_dim": 4, "v_low_rank_dim": 2, "gate_low_rank_dim": 5}
EPS = 1e-5


class OneLayer:
    """What a layer asks of a cache: its state, and where to leave the next one."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        self.state: dict[str, Any] = dict(state)

    def update(self, **left: Any) -> None:
        self.state |= left


def shifted(x: Tensor, cu_seqlens: None, output_cache: bool, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A cached token is one more before the others."""
    delta = token_shift_ref(x if cache is None else torch.cat([cache[:, None], x], dim=1))
    return delta[:, -x.shape[1] :], x[:, -1]


def recurred(r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The recurrence has heads first, and scales what is read by the root of its width, which the layer does not."""
    r, k, v, a, b, w = (part.transpose(1, 2) for part in (r * HEAD**0.5, k, v, a, b, w))
    o, state = dplr_recurrence(r, k, v, a, b, w, options["initial_state"])
    return o.transpose(1, 2), state


def plain() -> None:
    time_mixing.token_shift = channel_mixing.token_shift = shifted
    time_mixing.fused_addcmul_rwkv7 = torch_addcmul_rwkv7
    time_mixing.fused_k_rwkv7 = k_update_ref
    time_mixing.chunk_rwkv7 = recurred
    time_mixing.gate_output_correction = gate_output_correction_ref
    time_mixing.get_layer_cache = lambda layer, cache: cache.state if cache.state else None
    time_mixing.update_layer_cache = lambda layer, cache, **left: cache.update(**left)


def time_layer(index: int) -> nn.Module:
    layer = time_mixing.RWKV7Attention(
        hidden_size=WIDTH, head_dim=HEAD, norm_eps=EPS, layer_idx=index, num_hidden_layers=LAYERS, **RANKS
    )
    return drawn(layer)


def started() -> list[dict[str, Tensor]]:
    """The last token and a matrix for each head, as if behind other tokens; of each layer."""
    heads = WIDTH // HEAD
    shapes = {"conv_state": (BATCH, WIDTH), "recurrent_state": (BATCH, heads, HEAD, HEAD)}
    return [{name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()} for _ in range(LAYERS)]


def times(
    layers: nn.ModuleList, x: Tensor, upstream: Tensor, states: list[dict[str, Tensor]], prefix: str
) -> dict[str, Tensor]:
    """Each on a residual branch; the second mixes its values with the first one's."""
    x = x.clone().requires_grad_()
    found = {f"{prefix}.start.{index}.{name}": part for index, of in enumerate(states) for name, part in of.items()}
    y, first = x, None
    for index, layer in enumerate(layers):
        cache = OneLayer(states[index] if states else {})
        out, _, _, first = layer(y, past_key_values=cache, use_cache=True, v_first=first)
        y = y + out
        found[f"{prefix}.recurrent_state.{index}"] = cache.state["recurrent_state"]
    return {**found, f"{prefix}.y": y, **gradients(y, x, layers, upstream, f"{prefix}.grad")}


def channels(layer: nn.Module, x: Tensor, upstream: Tensor, prefix: str) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    y, _ = layer(x)
    return {f"{prefix}.y": y, **gradients(y, x, layer, upstream, f"{prefix}.grad")}


def main() -> None:
    plain()
    torch.manual_seed(0)
    x, upstream = (torch.randn(BATCH, max(LENGTHS), WIDTH, dtype=torch.float64) for _ in range(2))
    layers = nn.ModuleList(time_layer(index) for index in range(LAYERS))
    channel = drawn(
        channel_mixing.RWKV7FeedForward(WIDTH, intermediate_size=HIDDEN, layer_idx=1, num_hidden_layers=LAYERS)
    )
    tensors = {"x": x, "upstream": upstream, **weights(layers, "times"), **weights(channel, "channels")}
    with no_float32():
        for length in LENGTHS:
            part = x[:, :length], upstream[:, :length]
            tensors |= times(layers, *part, [], f"times.{length}") | channels(channel, *part, f"channels.{length}")
        tensors |= times(layers, x, upstream, started(), "times.started")
    config = {"heads": WIDTH // HEAD, "hidden": HIDDEN, "eps": HEAD * EPS, "ranks": list(RANKS.values())}
    write("rwkv7_small.safetensors", tensors, {**config, "fla": version("flash-linear-attention")})


if __name__ == "__main__":
    main()
