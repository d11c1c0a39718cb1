"""Where contract and golden tests run: `pytest tests/contracts tests/golden --device cuda`; else on the processor."""

import torch

DEVICE = torch.device("cpu")


def choose(name: str) -> None:
    """Before any test is read; `ValueError` for a device that is not here. Products are those of float32."""
    global DEVICE
    DEVICE = torch.device(name)
    try:
        torch.empty(1, device=DEVICE)
    except (RuntimeError, AssertionError):  # the second where PyTorch was built without CUDA
        raise ValueError(f"--device {name}: not available here") from None
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
