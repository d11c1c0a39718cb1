"""TED's decaying sums in linear time: a training step of `ted-tinystories` (8 layers of width 256), float32.

`python benchmarks/ted_training_step.py`. The chunked form against the reference form at 4 x 2,048 and 1 x 8,192
characters, with the peak memory of a process that does nothing else; and how forward and backward grow from
8,192 to 65,536, of the sums alone and of the model. The processes keep freed memory, as `linnet train` does. Before
that the two forms must give the same loss and gradients.
"""

import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from harness import contest, gate, report, threads_from_command_line
from linnet.core.system import keep_freed_memory
from linnet.data.loader import Batch
from linnet.data.pieces import ByteCounts
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.ops.decay.sums import decay_chunked
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.optimizers import build_optimizer
from linnet.training.parallel import ParallelModel
from linnet.training.sections import ClipSpec, OptimizerSpec
from linnet.training.step import Stepper

SHAPES = ((4, 2048), (1, 8192))
GROWTH = (8192, 65_536)


def decoder_with_weights(form: str) -> Decoder:
    """The preset with one form of the sums; the same weights for all."""
    torch.manual_seed(0)
    spec = ModelSpec.load("ted-tinystories")
    block = spec.blocks[0].model_dump()
    block["mixer"]["form"] = form
    return Decoder(spec.replace(blocks=[block]))


def batch_of(batch: int, length: int) -> Batch:
    tokens = torch.randint(90, (batch, length + 1), generator=torch.Generator().manual_seed(1))
    return Batch(tokens[:, :-1], tokens[:, 1:])


def stepper(form: str, batch: int, length: int) -> Callable[[], object]:
    """One training step of a fresh model: forward, backward, clipping, AdamW."""
    decoder = decoder_with_weights(form)
    optimizer = build_optimizer(OptimizerSpec(lr=1e-6), decoder)
    counts = ByteCounts.create([1] * decoder.spec.vocab_size).to("cpu")
    step = Stepper(ParallelModel(decoder), next_token_loss, optimizer, ClipSpec(), torch.float32, counts)
    data = batch_of(batch, length)
    return lambda: step([data], 1e-6)


def check() -> None:
    """Both forms give the same loss, and gradients that differ by less than a thousandth of their norm."""
    losses, gradients = [], []
    for form in ("chunked", "reference"):
        decoder = decoder_with_weights(form)
        result = next_token_loss(decoder, batch_of(1, 2048)).total
        result.backward()
        losses.append(float(result.detach()))
        gradients.append(torch.cat([p.grad.flatten() for p in decoder.parameters() if p.grad is not None]))
    loss = abs(losses[0] / losses[1] - 1)
    gradient = float((gradients[0] - gradients[1]).norm() / gradients[1].norm())
    gate("chunked form", loss < 1e-5 and gradient < 1e-3, f"loss off by {loss:.1e}, gradient by {gradient:.1e}")


def passes(length: int) -> Callable[[], object]:
    """Forward and backward of one sequence in the chunked form."""
    decoder, data = decoder_with_weights("chunked"), batch_of(1, length)

    def forward_and_backward() -> None:
        next_token_loss(decoder, data).total.backward()

    return forward_and_backward


def sums(length: int) -> Callable[[], object]:
    """Forward and backward of one layer's sums alone."""
    rates_BSN = (10 ** torch.empty(1, length, 1).uniform_(-4, 0)).requires_grad_()
    v_BSNH = torch.randn(1, length, 1, 256).requires_grad_()
    upstream = torch.randn(1, length, 1, 256)
    return lambda: torch.autograd.grad(decay_chunked(rates_BSN, v_BSNH, length), (rates_BSN, v_BSNH), upstream)


def growth(short: Callable[[], object], long: Callable[[], object], runs: int) -> dict[str, object]:
    """Seconds of forward and backward at two lengths, in turn, and their ratio."""
    times = contest(short, long, runs=runs)
    return {
        "shape": f"1 x {GROWTH[0]} and 1 x {GROWTH[1]}, forward and backward",
        "times_as_long": round(times.ratio, 3),
        "short_median_s": round(statistics.median(times.ours_s), 4),
        "long_median_s": round(statistics.median(times.other_s), 4),
    }


def peak_bytes(form: str, batch: int, length: int) -> int:
    """The peak memory of a process that makes two steps of one form and nothing else."""
    arguments = [form, str(batch), str(length), str(torch.get_num_threads())]
    command = [sys.executable, __file__, "--memory-of", *arguments]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(form: str, batch: str, length: str, threads: str) -> None:
    keep_freed_memory()
    torch.set_num_threads(int(threads))
    step = stepper(form, int(batch), int(length))
    for _ in range(2):
        step()
    # `getrusage` would count what this process's parent held too.
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(int(line.split()[1]) * 1024)


def comparison(batch: int, length: int, runs: int) -> dict[str, object]:
    """Times in turn, then memory."""
    chunked, reference = (stepper(form, batch, length) for form in ("chunked", "reference"))
    times = contest(chunked, reference, runs=runs)
    del chunked, reference
    memory = {form: peak_bytes(form, batch, length) for form in ("chunked", "reference")}
    return {
        **times.summary(),
        "characters_per_s": round(batch * length / statistics.median(times.ours_s)),
        "peak_memory_mb": round(memory["chunked"] / 1e6),
        "reference_peak_memory_mb": round(memory["reference"] / 1e6),
        "reference_memory_times_ours": round(memory["reference"] / memory["chunked"], 2),
    }


def main() -> None:
    """Check, then time, then measure memory."""
    runs = threads_from_command_line(__doc__)
    keep_freed_memory()
    check()
    results: dict[str, object] = {f"{batch} x {length}": comparison(batch, length, runs) for batch, length in SHAPES}
    results["growth of the sums"] = growth(*map(sums, GROWTH), runs)
    results["growth of the model"] = growth(*(passes(length) for length in GROWTH), runs)
    report("ted_training_step", results)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory-of"]:
        print_peak(*sys.argv[2:])
    else:
        main()
