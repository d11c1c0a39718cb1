"""Rotary position embedding (Su et al., "RoFormer", arXiv 2104.09864, eq. 34).

Legend: `B` batch, `T` tokens, `N` heads, `K` head width. Pair `i` is turned by `position * base ** (-2i / K)`.
`adjacent` pairs are `(0,1), (2,3), ...` (the paper; PLDR-LLM); `halves` are `(0,K/2), (1,K/2+1), ...` (Llama).
A table for fewer than `K` elements turns the first of each head and leaves the rest as they are (GPT-NeoX).
"""

from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.rotary_scaling import Scaling, unscaled
from linnet.ops.support import is_exporting

Pairing = Literal["adjacent", "halves"]


@lru_cache(maxsize=32)
def _table(
    length: int, width: int, base: float, device: torch.device, scaling: Scaling | None
) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[length, K/2]`, computed in float32 as the published models do.

    By the processor, so that a model is the same on every device: a GPU's cosine differs in the last digit. What is
    compiled has no table but makes one, and makes it where it is.
    """
    where = device if torch.compiler.is_compiling() else torch.device("cpu")
    with torch.inference_mode(False):
        cos, sin = _turns(torch.arange(length, dtype=torch.float32, device=where), width, base, scaling)
        return cos.to(device), sin.to(device)


def _turns(places: Tensor, width: int, base: float, scaling: Scaling | None) -> tuple[Tensor, Tensor]:
    """Cosines and sines at `places [...]`, `[..., K/2]` each."""
    if scaling is None:
        angles = places[..., None] * unscaled(width, base, places.device)
        return angles.cos(), angles.sin()
    angles = places[..., None] * scaling.frequencies(width, base, places.device)
    return angles.cos() * scaling.gain, angles.sin() * scaling.gain


def rotary_table(
    positions: Tensor, width: int, base: float, highest: int, scaling: Scaling | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines and sines for `positions` (`[T]` or `[B, T]`, all `< highest`), each `[..., T, 1, K/2]`, float32."""
    if is_exporting():  # a graph knows no highest position: it computes what it needs
        cos, sin = _turns(positions.float(), width, base, scaling)
        return cos.unsqueeze(-2), sin.unsqueeze(-2)
    cos, sin = _table(_power_of_two(highest), width, base, positions.device, scaling)
    return cos[positions].unsqueeze(-2), sin[positions].unsqueeze(-2)


def rotary_range(
    start: int, end: int, width: int, base: float, device: torch.device, scaling: Scaling | None = None
) -> tuple[Tensor, Tensor]:
    """`rotary_table` for the positions from `start` to before `end`, as views: for one token a copy costs more."""
    cos, sin = _table(_power_of_two(end), width, base, device, scaling)
    return cos[start:end].unsqueeze(-2), sin[start:end].unsqueeze(-2)


def _power_of_two(highest: int) -> int:
    """The next one from `highest` on, so that a growing stream rarely needs another table."""
    return 1 << (highest - 1).bit_length() if highest > 1 else 1


def rotate_reference(x_BTNK: Tensor, table: tuple[Tensor, Tensor], pairing: Pairing) -> Tensor:
    """The definition: turn every pair of `x [B, T, N, K]` by the angles of `rotary_table`; keeps the dtype of `x`."""
    cos, sin = (part.to(x_BTNK.dtype) for part in table)
    width = 2 * cos.shape[-1]
    first, second = _pairs(x_BTNK[..., :width], pairing)
    pairs = (first * cos - second * sin, second * cos + first * sin)
    turned = torch.cat(pairs, dim=-1) if pairing == "halves" else torch.stack(pairs, dim=-1).flatten(-2)
    return torch.cat([turned, x_BTNK[..., width:]], dim=-1)


def _pairs(x_BTNK: Tensor, pairing: Pairing) -> tuple[Tensor, Tensor]:
    """The first and the second elements of all pairs, `[B, T, N, K/2]` views."""
    if pairing == "halves":
        first, second = x_BTNK.chunk(2, dim=-1)
        return first, second
    return x_BTNK[..., 0::2], x_BTNK[..., 1::2]


def _turn_into(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> None:
    width = 2 * cos.shape[-1]
    if width < x.shape[-1]:
        out[..., width:] = x[..., width:]
    first, second = _pairs(x[..., :width], pairing)
    out_first, out_second = _pairs(out[..., :width], pairing)
    torch.mul(first, cos, out=out_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out_second).addcmul_(first, sin)


def _turned(
    joint_BTNK: Tensor, heads: tuple[int, int, int], cos: Tensor, sin: Tensor, pairing: Pairing
) -> tuple[Tensor, ...]:
    queries, keys, values = heads
    unturned, v_BTMK = torch.split(joint_BTNK, [queries + keys, values], dim=2)
    turned = torch.empty_like(unturned, memory_format=torch.contiguous_format)
    _turn_into(turned, unturned, cos, sin, pairing)
    return *torch.split(turned, [queries, keys], dim=2), v_BTMK


class _RotateHeads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, joint_BTNK: Tensor, heads: tuple[int, int, int], cos: Tensor, sin: Tensor, pairing: Pairing
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cos, sin)
        ctx.heads, ctx.pairing, ctx.shape = heads, pairing, joint_BTNK.shape
        return _turned(joint_BTNK, heads, cos, sin, pairing)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_q: Tensor, of_k: Tensor, of_v: Tensor) -> tuple[Tensor, None, None, None, None]:
        cos, sin = ctx.saved_tensors
        gradient = of_q.new_empty(ctx.shape)
        into_q, into_k, into_v = torch.split(gradient, list(ctx.heads), dim=2)
        _turn_into(into_q, of_q, cos, -sin, ctx.pairing)
        _turn_into(into_k, of_k, cos, -sin, ctx.pairing)
        into_v.copy_(of_v)
        return gradient, None, None, None, None


def _turned_in_graph(x_BTNK: Tensor, table: tuple[Tensor, Tensor], pairing: Pairing) -> Tensor:
    """`rotate_reference` in few operations: each of them costs as much as what it computes for a token."""
    if pairing != "halves":
        return rotate_reference(x_BTNK, table, pairing)
    cos, sin = table
    width = 2 * cos.shape[-1]
    first, second = _pairs(x_BTNK[..., :width], pairing)
    twice = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)  # one for all layers
    turned = x_BTNK[..., :width] * twice[0] + torch.cat([second, first], dim=-1) * twice[1]
    return turned if width == x_BTNK.shape[-1] else torch.cat([turned, x_BTNK[..., width:]], dim=-1)


def rotate(x_BTNK: Tensor, table: tuple[Tensor, Tensor], pairing: Pairing) -> Tensor:
    """All heads of `[B, T, N, K]` turned, fast."""
    return rotate_heads(x_BTNK, (x_BTNK.shape[2], 0, 0), table, pairing)[0]


def rotate_heads(
    joint_BTNK: Tensor, heads: tuple[int, int, int], table: tuple[Tensor, Tensor], pairing: Pairing
) -> tuple[Tensor, ...]:
    """Take `[B, T, N, K]` apart into queries, keys and values (`heads` of each) and turn queries and keys, fast.

    The gradient of the joint tensor is written once, without a copy to join its parts.
    """
    if is_exporting():
        unturned_BTJK, v_BTMK = torch.split(joint_BTNK, [heads[0] + heads[1], heads[2]], dim=2)
        return *torch.split(_turned_in_graph(unturned_BTJK, table, pairing), list(heads[:2]), dim=2), v_BTMK
    if torch.compiler.is_compiling():
        q_BTNK, k_BTMK, v_BTMK = torch.split(joint_BTNK, list(heads), dim=2)
        return rotate_reference(q_BTNK, table, pairing), rotate_reference(k_BTMK, table, pairing), v_BTMK
    cos, sin = (part.to(joint_BTNK.dtype) for part in table)
    if not torch.is_grad_enabled():
        return _turned(joint_BTNK, heads, cos, sin, pairing)
    out: tuple[Tensor, ...] = _RotateHeads.apply(joint_BTNK, heads, cos, sin, pairing)  # type: ignore[no-untyped-call]
    return out
