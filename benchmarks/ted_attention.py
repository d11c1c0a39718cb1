"""TED's mixer against attention's with PyTorch's fused kernel, one layer of width 256, forward and backward, float32.

`python benchmarks/ted_attention.py`, at 8,192 and 32,768 tokens; a GPU, where there is one, takes 8,192, 65,536 and
524,288 in bfloat16. Before that TED's sums must be those of the reference form on the first 2,048 tokens.
"""

import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from harness import contest, gate, report, threads_from_command_line
from linnet.core.system import keep_freed_memory
from linnet.layers.contract import Mixer, MixerSpec, Place
from linnet.layers.mixers.attention import AttentionSpec
from linnet.layers.mixers.ted import TedSpec

WIDTH, HEADS = 256, 4
LENGTHS = {"cpu": (8192, 32_768), "cuda": (8192, 65_536, 524_288)}
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32


def mixer_of(spec: MixerSpec) -> Mixer:
    """The same weights for every length and form."""
    torch.manual_seed(0)
    return spec.build(Place(WIDTH, max(LENGTHS[DEVICE.type]))).to(DEVICE, DTYPE)


def inputs(length: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(1, length, WIDTH, generator=generator).to(DEVICE, DTYPE).requires_grad_()


def passes(spec: MixerSpec, length: int) -> Callable[[], object]:
    """Forward and backward of one sequence."""
    mixer, x_BTD = mixer_of(spec), inputs(length)
    upstream = torch.randn_like(x_BTD)

    def forward_and_backward() -> None:
        torch.autograd.grad(mixer(x_BTD), [x_BTD, *mixer.parameters()], upstream)
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()

    return forward_and_backward


def check() -> None:
    """Both forms of TED give the same."""
    with torch.no_grad():
        fast, slow = (mixer_of(TedSpec(form=form))(inputs(2048)) for form in ("chunked", "reference"))
    error = float((fast - slow).norm() / slow.norm())
    tolerance = 1e-2 if DEVICE.type == "cuda" else 1e-4
    gate("chunked form", error < tolerance, f"outputs differ by {error:.1e}")


def main() -> None:
    """Check, then time."""
    runs = threads_from_command_line(__doc__)
    keep_freed_memory()
    check()
    results: dict[str, object] = {
        "shape": f"1 x T x {WIDTH}, {HEADS} heads of attention, {DTYPE}, forward and backward"
    }
    for length in LENGTHS[DEVICE.type]:
        ours, other = (passes(spec, length) for spec in (TedSpec(), AttentionSpec(heads=HEADS)))
        times = contest(ours, other, runs=runs)
        rate = round(length / statistics.median(times.ours_s))
        results[f"{length} tokens"] = {**times.summary(), "tokens_per_s": rate}
    report("ted_attention", results)


if __name__ == "__main__":
    main()
