"""Tensors of which a process may hold a shard (PyTorch's `DTensor`): optimizers see them by these few functions.

A tensor that is not sharded is its own only shard. `torch.distributed` is imported where there are others.
"""

from typing import Any

import torch
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether others hold the rest of it."""
    return type(tensor) not in (Tensor, torch.nn.Parameter)


def local(tensor: Any) -> Tensor:
    """The part of a tensor that lies in this process."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


def as_shard(part: Tensor, like: Any) -> Tensor:
    """The tensor whose parts these are, in each process its own, as those of `like`, which has its shape."""
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(part, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())


_apart = False


def leave_group() -> None:
    """Ask nothing of the others from here on: `whole` has zeros in the place of what they hold, in as much memory."""
    global _apart
    _apart = True


def whole(tensor: Any) -> Tensor:
    """All of a tensor; called by all processes."""
    if _apart and is_sharded(tensor):
        return local(tensor).new_zeros(tensor.shape)
    full: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return full


def part_of(full: Tensor, like: Any) -> Tensor:
    """The part of a whole tensor that this process holds of `like`, which has its shape."""
    if not is_sharded(like):
        return full
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None).to_local()
