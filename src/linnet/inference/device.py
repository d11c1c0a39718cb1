"""Which device a model runs on."""

import torch

from linnet.core.errors import UserError

DEVICES = ("cpu", "cuda")


def resolve_device(name: str, field: str = "device") -> torch.device:
    """`auto` (cuda where there is one, else cpu), `cpu`, `cuda`, `cuda:1`; `UserError` for one that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in DEVICES:
        raise UserError(field=field, value=repr(name), accepted="auto, cpu, cuda, or cuda with a number (cuda:1)")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):  # the second where PyTorch was built without CUDA
        raise UserError("not available here; try auto or cpu", field=field, value=repr(name)) from None
    return device
