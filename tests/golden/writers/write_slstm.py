"""Writes `slstm_small.safetensors` with NX-AI's package `xlstm`: its layer of the sLSTM, the backend for any processor.

`pip install xlstm==2.0.6 torch==2.13.0`, then `python tests/golden/writers/write_slstm.py`.
"""

from importlib.metadata import version

import torch
from torch import Tensor, nn
from writing import BATCH, LENGTHS, drawn, gradients, weights, write
from xlstm.blocks.slstm.layer import sLSTMLayer, sLSTMLayerConfig

WIDTH, HEADS, CONV = 12, 3, 4
EPS = 1e-5


def layer(conv: int) -> nn.ModuleDict:
    """The published layer and a map behind it, which the published block has not."""
    config = sLSTMLayerConfig(
        embedding_dim=WIDTH, num_heads=HEADS, conv1d_kernel_size=conv, backend="vanilla", dtype="float32"
    )
    return drawn(nn.ModuleDict({"layer": sLSTMLayer(config), "out": nn.Linear(WIDTH, WIDTH, bias=False)}))


def started(conv: int) -> dict[str, Tensor]:
    """A state as if behind other tokens: h, c, n and m, `[4, B, D]`, and the convolution's last inputs."""
    state = torch.randn(4, BATCH, WIDTH, dtype=torch.float64)
    state[2] = state[2].abs() + 1
    inputs = {"conv_state": torch.randn(BATCH, conv - 1, WIDTH, dtype=torch.float64)} if conv else {}
    return {"slstm_state": state, **inputs}


def case(both: nn.ModuleDict, x: Tensor, upstream: Tensor, state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    hidden, behind = both["layer"](x, **state, return_last_state=True)
    y = both["out"](hidden)
    given = {f"{prefix}.start.{name}": tensor for name, tensor in state.items()}
    ends = {f"{prefix}.y": y, f"{prefix}.slstm_state": behind["slstm_state"]}
    return {**given, **ends, **gradients(y, x, both, upstream, f"{prefix}.grad")}


def main() -> None:
    torch.manual_seed(0)
    x, upstream = (torch.randn(BATCH, max(LENGTHS), WIDTH, dtype=torch.float64) for _ in range(2))
    tensors = {"x": x, "upstream": upstream}
    for name, conv in (("conv", CONV), ("plain", 0)):
        both = layer(conv)
        tensors |= weights(both, f"{name}.state_dict")
        for length in LENGTHS:
            tensors |= case(both, x[:, :length], upstream[:, :length], {}, f"{name}.{length}")
        tensors |= case(both, x, upstream, started(conv), f"{name}.started")
    config = {"heads": HEADS, "conv": CONV, "eps": EPS, "xlstm": version("xlstm")}
    write("slstm_small.safetensors", tensors, config)


if __name__ == "__main__":
    main()
