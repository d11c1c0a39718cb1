"""Triton kernels of some operations, for GPUs: the same functions as the plain forms, which choose them by themselves.

They run where tensors lie on a GPU and Triton is installed (PyTorch's CUDA builds bring it, else `linnet[triton]`);
anywhere else plain PyTorch does. Modules of this package whose names begin with an underscore need Triton to be
imported. Products of float32 are as PyTorch's own are set to be: TF32 where that is allowed.
"""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from linnet.core.errors import note

CAPABILITY = (8, 0)
"""Of the oldest GPUs that Triton compiles every product for."""


_chosen: bool | None = None
"""During a trial, whether kernels run; else the outcome of the device's trial decides."""


def use_kernels(*tensors: Tensor) -> bool:
    """Whether there are kernels for the device of these tensors, and for float32 or narrower numbers, as they are.

    The first time on a device they are tried there: where they do not compile, or give something else than plain
    PyTorch, that is said, and they are left alone.
    """
    taken = all(x.is_cuda and x.dtype in (torch.float32, torch.bfloat16) and x.numel() for x in tensors)
    if not taken or not _compiled_for(tensors[0].device):
        return False
    return _proved(tensors[0].device) if _chosen is None else _chosen


@cache
def _compiled_for(device: torch.device) -> bool:
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= CAPABILITY


def _choose(by_kernels: bool) -> None:
    global _chosen
    _chosen = by_kernels


@cache
def _proved(device: torch.device) -> bool:
    global _chosen
    from linnet.ops.kernels.trial import problem

    wrong = problem(_choose, device)
    _chosen = None
    if wrong is not None:
        note(f"Triton's kernels do not serve on {device}, plain PyTorch does: {wrong}")
    return wrong is None


def product_precision() -> str:
    """What `tl.dot` does with float32: one product of TF32, or three, which are as exact as float32."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


def block(size: int) -> int:
    """The power of two in which so many numbers have room; 16 is the least that products take."""
    return 1 << (max(size, 16) - 1).bit_length()
