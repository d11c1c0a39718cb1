"""Writes `minlstm_small.safetensors` with the minLSTM of the package `minGRU-pytorch`, at once and token by token.

Its map into the recurrence gets a bias, as in the paper (section 3.2.4), which the package leaves out.

`pip install minGRU-pytorch==0.2.1 torch==2.13.0`, then `python tests/golden/writers/write_minlstm.py`.
"""

from importlib.metadata import version

import torch
from minGRU_pytorch.minLSTM import minLSTM
from torch import Tensor, nn
from writing import BATCH, LENGTHS, drawn, gradients, weights, write

WIDTH, CHANNELS = 12, 18


def layer() -> nn.Module:
    found = minLSTM(WIDTH, CHANNELS / WIDTH)
    found.to_hidden_and_f_i_gate = nn.Linear(WIDTH, 3 * CHANNELS)
    return drawn(found)


def case(of: nn.Module, x: Tensor, upstream: Tensor, prefix: str) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    y, last = of(x, return_next_prev_hidden=True)
    return {f"{prefix}.y": y, f"{prefix}.hidden": last[:, 0], **gradients(y, x, of, upstream, f"{prefix}.grad")}


def stream(of: nn.Module, x: Tensor, upstream: Tensor, prefix: str) -> dict[str, Tensor]:
    """From a state as if behind other tokens; the form for one token, which takes the state as it is."""
    before = torch.rand(BATCH, 1, CHANNELS, dtype=torch.float64)
    x, hidden = x.clone().requires_grad_(), before
    outs = []
    for token in x.split(1, dim=1):
        out, hidden = of(token, hidden, return_next_prev_hidden=True)
        outs.append(out)
    y = torch.cat(outs, dim=1)
    ends = {f"{prefix}.start": before[:, 0], f"{prefix}.y": y, f"{prefix}.hidden": hidden[:, 0]}
    return {**ends, **gradients(y, x, of, upstream, f"{prefix}.grad")}


def main() -> None:
    torch.manual_seed(0)
    x, upstream = (torch.randn(BATCH, max(LENGTHS), WIDTH, dtype=torch.float64) for _ in range(2))
    of = layer()
    tensors = {"x": x, "upstream": upstream, **weights(of, "state_dict"), **stream(of, x, upstream, "started")}
    for length in LENGTHS:
        tensors |= case(of, x[:, :length], upstream[:, :length], str(length))
    write("minlstm_small.safetensors", tensors, {"channels": CHANNELS, "minGRU": version("minGRU-pytorch")})


if __name__ == "__main__":
    main()
