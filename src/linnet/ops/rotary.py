"""Rotary position embedding (Su et al., "RoFormer", arXiv 2104.09864, eq. 34), its scaling, and sinusoidal positions.

Legend: `B` batch, `T` tokens, `N` heads, `K` head width, `D` width of a model. Pair `i` is rotated by
`position * base ** (-2i / K)`. `adjacent` pairs are `(0,1), (2,3), ...` (the paper; PLDR-LLM); `halves` are
`(0,K/2), (1,K/2+1), ...` (Llama). A table for fewer than `K` elements rotates the first elements of each head and
leaves the rest unchanged (GPT-NeoX). Scaling makes the angles smaller, for positions beyond the trained length `T0`.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.native import captures_custom_ops, captures_row_ops
from linnet.ops.support import is_exporting

Pairing = Literal["adjacent", "halves"]

MAX_TABLE = 1 << 18
"""Positions of the largest table; beyond them, in streams of any length, entries are computed for each pass."""

SINUSOIDAL_BASE = 10000.0


@dataclass(frozen=True)
class Interpolation:
    """Position interpolation: all positions divided by `factor` (Chen et al., arXiv 2306.15595, eq. 4)."""

    factor: float
    gain = 1.0  # cosines and sines are multiplied by it


@dataclass(frozen=True)
class NtkBase:
    """A larger base, so that the slowest pair is divided by `factor` and the fastest one is unchanged.

    bloc97, 2023; Peng et al., arXiv 2309.00071, eq. 16.
    """

    factor: float
    gain = 1.0

    def base(self, width: int, base: float) -> float:
        """The larger base, for `width` elements."""
        larger: float = base * self.factor ** (width / max(width - 2, 1))
        return larger


@dataclass(frozen=True)
class YarnRamp:
    """YaRN: pairs that rotate often within T0 are unchanged, slow ones are divided by `factor`, with a ramp between.

    Peng et al., arXiv 2309.00071, eq. 17 to 23. fast, slow: rotations within T0 above which a pair is fast, and below
    which it is slow. gain: factor of cosines and sines, the paper's `sqrt(1/t)`.
    """

    factor: float
    trained: int
    fast: float
    slow: float
    gain: float
    truncate: bool = True  # whether the ramp begins and ends at whole pairs


@dataclass(frozen=True)
class Llama3Ramp:
    """Llama 3.1: as YaRN, but the ramp is linear in the number of rotations within T0, and there is no gain.

    Transformers' `_compute_llama3_parameters`.
    """

    factor: float
    trained: int
    fast: float
    slow: float
    gain = 1.0


Scaling = Interpolation | NtkBase | YarnRamp | Llama3Ramp


def frequencies(width: int, base: float, device: torch.device, scaling: Scaling | None = None) -> Tensor:
    """Angles per position, `[K/2]`, float32."""
    if isinstance(scaling, NtkBase):
        base = scaling.base(width, base)
    exponents = torch.arange(0, width, 2, dtype=torch.float32, device=device) / width
    as_trained: Tensor = base**-exponents
    if isinstance(scaling, Interpolation):
        return as_trained / scaling.factor
    if isinstance(scaling, Llama3Ramp):
        rotations = scaling.trained / (2 * math.pi) * as_trained
        kept = ((rotations - scaling.slow) / (scaling.fast - scaling.slow)).clamp(0, 1)
        return as_trained / scaling.factor * (1 - kept) + as_trained * kept
    if isinstance(scaling, YarnRamp):
        # The pair, as a real number, that makes these rotations within T0.
        fast, slow = (
            width * math.log(scaling.trained / (rotations * 2 * math.pi)) / (2 * math.log(base))
            for rotations in (scaling.fast, scaling.slow)
        )
        if scaling.truncate:
            fast, slow = math.floor(fast), math.ceil(slow)
        low, high = max(fast, 0), min(slow, width - 1)
        pairs = torch.arange(width // 2, dtype=torch.float32, device=device)
        divided = ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)
        return as_trained * (1 - divided) + as_trained / scaling.factor * divided
    return as_trained


def dynamic_factor(factor: float, length: int, trained: int) -> float:
    """The factor of `NtkBase` in Transformers' dynamic scaling, for a text of `length` tokens."""
    return max(1.0, factor * length / trained - (factor - 1))


def yarn_gain(factor: float) -> float:
    """The paper's `sqrt(1/t) = 0.1 ln(factor) + 1` (eq. 22)."""
    return 0.1 * math.log(factor) + 1 if factor > 1 else 1.0


