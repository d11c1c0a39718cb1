"""Writes `retention_small.safetensors` with the authors' layer of RetNet, in the package `torchscale`.

Behind the heads it has a root mean square where the paper says group norm (section 2.2): the paper's is put in its
place, with nearly no epsilon, since the layer divides what a head reads by numbers that the norm takes out again.
Angles and rates are those of the package's `RetNetRelPos`, in float64.

`pip install --no-deps torchscale==0.3.0 fairscale==0.4.13`, `pip install torch==2.13.0`, then
`python tests/golden/writers/write_retention.py`.
"""

from importlib.metadata import version
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torchscale.component.multiscale_retention import MultiScaleRetention
from writing import BATCH, LENGTHS, drawn, gradients, weights, write

WIDTH, HEADS, EXPAND = 12, 3, 2
EPS = 1e-15
KEY_WIDTH, VALUE_WIDTH = WIDTH // HEADS, EXPAND * WIDTH // HEADS


def layer() -> nn.Module:
    args = SimpleNamespace(multiway=False, layernorm_eps=EPS)
    found = MultiScaleRetention(args, WIDTH, EXPAND * WIDTH, HEADS)
    found.group_norm = nn.LayerNorm(VALUE_WIDTH, EPS, elementwise_affine=False)
    return drawn(found)


def log_rates() -> Tensor:
    return torch.log(1 - 2.0 ** (-5 - torch.arange(HEADS, dtype=torch.float64)))


def turns(positions: Tensor, turned: bool) -> tuple[Tensor, Tensor]:
    """Sines and cosines, of pairs that lie side by side; of no angle where nothing is turned."""
    angle = 1 / 10000 ** torch.linspace(0, 1, KEY_WIDTH // 2, dtype=torch.float64)
    angles = positions[:, None] * angle.repeat_interleave(2) * turned
    return angles.sin(), angles.cos()


def at_once(length: int, turned: bool) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """What the parallel form is given: turns, and what is left of each token at each later one, scaled as theirs."""
    index = torch.arange(length, dtype=torch.float64)
    age = index[:, None] - index
    left = torch.where(age >= 0, (age.clamp(min=0) * log_rates()[:, None, None]).exp(), 0.0)
    return turns(index, turned), left / left.sum(dim=-1, keepdim=True).sqrt()


def parallel(of: nn.Module, x: Tensor, upstream: Tensor, turned: bool, prefix: str) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    y = of(x, at_once(x.shape[1], turned))
    return {f"{prefix}.y": y, **gradients(y, x, of, upstream, f"{prefix}.grad")}


@torch.no_grad()
def stream(of: nn.Module, x: Tensor, turned: bool, prefix: str) -> dict[str, Tensor]:
    """Token by token, and the sums `[B, N, V, K]` behind the last: theirs are divided by the root of their `scale`."""
    state: dict[str, Tensor] = {}
    outs = []
    for position, token in enumerate(x.split(1, dim=1)):
        turn = turns(torch.tensor([float(position)], dtype=torch.float64), turned)
        outs.append(of(token, (turn, log_rates().exp()), incremental_state=state))
    sums = state["prev_key_value"] * state["scale"].sqrt().view(-1, 1, 1)
    return {f"{prefix}.y": torch.cat(outs, dim=1), f"{prefix}.sums": sums}


def main() -> None:
    torch.manual_seed(0)
    x, upstream = (torch.randn(BATCH, max(LENGTHS), WIDTH, dtype=torch.float64) for _ in range(2))
    of = layer()
    tensors = {"x": x, "upstream": upstream, **weights(of, "state_dict")}
    for name, turned in (("turned", True), ("plain", False)):
        tensors |= stream(of, x, turned, f"{name}.stream")
        for length in LENGTHS:
            tensors |= parallel(of, x[:, :length], upstream[:, :length], turned, f"{name}.{length}")
    config = {"heads": HEADS, "expand": EXPAND, "eps": EPS, "torchscale": version("torchscale")}
    write("retention_small.safetensors", tensors, config)


if __name__ == "__main__":
    main()
