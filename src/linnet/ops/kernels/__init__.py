"""Triton kernels of some operations for GPUs. The plain forms select them automatically.

They run where tensors are on a GPU and Triton is installed (PyTorch's CUDA builds include it, otherwise
`linnet[triton]`); elsewhere plain PyTorch runs. Modules of this package whose names begin with an underscore need
Triton to be imported. Products of float32 follow PyTorch's setting: TF32 where that is allowed.

Before the kernels of an operation are used on a device, a small problem is computed there with and without them
(`KernelTrial`). If they do not compile, or their results differ, a note says so and they are not used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from linnet.core.errors import note

MIN_CAPABILITY = (8, 0)
"""Compute capability of the oldest GPUs for which Triton compiles every product."""

MAX_ERROR = 1e-2
"""Relative to the largest element of a tensor: a wrong kernel has a far larger error, TF32 a smaller one."""

_forced: bool | None = None
"""During a trial, whether kernels are used; None otherwise."""


@dataclass(frozen=True, eq=False)
class KernelTrial:
    """A small problem for the kernels of an operation: the function, and a function that creates its inputs."""

    name: str
    function: Callable[..., tuple[Tensor, ...]]
    inputs: Callable[[], list[Tensor]]

    def problem(self, device: torch.device) -> str | None:
        """A description of what is wrong with the kernels on a device; None if nothing is.

        The trial runs in float32, also if the caller is under autocast.
        """
        try:
            with torch.inference_mode(False), torch.autocast(device.type, enabled=False):
                error = self._error([x.to(device) for x in self.inputs()])
        except Exception as exception:
            return f"{type(exception).__name__}: {exception}"
        return None if error <= MAX_ERROR else f"{self.name} is off by {error:.1e}"

    def _error(self, inputs: list[Tensor]) -> float:
        """The largest relative error of outputs and gradients."""
        global _forced
        results = []
        try:
            for _forced in (True, False):
                leaves = [x.clone().requires_grad_() for x in inputs]
                with torch.enable_grad():
                    outputs = self.function(*leaves)
                    gradients = torch.autograd.grad([out.square().sum() for out in outputs], leaves)
                results.append([*outputs, *gradients])
        finally:
            _forced = None
        pairs = [(x.detach().double(), y.detach().double()) for x, y in zip(*results, strict=True)]
        errors = [float((x - y).abs().max() / y.abs().max().clamp(min=1e-30)) for x, y in pairs]
        return max(errors, key=lambda error: (error != error, error))  # NaN is the worst


def use_kernels(trial: KernelTrial, *tensors: Tensor) -> bool:
    """True if kernels compute an operation of these tensors: on a GPU, in float32 or bfloat16, after its trial."""
    fits = all(x.is_cuda and x.dtype in (torch.float32, torch.bfloat16) and x.numel() for x in tensors)
    if not fits or not has_triton(tensors[0].device):
        return False
    return _passes(trial, tensors[0].device) if _forced is None else _forced


@cache
def has_triton(device: torch.device) -> bool:
    """True if Triton is installed and compiles for this GPU."""
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY


@cache
def _passes(trial: KernelTrial, device: torch.device) -> bool:
    problem = trial.problem(device)
    if problem is not None:
        note(f"Triton's kernels are not used on {device}, plain PyTorch is: {problem}")
    return problem is None


def product_precision() -> str:
    """The precision of `tl.dot` with float32: one product in TF32, or three, which are as exact as float32."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


def block(size: int) -> int:
    """The next power of two; at least 16, which products need."""
    return 1 << (max(size, 16) - 1).bit_length()
