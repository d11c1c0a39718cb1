"""Every mixer against attention with PyTorch's fused kernel: one layer of width 256, forward and backward.

Three parts, on 2 threads. `time`: 512, 2,048, 4,096, 16,384 and 131,072 tokens in float32 and under bfloat16's autocast
(attention up to 16,384); about 40 minutes, 4 up to 4,096 tokens. `decode`: for those with a state of constant size, a
token's time and bytes at age 100,000 against age 100; about 8 minutes. `transformers`: 2,048 tokens against the same
layer on Transformers' own PyTorch path, same weights (`mixers_transformers.py`); about 10 minutes. The mixers are
those of the `tiny-` presets. Before its times a form must be the reference. A table and a plot.

`python benchmarks/mixers.py [--parts time decode transformers] [--only KIND ...] [--longest 16384]`; what is not
measured anew is kept. A cell that is expected to take longer than `--cell-limit`, or to keep more memory than
`--memory-limit`, is left out and says so.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch import Tensor

from gpu_models import kinds
from harness import RESULTS, contest, elapsed_s, gate, machine, report
from linnet.core.system import keep_freed_memory
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL
from linnet.layers.contract import Mixer, MixerSpec, Place
from linnet.layers.mixers.ted import BankCache
from linnet.layers.registry import MIXERS
from linnet.model.spec import ModelSpec
from linnet.present.plot import Axis, Panel, Plot, Series
from linnet.present.style import PALETTE
from linnet.present.table import Table, table_lines
from mixers_transformers import PAIRS, compared

WIDTH = 256
LENGTHS = (512, 2048, 4096, 16_384, 131_072)
ATTENTION_UP_TO = 16_384
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FEWEST = 1
"""Runs of a slow cell, after a first one."""
WITH_WHAT_IS_MADE = 3.5
"""Memory of a pass relative to what it saves: 1.6 (mamba) to 3.2 (ted) for eight kinds at 8,192 tokens."""
CHECKED = 300
AGES = (100, 100_000)
PREFILL = 4096
STEPS = 200
CPU = torch.device("cpu")
PARTS = ("time", "decode", "transformers")
STYLES = ("o-", "s--", "^:")
"""One line style for each round through the colors."""


def spec_of(kind: str) -> MixerSpec:
    """The mixer of the preset."""
    return ModelSpec.load(kinds()[kind]).blocks[0].mixer


def mixer_of(kind: str, length: int) -> Mixer:
    """The layer, with the same weights for every length."""
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
    sources = [x_BTD, *(p for p in mixer.parameters() if p.requires_grad)]

    def forward_and_backward() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            out_BTD = mixer(x_BTD)
        torch.autograd.grad(out_BTD, sources, upstream.to(out_BTD.dtype), allow_unused=True)

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


@dataclass(frozen=True)
class Limits:
    """A cell: tokens of a sequence, seconds of all runs, bytes saved for the backward pass."""

    longest: int
    seconds: float
    nbytes: float

    def left_out(self, kind: str, length: int, known: dict[str, Any]) -> str | None:
        """The reason to leave out a length; None to measure it. known: shorter ones, by length."""
        needed = spec_of(kind).cost(Place(WIDTH, length)).activation_elements(1, length) * 4
        if needed * WITH_WHAT_IS_MADE > self.nbytes:
            return f"it keeps {needed / 2**30:.1f} GiB, with what it makes over the limit of {self.nbytes / 2**30:.1f}"
        runs_s = expected_s(length, known) * (1 + FEWEST)
        if runs_s > self.seconds:
            return f"expected to take {runs_s:.0f} s, over the limit of {self.seconds:.0f}"
        return None


def expected_s(length: int, known: dict[str, Any]) -> float:
    """Predicted seconds of a pass, from the growth of the two longest before it, at least linear in the length."""
    before = [(int(tokens), cell["seconds"]) for tokens, cell in known.items() if "seconds" in cell][-2:]
    if not before:
        return 0.0
    (last, last_s), power = before[-1], 1.0
    if len(before) == 2:
        (first, first_s) = before[0]
        power = max(1.0, math.log(last_s / first_s) / math.log(last / first))
    return float(last_s * (length / last) ** power)


def trained(kind: str, limits: Limits, runs: int) -> dict[str, Any]:
    """Seconds by precision and length, and how many times attention's they are."""
    found: dict[str, Any] = {}
    for name, dtype in PRECISIONS.items():
        cells = found[name] = {}
        for length in (length for length in LENGTHS if length <= limits.longest):
            why = limits.left_out(kind, length, cells)
            cells[str(length)] = of_length(kind, length, dtype, runs) if why is None else {"left_out": why}
    return found


