"""What is asked of tensors before their addresses are handed on: C++ would read past them without a word."""

import torch
from torch import Tensor


def expect(fits: bool, wanted: str, *found: Tensor) -> None:
    """`ValueError` that says what was wanted, and what the tensors are."""
    if not fits:
        told = ", ".join(f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)} on {x.device}" for x in found)
        raise ValueError(f"expected {wanted}, found {told}")


def plain(x: Tensor) -> Tensor:
    """The same numbers, float32 and one behind the other; `ValueError` for what is not on the CPU."""
    if not x.is_cpu:
        expect(False, "a tensor on the CPU", x)
    return x if x.dtype == torch.float32 and x.is_contiguous() else x.float().contiguous()


def empty(*shape: int) -> Tensor:
    """Room for what is to be written, whatever PyTorch's defaults are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")
