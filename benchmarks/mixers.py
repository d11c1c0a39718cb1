"""Every mixer against attention with PyTorch's fused kernel: one layer of width 256, forward and backward.

At 512, 2,048, 4,096, 16,384 and 131,072 tokens on 2 threads, in float32 and under bfloat16's autocast (attention up to
16,384); then, for those with a state of constant size, a token's time and bytes at age 100,000 against age 100. The
mixers are those of the `tiny-` presets. Before its times a mixer's fast form must be the reference. A table and a plot.

`python benchmarks/mixers.py [--kinds ...] [--longest 16384]`; results of other kinds are kept.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from gpu_models import kinds
from harness import RESULTS, contest, elapsed_s, gate, report
from linnet.core.allocator import keep_freed_memory
from linnet.layers.contract import Mixer, MixerSpec, Place
from linnet.layers.registry import MIXERS
from linnet.layers.retention import FULL, BankRetention
from linnet.layers.view import View
from linnet.model.spec import ModelSpec
from linnet.present.plot import Axis, Panel, Plot, Series
from linnet.present.style import PALETTE
from linnet.present.table import Table, table_lines

WIDTH = 256
LENGTHS = (512, 2048, 4096, 16_384, 131_072)
ATTENTION_UP_TO = 16_384
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CHECKED = 300
AGES = (100, 100_000)
PREFILL = 4096
STEPS = 200
CPU = torch.device("cpu")
STYLES = ("o-", "s--", "^:")
"""One for each round through the colours."""


def spec_of(kind: str) -> MixerSpec:
    """As the preset has it."""
    return ModelSpec.load(kinds()[kind]).blocks[0].mixer


def mixer_of(kind: str, length: int) -> Mixer:
    """The same weights for every length."""
    torch.manual_seed(0)
    mixer = spec_of(kind).build(Place(WIDTH, length))
    assert isinstance(mixer, Mixer)
    return mixer


def inputs(length: int) -> Tensor:
    return torch.randn(1, length, WIDTH, generator=torch.Generator().manual_seed(1))


def passes(kind: str, length: int, dtype: torch.dtype) -> Callable[[], object]:
    """Forward and backward of one sequence."""
    mixer, x_BTD = mixer_of(kind, length), inputs(length).requires_grad_()
    upstream = torch.randn_like(x_BTD)
    wanted = [x_BTD, *(p for p in mixer.parameters() if p.requires_grad)]

    def forward_and_backward() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            out_BTD = mixer(x_BTD)
        torch.autograd.grad(out_BTD, wanted, upstream.to(out_BTD.dtype), allow_unused=True)

    return forward_and_backward


@torch.no_grad()
def check(kind: str) -> None:
    """The fast form gives what the reference gives."""
    mixer, x_BTD = mixer_of(kind, CHECKED), inputs(CHECKED)
    fast = mixer(x_BTD)
    for name, reference in mixer.references.items():
        setattr(mixer, name, reference)
    slow = mixer(x_BTD)
    error = float((fast - slow).norm() / slow.norm())
    gate(kind, error < 1e-3, f"outputs differ by {error:.1e} of the reference's")


def trained(kind: str, longest: int, runs: int) -> dict[str, Any]:
    """Seconds by precision and length, and how many times attention's they are."""
    found: dict[str, Any] = {}
    for name, dtype in PRECISIONS.items():
        found[name] = {str(length): of_length(kind, length, dtype, runs) for length in LENGTHS if length <= longest}
    return found


def of_length(kind: str, length: int, dtype: torch.dtype, runs: int) -> dict[str, Any]:
    """Fewer runs where one takes long; attention's time beside it up to its own limit."""
    own = passes(kind, length, dtype)
    runs = max(1, min(runs, round(20 / max(elapsed_s(own), 1e-3))))
    if kind == "attention" or length > ATTENTION_UP_TO:
        return {"seconds": statistics.median(elapsed_s(own) for _ in range(runs))}
    times = contest(own, passes("attention", length, dtype), runs)
    return {
        "seconds": statistics.median(times.ours_s),
        "times_of_attention": 1 / times.ratio,
        "scatter": round(times.scatter, 2),
    }


