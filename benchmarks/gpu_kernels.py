"""Triton kernels against plain PyTorch, for `gpu.py`: both passes of an operation, checked, then timed in turn.

Legend: `B` sequences, `T` tokens, `N` heads, `H` channels of a head.
"""

import statistics
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from gpu_models import HEAD_WIDTH, Size
from gpu_rows import GRADIENT_ERROR, NotCorrectError, Row, elapsed_s
from linnet.ops import delta_rule, gated_delta
from linnet.ops.decay import sums
from linnet.ops.kernels import use_kernels

RUNS = 10
PRECISIONS = {"ted": ("bfloat16", "float32"), "gated_delta": ("float32",)}
"""Precisions of each operation's inputs; the second is always computed in float32."""

Operation = tuple[Callable[..., Tensor], list[Tensor]]


def kernel_rows(sizes: dict[str, Size]) -> Iterator[Row]:
    yield from (Row("kernels", kind, size, dtype) for size in sizes for kind, of in PRECISIONS.items() for dtype in of)


def why_none(device: torch.device) -> str | None:
    """The reason why nothing can be timed on a device; None if it can."""
    if use_kernels(gated_delta.TRIAL, torch.empty(1, device=device)):
        return None
    return "no GPU with Triton (`pip install 'linnet[triton]'`)"


def measure_kernels(row: Row, device: torch.device) -> dict[str, Any]:
    """The speed of the kernels relative to the plain form, the median over runs."""
    form, tensors = {"ted": _ted, "gated_delta": _gated_delta}[row.kind](row, device)
    upstream = torch.randn_like(form(*tensors))

    def both_passes() -> list[Tensor]:
        out = form(*tensors)
        return [out.detach(), *torch.autograd.grad(out, tensors, upstream)]

    def plain() -> list[Tensor]:
        none_run = [patch.object(module, "use_kernels", lambda *_: False) for module in (sums, delta_rule, gated_delta)]
        with none_run[0], none_run[1], none_run[2]:
            return both_passes()

    correctness = _check(row, both_passes(), plain())
    pairs = [(elapsed_s(device, both_passes), elapsed_s(device, plain)) for _ in range(RUNS + 1)][1:]
    ratios = [plain_s / ours_s for ours_s, plain_s in pairs]
    return {
        "shape": " x ".join(map(str, upstream.shape)),
        "correct": correctness,
        "times_as_fast": round(statistics.median(ratios), 3),
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
        "kernels_median_s": round(statistics.median(ours_s for ours_s, _ in pairs), 6),
        "plain_median_s": round(statistics.median(plain_s for _, plain_s in pairs), 6),
    }


def _check(row: Row, found: list[Tensor], right: list[Tensor]) -> str:
    """The gate: outputs and every gradient."""
    off = max(float((x.float() - y.float()).norm() / y.float().norm()) for x, y in zip(found, right, strict=True))
    if not off <= GRADIENT_ERROR[row.precision]:
        raise NotCorrectError(f"not correct, so not timed: off by {off:.1e}")
    return f"outputs and gradients off by at most {off:.1e}"


def _ted(row: Row, device: torch.device) -> Operation:
    size = row.of_size
    torch.manual_seed(0)
    rates_BTN = torch.rand(size.sequences, size.context, 1, device=device).pow(3).requires_grad_()
    v_BTNH = torch.randn(size.sequences, size.context, 1, size.width, device=device, dtype=row.dtype).requires_grad_()
    return lambda rates, v: sums.decay_chunked(rates, v, size.context), [rates_BTN, v_BTNH]


def _gated_delta(row: Row, device: torch.device) -> Operation:
    size, heads = row.of_size, row.of_size.width // HEAD_WIDTH
    torch.manual_seed(0)
    q, k, v = torch.randn(3, size.sequences, heads, size.context, HEAD_WIDTH, device=device)
    q, k = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
    alpha, beta = torch.rand(2, size.sequences, heads, size.context, device=device)
    tensors = [q, k, v, alpha.log()[..., None].clamp(min=-20.0), beta]
    return lambda *inputs: gated_delta.gated_delta(*inputs)[0], [x.detach().requires_grad_() for x in tensors]