def of_length(kind: str, length: int, dtype: torch.dtype, runs: int) -> dict[str, Any]:
    """Fewer runs where one takes long; attention's time beside it up to its own limit."""
    own = passes(kind, length, dtype)
    runs = max(FEWEST, min(runs, round(20 / max(elapsed_s(own), 1e-3))))
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
    bank = BankCache in mixer.cache_policies
    if not (mixer.traits.constant_state or bank):
        return None
    cache_policy = BankCache(2 * AGES[-1]) if bank else FULL
    states = [mixer.initial_state(1, age + STEPS, CPU, torch.float32, cache_policy) for age in AGES]
    for state, age in zip(states, AGES, strict=True):
        for begin in range(0, age, PREFILL):
            mixer(inputs(min(PREFILL, age - begin)), state, BatchLayout(begin))

    def steps(state: Any, age: int) -> Callable[[], object]:
        fork, x_BTD = state.fork(), inputs(STEPS)
        return lambda: [mixer(x_BTD[:, i : i + 1], fork, BatchLayout(age + i)) for i in range(STEPS)]

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
    """Of the kinds that were timed."""
    found = {kind: of_kind for kind, of_kind in found.items() if "training" in of_kind}
    lengths = sorted({int(length) for of_kind in found.values() for length in of_kind["training"][precision]})

    def cells(kind: str) -> Iterable[str]:
        times = found[kind]["training"][precision]
        for length in lengths:
            time = times.get(str(length), {})
            yield f"{time['times_of_attention']:.2f}" if "times_of_attention" in time else ""
        both = [times.get(str(length), {}).get("seconds") for length in (16_384, 131_072)]
        yield f"{both[1] / both[0]:.1f}" if all(both) else ""
        old = found[kind].get("decoding")
        yield f"{old['old_over_young']:.2f}" if old else "grows" if "decoding" in found[kind] else ""
        theirs = found[kind].get("transformers")
        yield f"{theirs['times_as_fast']:.2f}" if theirs and precision == "float32" else ""

    heads = ["mixer", *(f"{length:,}" for length in lengths), "131k / 16k", "old / young", "faster than Transformers'"]
    rows = [[kind, *cells(kind)] for kind in found]
    return Table(f"Times of attention, {precision}", heads, rows)


def beside_transformers(found: dict[str, Any]) -> Table:
    """All that have been compared, those that are no mixers too."""
    rows = [
        [kind, theirs["against"], f"{1e3 * theirs['ours_s']:.0f}", f"{theirs['times_as_fast']:.2f}"]
        for kind, of_kind in found.items()
        if (theirs := of_kind.get("transformers"))
    ]
    heads = ["layer", "Transformers'", "ours, ms", "times as fast"]
    return Table("Against the same layer of Transformers, 2,048 tokens, float32", heads, rows)


def plot(found: dict[str, Any]) -> Plot:
    """Microseconds a token against the length, a panel for each precision."""
    panels = []
    for precision in PRECISIONS:
        series = []
        timed = {kind: of_kind for kind, of_kind in found.items() if "training" in of_kind}
        for number, (kind, of_kind) in enumerate(timed.items()):
            times = of_kind["training"][precision]
            lengths = [int(length) for length, cell in times.items() if "seconds" in cell]
            each = [1e6 * times[str(length)]["seconds"] / length for length in lengths]
            series.append(Series(lengths, each, kind, STYLES[number // len(PALETTE) % len(STYLES)], number))
        axes = Axis("tokens of a sequence", "log2"), Axis("microseconds for a token", "log")
        panels.append(Panel(*axes, series, title=f"{precision}, forward and backward"))
    return Plot(panels, columns=2, size=(6.5, 5.0))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--only", nargs="+", choices=sorted({*MIXERS, *PAIRS}), metavar="KIND", help="all if not given")
    parser.add_argument("--longest", type=int, default=max(LENGTHS), help="tokens")
    parser.add_argument("--cell-limit", type=float, default=180.0, help="seconds of one kind, length and precision")
    half = psutil.virtual_memory().total / 2**31
    parser.add_argument("--memory-limit", type=float, default=half, help="GiB of a pass (half of the machine's)")
    parser.add_argument("--runs", type=int, default=5, help="of each contestant, fewer where they take long")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def earlier() -> dict[str, Any]:
    """What earlier calls measured, by kind and part."""
    path = RESULTS / "mixers.json"
    found: dict[str, Any] = json.loads(path.read_text())["results"]["mixers"] if path.is_file() else {}
    return found


def measured(kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The parts that are asked for and that it has, and the commit of each."""
    found: dict[str, Any] = {}
    if kind in kinds() and {"time", "decode"} & set(arguments.parts):
        check(kind)
        if "time" in arguments.parts:
            limits = Limits(arguments.longest, arguments.cell_limit, arguments.memory_limit * 2**30)
            found["training"] = trained(kind, limits, arguments.runs)
        if "decode" in arguments.parts:
            found["decoding"] = decoded(kind)
    if kind in PAIRS and "transformers" in arguments.parts:
        found["transformers"] = compared(kind, arguments.runs)
    commit = machine()["commit"]
    return found | {"commits": dict.fromkeys(found, commit)}


def main() -> None:
    """Check, then time, kind by kind; written after each."""
    arguments = parsed()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    found = earlier()
    for kind in arguments.only or sorted({*MIXERS, *PAIRS}):
        before, new = found.get(kind, {}), measured(kind, arguments)
        found[kind] = {**before, **new, "commits": before.get("commits", {}) | new["commits"]}
        report("mixers", {"shape": f"1 x T x {WIDTH}, one layer", "mixers": dict(sorted(found.items()))})
    for precision in PRECISIONS:
        print("\n".join(table_lines(table(found, precision), 120)))
    print("\n".join(table_lines(beside_transformers(found), 120)))
    plot(dict(sorted(found.items()))).write(RESULTS / "mixers.png")


if __name__ == "__main__":
    main()