@torch.inference_mode()
def decoded(kind: str) -> dict[str, Any] | None:
    """A token's time and the bytes of the state, young and old; None where the state grows."""
    mixer = mixer_of(kind, AGES[-1]).eval()
    bank = BankRetention in mixer.retentions
    if not (mixer.traits.constant_state or bank):
        return None
    retention = BankRetention(2 * AGES[-1]) if bank else FULL
    states = [mixer.initial_state(1, age + STEPS, CPU, torch.float32, retention) for age in AGES]
    for state, age in zip(states, AGES, strict=True):
        for begin in range(0, age, PREFILL):
            mixer(inputs(min(PREFILL, age - begin)), state, View(begin))

    def steps(state: Any, age: int) -> Callable[[], object]:
        fork, x_BTD = state.fork(), inputs(STEPS)
        return lambda: [mixer(x_BTD[:, i : i + 1], fork, View(age + i)) for i in range(STEPS)]

    old, young = (steps(state, age) for state, age in zip(reversed(states), reversed(AGES), strict=True))
    times = contest(old, young, runs=15)
    return {
        "seconds_at_100": statistics.median(times.other_s) / STEPS,
        "seconds_at_100000": statistics.median(times.ours_s) / STEPS,
        "old_over_young": 1 / times.ratio,
        "bytes_at_100": states[0].nbytes,
        "bytes_at_100000": states[1].nbytes,
    }


def table(found: dict[str, Any], precision: str) -> Table:
    lengths = sorted({int(length) for of_kind in found.values() for length in of_kind["training"][precision]})

    def cells(kind: str) -> Iterable[str]:
        times = found[kind]["training"][precision]
        for length in lengths:
            time = times.get(str(length), {})
            yield f"{time['times_of_attention']:.2f}" if "times_of_attention" in time else ""
        both = [times.get(str(length), {}).get("seconds") for length in (16_384, 131_072)]
        yield f"{both[1] / both[0]:.1f}" if all(both) else ""
        old = found[kind].get("decoding")
        yield f"{old['old_over_young']:.2f}" if old else "grows"

    heads = ["mixer", *(f"{length:,}" for length in lengths), "131k / 16k", "old / young"]
    rows = [[kind, *cells(kind)] for kind in found]
    return Table(f"Times of attention, {precision}", heads, rows)


def plot(found: dict[str, Any]) -> Plot:
    """Microseconds a token against the length, a panel for each precision."""
    panels = []
    for precision in PRECISIONS:
        series = []
        for number, (kind, of_kind) in enumerate(found.items()):
            times = of_kind["training"][precision]
            lengths = [int(length) for length in times]
            each = [1e6 * times[str(length)]["seconds"] / length for length in lengths]
            series.append(Series(lengths, each, kind, STYLES[number // len(PALETTE) % len(STYLES)], number))
        axes = Axis("tokens of a sequence", "log2"), Axis("microseconds for a token", "log")
        panels.append(Panel(*axes, series, title=f"{precision}, forward and backward"))
    return Plot(panels, columns=2, size=(6.5, 5.0))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=sorted(MIXERS), default=sorted(MIXERS))
    parser.add_argument("--longest", type=int, default=max(LENGTHS), help="tokens")
    parser.add_argument("--runs", type=int, default=5, help="of each contestant, fewer where they take long")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def earlier(kept: Sequence[str]) -> dict[str, Any]:
    """What an earlier call measured of other kinds."""
    path = RESULTS / "mixers.json"
    results = json.loads(path.read_text())["results"] if path.is_file() else {}
    return {kind: of_kind for kind, of_kind in results.get("mixers", {}).items() if kind not in kept}


def main() -> None:
    """Check, then time, kind by kind; written after each."""
    arguments = parsed()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    found = earlier(arguments.kinds)
    for kind in arguments.kinds:
        check(kind)
        found[kind] = {
            "training": trained(kind, arguments.longest, arguments.runs),
            "decoding": decoded(kind),
        }
        report("mixers", {"shape": f"1 x T x {WIDTH}, one layer", "mixers": dict(sorted(found.items()))})
    for precision in PRECISIONS:
        print("\n".join(table_lines(table(found, precision), 120)))
    plot(dict(sorted(found.items()))).write(RESULTS / "mixers.png")


if __name__ == "__main__":
    main()
