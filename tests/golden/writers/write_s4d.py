"""Writes `s4d_small.safetensors` with the authors' `models/s4/s4d.py` (github.com/state-spaces/s4, commit e757cef).

`pip install einops==0.8.2 torch==2.13.0`, then `python tests/golden/writers/write_s4d.py FOLDER`, which has that one
file. Of the repository's other files it wants only a dropout, which is off here.
"""

import sys
from types import ModuleType

import torch
from torch import Tensor, nn
from writing import BATCH, LENGTHS, drawn, gradients, weights, write

WIDTH, STATE = 12, 6


def published(folder: str) -> type[nn.Module]:
    for name in ("src", "src.models", "src.models.nn"):
        sys.modules[name] = ModuleType(name)
    sys.modules["src.models.nn"].DropoutNd = nn.Identity
    sys.path.insert(0, folder)
    from s4d import S4D

    return S4D


def layer(kind: type[nn.Module]) -> nn.Module:
    """Rates, frequencies and steps apart from each other, as after training; the rest normal numbers."""
    module = drawn(kind(WIDTH, STATE, transposed=False))
    with torch.no_grad():
        module.kernel.log_dt.sub_(2)
        module.kernel.A_imag.mul_(8)
    return module


def case(module: nn.Module, x: Tensor, upstream: Tensor, prefix: str) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    y, _ = module(x)
    return {f"{prefix}.y": y, **gradients(y, x, module, upstream, f"{prefix}.grad")}


def main() -> None:
    torch.manual_seed(0)
    module = layer(published(sys.argv[1]))
    x, upstream = (torch.randn(BATCH, max(LENGTHS), WIDTH, dtype=torch.float64) for _ in range(2))
    tensors = {"x": x, "upstream": upstream, **weights(module, "state_dict")}
    for length in LENGTHS:
        tensors |= case(module, x[:, :length], upstream[:, :length], f"{length}")
    write("s4d_small.safetensors", tensors, {"state": STATE, "commit": "e757cef57d89e448c413de7325ed5601aceaac13"})


if __name__ == "__main__":
    main()
