"""Layers of `mixers.py` against those of Transformers' that compute the same, on its own PyTorch path, same weights.

Width 256, a head of 64 where heads have one, 2,048 tokens, float32; forward and backward in turn. Before its times a
pair's outputs and all gradients must agree. The builders are those of the tests (`tests/same_weights`).
"""

import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness import contest, elapsed_s, gate

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from linnet.layers.feed_forwards.experts import ExpertsSpec
from linnet.layers.feed_forwards.rwkv4_channel import Rwkv4ChannelSpec
from linnet.layers.mixers.gated_delta import GatedDeltaSpec
from linnet.layers.mixers.latent_attention import LatentAttentionSpec
from linnet.layers.mixers.mamba import MambaSpec
from linnet.layers.mixers.mamba2 import Mamba2Spec
from linnet.layers.mixers.mlstm import MlstmSpec
from linnet.layers.mixers.rglru import RglruSpec
from linnet.layers.mixers.rwkv4 import Rwkv4Spec
from same_weights import experts, gated_delta, latent_attention, mamba, mamba2, mlstm, rglru, rwkv4, t5
from same_weights.twins import Twins

WIDTH, HEADS, HEAD = 256, 4, 64
LENGTH = 2048
CHECKED = 200
TOLERANCE = 1e-3
"""Of an output's or a gradient's length; both are float32 and sum in orders of their own."""
STD = WIDTH**-0.5
VOCABULARY = 512
MOST_S = 60
"""Runs of a pair are fewer where they take longer."""

LATENT = LatentAttentionSpec(heads=HEADS, rotary_dim=32, kv_rank=128, rotary={"pairing": "adjacent"})
BY_CHANNEL = GatedDeltaSpec(heads=HEADS, decay="channel", gate="sigmoid", gate_rank=HEAD)
T5 = t5.Shape(VOCABULARY, WIDTH, HEADS, HEAD, hidden=4 * WIDTH, layers=1, buckets=32, furthest=128, context=LENGTH)

PAIRS: dict[str, tuple[str, Callable[[], Twins[Any]]]] = {
    "rwkv4": ("RWKV", lambda: rwkv4.twins(Rwkv4Spec(), WIDTH, STD)),
    "rwkv4_channel": ("RWKV", lambda: rwkv4.twins(Rwkv4ChannelSpec(hidden=4 * WIDTH), WIDTH, STD)),
    "mamba": ("Mamba", lambda: mamba.twins(MambaSpec(), WIDTH, STD)),
    "mamba2": ("Mamba-2", lambda: mamba2.twins(Mamba2Spec(state=64), WIDTH, STD)),
    "mlstm": ("xLSTM", lambda: mlstm.twins(MlstmSpec(heads=HEADS), WIDTH, STD, STD)),
    "rglru": ("RecurrentGemma", lambda: rglru.twins(RglruSpec(heads=HEADS), WIDTH, STD)),
    "gated_delta": ("Qwen3-Next", lambda: gated_delta.qwen(GatedDeltaSpec(heads=HEADS), WIDTH, STD)),
    "gated_delta, by channel": ("Kimi Linear", lambda: gated_delta.kimi(BY_CHANNEL, WIDTH, STD)),
    "latent_attention": ("DeepSeek-V3, eager", lambda: latent_attention.twins(LATENT, WIDTH, "v3", STD)),
    "latent_attention, kernel": ("DeepSeek-V3, SDPA", lambda: latent_attention.twins(LATENT, WIDTH, "v3", STD, True)),
    "experts": ("Mixtral", lambda: experts.mixtral(ExpertsSpec(hidden=2 * WIDTH, experts=8, top_k=2), WIDTH, STD)),
    "encoder-decoder": ("T5", lambda: t5.twins(T5, torch.float32, STD)),
}
"""Our kind, and whose layer stands against it."""


def inputs(kind: str, length: int) -> list[Tensor]:
    """A sequence of vectors; of models two of tokens, for encoder and decoder."""
    generator = torch.Generator().manual_seed(1)
    if kind == "encoder-decoder":
        return [torch.randint(1, VOCABULARY, (1, length), generator=generator) for _ in range(2)]
    return [torch.randn(1, length, WIDTH, generator=generator).requires_grad_()]


Pass = Callable[[], tuple[Tensor, dict[str, Tensor]]]
"""Forward and backward: the output, and the gradients by name, the input's under ``."""


def passes(kind: str, twins: Twins[Any], length: int) -> tuple[Pass, Pass]:
    """Ours and theirs."""
    tensors = inputs(kind, length)
    shape = twins.run_ours(*tensors).shape
    upstream = torch.randn(shape, generator=torch.Generator().manual_seed(2))

    def of(run: Callable[..., Tensor], module: torch.nn.Module) -> Pass:
        named = {"": tensors[0]} if tensors[0].requires_grad else {}
        named |= dict(module.named_parameters())

        def forward_and_backward() -> tuple[Tensor, dict[str, Tensor]]:
            out = run(*tensors)
            gradients = torch.autograd.grad(out, list(named.values()), upstream, materialize_grads=True)
            return out, dict(zip(named, gradients, strict=True))

        return forward_and_backward

    return of(twins.run_ours, twins.ours), of(twins.run, twins.theirs)


def check(kind: str, twins: Twins[Any]) -> None:
    """Outputs and all gradients are theirs."""
    (out, found), (expected_out, theirs) = (run() for run in passes(kind, twins, CHECKED))
    found, expected = twins.joined(found), {**twins.names(theirs), "": theirs.get("")}
    pairs = {"output": (out, expected_out)} | {name or "input": (found[name], expected[name]) for name in found}
    errors = {name: _error(*pair) for name, pair in pairs.items()}
    worst = max(errors, key=errors.__getitem__)
    gate(f"{kind} and Transformers", errors[worst] < TOLERANCE, f"{worst} differs by {errors[worst]:.1e} of its length")


def _error(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach(), expected.detach()
    length = float(expected.norm())
    return float((found - expected).norm()) / (length if length > 0 else 1.0)


def compared(kind: str, runs: int) -> dict[str, Any]:
    """Seconds of both, and how many times as fast ours is: the ratio of the medians."""
    whose, build = PAIRS[kind]
    twins = build()
    check(kind, twins)
    ours, theirs = passes(kind, twins, LENGTH)
    runs = max(1, min(runs, round(MOST_S / max(elapsed_s(theirs), 1e-3))))
    times = contest(ours, theirs, runs)
    ours_s, theirs_s = (statistics.median(of_one) for of_one in (times.ours_s, times.other_s))
    return {
        "against": whose,
        "ours_s": ours_s,
        "theirs_s": theirs_s,
        "times_as_fast": theirs_s / ours_s,
        "runs": runs,
        "scatter": round(times.scatter, 2),
    }
