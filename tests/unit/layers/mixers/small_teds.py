"""Small TED layers, their empty states, and streams in chunks."""

import itertools

import pytest
import torch
from examples import padded_view
from torch import Tensor

from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import Place
from linnet.layers.mixers.ted import BankCache, EvictionCache, Ted, TedSpec
from linnet.layers.mixers.ted.state import TedState
from linnet.layers.passes import run

WIDTH, LENGTH, CPU = 16, 40, torch.device("cpu")
CONTEXTS = {
    "full": FULL,
    "policy": EvictionCache(top_k=6, threshold=0.2, min_tokens_to_keep=2),
    "bank": BankCache(),
}

contexts = pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)


def build(heads: int = 2, tolerance: float = 1e-9, key_width: int | None = None, conv: int | None = None) -> Ted:
    torch.manual_seed(0)
    spec = TedSpec(heads=heads, tolerance=tolerance, chunk=4, key_width=key_width, conv=conv)
    return spec.build(Place(WIDTH, 64)).double()


def build_all() -> Ted:
    """A layer with keys and a convolution over three tokens."""
    return build(key_width=3, conv=3)


kinds = pytest.mark.parametrize("build", [build, build_all], ids=["plain", "keys"])


def empty(mixer: Ted, context: CachePolicy, batch: int = 2) -> TedState:
    return mixer.initial_state(batch, LENGTH, CPU, torch.float64, context)


def inputs(batch: int = 2) -> Tensor:
    return torch.randn(batch, LENGTH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def feed(mixer: Ted, x: Tensor, state: TedState, bounds: list[int], padding: tuple[int, ...] = (0,)) -> Tensor:
    pairs = itertools.pairwise(bounds)
    return torch.cat([run(mixer, x[:, a:b], state, padded_view(a, b, padding)) for a, b in pairs if a < b], dim=1)
