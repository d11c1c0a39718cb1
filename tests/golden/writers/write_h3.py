"""Writes `h3_small.safetensors` with the authors' `src/models/ssm/h3.py` (github.com/HazyResearch/H3, commit 5c4d06b).

`pip install einops==0.8.2 opt_einsum==3.4.0 torch==2.13.0`, then `python tests/golden/writers/write_h3.py FOLDER`, that
repository's. What it imports for GPUs, for long states and for its log is not there; nothing here comes to it.
"""

import logging
import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from writing import BATCH, LENGTHS, drawn, gradients, no_float32, weights, write

WIDTH, STATE = 12, 6
HEAD_DIMS = {"bilinear": 1, "zoh": 3}


class Decoding:
    """What the layer asks for where it is to keep a state."""

    def __init__(self) -> None:
        self.key_value_memory_dict: dict[int, Any] = {}
        self.sequence_len_offset = 0


def published(folder: str) -> type[nn.Module]:
    sys.path.insert(0, folder)
    sys.modules["src.utils.utils"] = ModuleType("src.utils.utils")
    sys.modules["src.utils.utils"].get_logger = logging.getLogger
    from src.models.ssm.h3 import H3

    return H3


def layer(kind: type[nn.Module], rule: str) -> nn.Module:
    """Rates, frequencies and steps apart from each other, as after training; the rest normal numbers."""
    module = drawn(kind(WIDTH, STATE, head_dim=HEAD_DIMS[rule], layer_idx=0, disc=rule))
    with torch.no_grad():
        module.kernel.kernel.log_dt.sub_(2)
        module.kernel.kernel.A_imag.mul_(8)
    return module


@torch.no_grad()
def state(module: nn.Module, x: Tensor, prefix: str) -> dict[str, Tensor]:
    """Of the diagonal model behind the last token; theirs is wrong in shape where heads have several channels."""
    if module.head_dim > 1:
        return {}
    decoding = Decoding()
    module(x, inference_params=decoding)
    return {f"{prefix}.state": torch.view_as_real(decoding.key_value_memory_dict[0][1])}


def case(module: nn.Module, x: Tensor, upstream: Tensor, prefix: str) -> dict[str, Tensor]:
    found = state(module, x, prefix)
    x = x.clone().requires_grad_()
    y = module(x)
    return {**found, f"{prefix}.y": y, **gradients(y, x, module, upstream, f"{prefix}.grad")}


def main() -> None:
    torch.manual_seed(0)
    kind = published(sys.argv[1])
    x, upstream = (torch.randn(BATCH, max(LENGTHS), WIDTH, dtype=torch.float64) for _ in range(2))
    tensors = {"x": x, "upstream": upstream}
    with no_float32():
        for rule in HEAD_DIMS:
            module = layer(kind, rule)
            tensors |= weights(module, f"{rule}.state_dict")
            for length in LENGTHS:
                tensors |= case(module, x[:, :length], upstream[:, :length], f"{rule}.{length}")
    config = {"state": STATE, "head_dims": HEAD_DIMS, "commit": "5c4d06b5795405170387c80998b58d76179a8a1a"}
    write("h3_small.safetensors", tensors, config)


if __name__ == "__main__":
    main()
