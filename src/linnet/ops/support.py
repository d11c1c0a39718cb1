"""Parts that operations share: autocast, graph export, the processor, segments of long sequences, recomputation."""

import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

SEGMENT_NUMBERS = 2**18
"""Elements of a segment on a CPU (1 MiB in float32): intermediate results of one segment stay in the cache."""

SEGMENT_NUMBERS_DEVICE = 2**24
"""Elements of a segment on a GPU, where the number of steps matters."""


def _is_intel() -> bool:
    """True for a processor of Intel. MKL makes the same check before it selects its code."""
    cpuinfo = Path("/proc/cpuinfo")
    description = cpuinfo.read_text(errors="replace") if cpuinfo.is_file() else platform.processor()
    return "GenuineIntel" in description


HAS_MKL = bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]
"""True if this PyTorch calls MKL for its products in float32."""

MKL_IS_FAST = HAS_MKL and _is_intel()
"""True if MKL runs its best code here. On other processors small and thin products take several times as long."""


_FORMS = threading.local()


@contextmanager
def graph_forms() -> Iterator[None]:
    """Within the block, and in this thread, operations have the forms that a graph can hold, as during an export."""
    before, _FORMS.in_graph = getattr(_FORMS, "in_graph", False), True
    try:
        yield
    finally:
        _FORMS.in_graph = before


def is_exporting() -> bool:
    """True while a graph is being exported, and within `graph_forms`.

    `torch.compiler.is_exporting` of PyTorch 2.11 is also true under `torch.compile`, so this asks for exports that
    trace without the compiler (`strict=False`), as all exports of this project do.
    """
    if torch.compiler.is_dynamo_compiling():
        return False
    return torch.compiler.is_exporting() or getattr(_FORMS, "in_graph", False)


def is_traced_or_differentiated(x: Tensor) -> bool:
    """True if computations on `x` are differentiated or traced, so that native functions cannot be used."""
    is_tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    in_graph = is_tracing or is_exporting() or torch.compiler.is_compiling() or type(x) is not Tensor
    return in_graph or (torch.is_grad_enabled() and x.requires_grad)


def to_autocast_dtype(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """The tensors in the precision of products: autocast's where it is on, else unchanged."""
    device = next(tensor.device.type for tensor in tensors if tensor is not None)
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(None if tensor is None else tensor.to(dtype) for tensor in tensors)


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """float64 for sums that need it; float32 on Apple's GPUs (`mps`), which have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def widen(x: Tensor) -> Tensor:
    """The tensor in the precision of `accumulation_dtype`."""
    return x.to(accumulation_dtype(x.device))


def segment_length(batch: int, numbers: int, chunk: int, device: str = "cpu") -> int:
    """Tokens of a segment, a multiple of `chunk`, for `batch` rows with `numbers` elements per token."""
    limit = SEGMENT_NUMBERS if device == "cpu" else SEGMENT_NUMBERS_DEVICE
    return chunk * max(1, limit // max(1, batch * chunk * numbers))


def segment_slices(length: int, segment: int) -> list[slice]:
    """Consecutive slices of at most `segment` tokens that cover a sequence."""
    return [slice(begin, min(begin + segment, length)) for begin in range(0, length, segment)]


def states_before(added: Sequence[Tensor], factors: Sequence[Tensor], state: Tensor) -> tuple[list[Tensor], Tensor]:
    """The state before each step of `state = factor * state + added`, and the one after the last step."""
    before = []
    for added_here, factor in zip(added, factors, strict=True):
        before.append(state)
        state = torch.addcmul(added_here, state, factor)
    return before, state


@_disable_dynamo  # `torch.compiler.disable` would import the whole compiler, which takes a second
def apply_eagerly(function: type[torch.autograd.Function], *inputs: Any) -> Any:
    """`function.apply(*inputs)`, also within a compiled model: its loop would be a new graph for each length."""
    return function.apply(*inputs)  # type: ignore[no-untyped-call]


@_disable_dynamo
def recompute(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`function(*inputs)`; only the inputs are saved, and the backward pass computes it again.

    Activation checkpointing (Chen et al., 2016, arXiv 1604.06174) for one function of tensors; differentiable once.
    """
    out: Tensor = _Recompute.apply(function, *inputs)  # type: ignore[no-untyped-call]
    return out


class _Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        with torch.enable_grad(), torch.autocast(upstream.device.type, enabled=False):
            out = ctx.function(*inputs)
        return None, *torch.autograd.grad(out, inputs, upstream)