@lru_cache(maxsize=32)
def _table(
    length: int, width: int, base: float, device: torch.device, scaling: Scaling | None
) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[length, K/2]`, computed in float32 as the published models do.

    The CPU computes them, so that a model is the same on every device: the cosine of a GPU differs in the last digit.
    Compiled code computes its tables where it runs.
    """
    where = device if torch.compiler.is_compiling() else torch.device("cpu")
    with torch.inference_mode(False):
        positions = torch.arange(length, dtype=torch.float32, device=where)
        cos, sin = _cos_and_sin(positions, width, base, scaling)
        return cos.to(device), sin.to(device)


def _cos_and_sin(positions: Tensor, width: int, base: float, scaling: Scaling | None) -> tuple[Tensor, Tensor]:
    """Cosines and sines at `positions [...]`, `[..., K/2]` each."""
    angles = positions[..., None] * frequencies(width, base, positions.device, scaling)
    if scaling is None:
        return angles.cos(), angles.sin()
    return angles.cos() * scaling.gain, angles.sin() * scaling.gain


def _entries(positions: Tensor, width: int, base: float, scaling: Scaling | None) -> tuple[Tensor, Tensor]:
    """What the table has at these positions, as `rotary_table` gives it, without a table."""
    in_graph = torch.compiler.is_compiling() or is_exporting()
    where = positions.device if in_graph else torch.device("cpu")
    cos, sin = _cos_and_sin(positions.to(where, torch.float32), width, base, scaling)
    return cos.to(positions.device).unsqueeze(-2), sin.to(positions.device).unsqueeze(-2)


def rotary_table(
    positions: Tensor, width: int, base: float, highest: int, scaling: Scaling | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines and sines for `positions` (`[T]` or `[B, T]`, all `< highest`), each `[..., T, 1, K/2]`, float32."""
    if is_exporting() or highest > MAX_TABLE:  # in a graph the highest position is unknown
        return _entries(positions, width, base, scaling)
    # The table has a power of two of positions, so that a growing stream rarely needs another one.
    length = 1 << (highest - 1).bit_length() if highest > 1 else 1
    cos, sin = _table(length, width, base, positions.device, scaling)
    return cos[positions].unsqueeze(-2), sin[positions].unsqueeze(-2)


def rotary_range(
    start: int, end: int, width: int, base: float, device: torch.device, scaling: Scaling | None = None
) -> tuple[Tensor, Tensor]:
    """`rotary_table` for the positions from `start` to before `end`, as views: for one token a copy costs more."""
    if end > MAX_TABLE:
        return _entries(torch.arange(start, end, device=device), width, base, scaling)
    length = 1 << (end - 1).bit_length() if end > 1 else 1
    cos, sin = _table(length, width, base, device, scaling)
    return cos[start:end].unsqueeze(-2), sin[start:end].unsqueeze(-2)


def sinusoidal(positions: Tensor, width: int, highest: int) -> Tensor:
    """Sinusoidal positions (Vaswani et al., arXiv 1706.03762, sec. 3.5), `[..., T, D]`, float32.

    Element 2i is the sine, element 2i + 1 the cosine of `position * 10000 ** (-2i / D)`. Arguments as `rotary_table`.
    """
    cos, sin = rotary_table(positions, width, SINUSOIDAL_BASE, highest)
    return torch.cat([sin, cos], dim=-2).mT.flatten(-2)[..., :width]


def sinusoidal_range(start: int, end: int, width: int, device: torch.device) -> Tensor:
    """`sinusoidal` for the positions from `start` to before `end`, `[T, D]`."""
    cos, sin = rotary_range(start, end, width, SINUSOIDAL_BASE, device)
    return torch.cat([sin, cos], dim=-2).mT.flatten(-2)[..., :width]


def rotate_reference(x_BTNK: Tensor, table: tuple[Tensor, Tensor], pairing: Pairing) -> Tensor:
    """The definition: rotate every pair of `x [B, T, N, K]` by the angles of `rotary_table`; keeps the dtype of `x`."""
    cos, sin = (part.to(x_BTNK.dtype) for part in table)
    width = 2 * cos.shape[-1]
    first, second = _pairs(x_BTNK[..., :width], pairing)
    pairs = (first * cos - second * sin, second * cos + first * sin)
    rotated = torch.cat(pairs, dim=-1) if pairing == "halves" else torch.stack(pairs, dim=-1).flatten(-2)
    return torch.cat([rotated, x_BTNK[..., width:]], dim=-1)


def rotate(x_BTNK: Tensor, table: tuple[Tensor, Tensor], pairing: Pairing) -> Tensor:
    """`rotate_reference` of all heads, fast."""
    return rotate_heads(x_BTNK, (x_BTNK.shape[2], 0, 0), table, pairing)[0]


def rotate_heads(
    joint_BTNK: Tensor, heads: tuple[int, int, int], table: tuple[Tensor, Tensor], pairing: Pairing
) -> tuple[Tensor, ...]:
    """Split `[B, T, N, K]` into queries, keys and values (`heads` of each) and rotate queries and keys, fast.

    The gradient of the joint tensor is written once, without a copy that joins its parts.
    """
    if is_exporting():
        queries_and_keys_BTJK, v_BTMK = torch.split(joint_BTNK, [heads[0] + heads[1], heads[2]], dim=2)
        rotated_BTJK = _rotate_in_graph(queries_and_keys_BTJK, table, pairing)
        return *torch.split(rotated_BTJK, list(heads[:2]), dim=2), v_BTMK
    if torch.compiler.is_compiling():
        q_BTNK, k_BTMK, v_BTMK = torch.split(joint_BTNK, list(heads), dim=2)
        return rotate_reference(q_BTNK, table, pairing), rotate_reference(k_BTMK, table, pairing), v_BTMK
    cos, sin = (part.to(joint_BTNK.dtype) for part in table)
    if not torch.is_grad_enabled():
        return _split_and_rotate(joint_BTNK, heads, cos, sin, pairing)
    out: tuple[Tensor, ...] = _RotateHeads.apply(joint_BTNK, heads, cos, sin, pairing)  # type: ignore[no-untyped-call]
    return out


class _RotateHeads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, joint_BTNK: Tensor, heads: tuple[int, int, int], cos: Tensor, sin: Tensor, pairing: Pairing
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cos, sin)
        ctx.heads, ctx.pairing, ctx.shape = heads, pairing, joint_BTNK.shape
        return _split_and_rotate(joint_BTNK, heads, cos, sin, pairing)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor) -> tuple[Tensor, None, None, None, None]:
        cos, sin = ctx.saved_tensors
        gradient = grad_q.new_empty(ctx.shape)
        into_q, into_k, into_v = torch.split(gradient, list(ctx.heads), dim=2)
        _rotate_into(into_q, grad_q, cos, -sin, ctx.pairing)
        _rotate_into(into_k, grad_k, cos, -sin, ctx.pairing)
        into_v.copy_(grad_v)
        return gradient, None, None, None, None


def _split_and_rotate(
    joint_BTNK: Tensor, heads: tuple[int, int, int], cos: Tensor, sin: Tensor, pairing: Pairing
) -> tuple[Tensor, ...]:
    queries, keys, values = heads
    unrotated, v_BTMK = torch.split(joint_BTNK, [queries + keys, values], dim=2)
    rotated = torch.empty_like(unrotated, memory_format=torch.contiguous_format)
    _rotate_into(rotated, unrotated, cos, sin, pairing)
    return *torch.split(rotated, [queries, keys], dim=2), v_BTMK


def _rotate_into(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> None:
    width = 2 * cos.shape[-1]
    if width < x.shape[-1]:
        out[..., width:] = x[..., width:]
    first, second = _pairs(x[..., :width], pairing)
    out_first, out_second = _pairs(out[..., :width], pairing)
    torch.mul(first, cos, out=out_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out_second).addcmul_(first, sin)


def _rotate_in_graph(x_BTNK: Tensor, table: tuple[Tensor, Tensor], pairing: Pairing) -> Tensor:
    """`rotate_reference` in few operations, each of which costs as much as its arithmetic for one token."""
    if captures_row_ops():
        from linnet.ops.native import custom_ops

        by_operator: Tensor = custom_ops.rotate(x_BTNK, *table, pairing == "adjacent")
        return by_operator
    if captures_custom_ops() and 2 * table[0].shape[-1] == x_BTNK.shape[-1]:
        return _rotate_pointwise(x_BTNK, table, pairing)
    if pairing != "halves":
        return rotate_reference(x_BTNK, table, pairing)
    cos, sin = (part.to(x_BTNK.dtype) for part in table)
    width = 2 * cos.shape[-1]
    first, second = _pairs(x_BTNK[..., :width], pairing)
    twice = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)  # shared by all layers of a graph
    rotated = x_BTNK[..., :width] * twice[0] + torch.cat([second, first], dim=-1) * twice[1]
    return rotated if width == x_BTNK.shape[-1] else torch.cat([rotated, x_BTNK[..., width:]], dim=-1)


def _rotate_pointwise(x_BTNK: Tensor, table: tuple[Tensor, Tensor], pairing: Pairing) -> Tensor:
    """The rotation of whole heads without a concatenation, so that the compiler fuses it with what is around it."""
    dim = -2 if pairing == "halves" else -1  # of the two elements of a pair
    cos, sin = (part.to(x_BTNK.dtype).unsqueeze(dim) for part in table)
    width = x_BTNK.shape[-1]
    pairs = x_BTNK.reshape(*x_BTNK.shape[:-1], *((2, width // 2) if pairing == "halves" else (width // 2, 2)))
    signs = 2 * torch.arange(2, dtype=x_BTNK.dtype, device=x_BTNK.device) - 1
    rotated = pairs * cos + pairs.flip(dim) * (sin * (signs[:, None] if pairing == "halves" else signs))
    return rotated.reshape(x_BTNK.shape)


def _pairs(x_BTNK: Tensor, pairing: Pairing) -> tuple[Tensor, Tensor]:
    """The first and the second elements of all pairs, `[B, T, N, K/2]` views."""
    if pairing == "halves":
        first, second = x_BTNK.chunk(2, dim=-1)
        return first, second
    return x_BTNK[..., 0::2], x_BTNK[..., 1::2]
