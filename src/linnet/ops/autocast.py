"""What `torch.autocast` does for products, for the operations that linnet writes itself."""

import torch
from torch import Tensor


def to_autocast_dtype(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """The tensors in the precision that products have here: autocast's where it is on, else as they are."""
    device = next(tensor.device.type for tensor in tensors if tensor is not None)
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(None if tensor is None else tensor.to(dtype) for tensor in tensors)
