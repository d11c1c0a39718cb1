"""What the writers of golden files share: random weights, gradients of an output, a file of both."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

FOLDER = Path(__file__).parent.parent
BATCH = 2
LENGTHS = (1, 63, 65)


def drawn(module: nn.Module, spread: float = 0.5) -> nn.Module:
    """In float64, every weight a normal number."""
    module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=spread)
    return module


def weights(module: nn.Module, prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": parameter.detach() for name, parameter in module.named_parameters()}


def gradients(out: Tensor, x: Tensor, module: nn.Module, upstream: Tensor, prefix: str) -> dict[str, Tensor]:
    """Of what is read and of all weights; none where a weight had no part."""
    named = {"x": x, **dict(module.named_parameters())}
    found = torch.autograd.grad(out, list(named.values()), upstream, allow_unused=True, materialize_grads=True)
    return {f"{prefix}.{name}": gradient for name, gradient in zip(named, found, strict=True)}


@contextmanager
def no_float32() -> Iterator[None]:
    """Code that says `.float()` on its way stays in float64."""
    narrow, torch.Tensor.float = torch.Tensor.float, lambda tensor: tensor
    try:
        yield
    finally:
        torch.Tensor.float = narrow


def write(name: str, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    config = {**config, "torch": torch.__version__}
    whole = {key: tensor.detach().contiguous().clone() for key, tensor in tensors.items()}
    save_file(whole, FOLDER / name, {"config": json.dumps(config)})
    print(f"{name}: {len(whole)} tensors, {(FOLDER / name).stat().st_size:,} bytes")
