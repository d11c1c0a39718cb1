"""How long linnet's recipe trains until it is as good as what is trained today, over one epoch (`quality_runs.py`).

Attention against a Transformers Llama (rotary, RMS norm, SwiGLU, tied) with AdamW, its learning rate the best of five;
with `--families ted pldr` our own layers, new recipe against old. Ours is trained in separate runs, each annealed to
its own end, over a third, half, two thirds and all of the tokens. Time is tokens to the other's mean loss (interpolated
over the logarithm of the tokens) times measured time for a token, each with its own batch, in the same precision; the
interval is a bootstrap over the seeds of both. Runs are kept in the work folder: the same command continues.
`--device cuda` trains on a GPU, one run a process; the time for a token is measured on this processor nonetheless.

`python benchmarks/time_to_quality.py --train stories.txt wikitext.txt --validation ... --work DIR`
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import contest, report
from linnet.core.system import keep_freed_memory
from linnet.data.loader import Batches
from linnet.data.pieces import ByteCounts
from linnet.data.token_data import TokenData
from linnet.model.decoder import Decoder
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.optimizers import build_optimizer
from linnet.training.parallel import ParallelModel
from linnet.training.spec import RunSpec
from linnet.training.step import Stepper
from quality_runs import (
    CONTEXT,
    FAMILIES,
    OLD_BATCH,
    VOCABULARY,
    LlamaStep,
    Task,
    described,
    llama,
    measured,
    prepare,
)  # fmt: skip

LEARNING_RATES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
SHARES = (1 / 3, 1 / 2, 2 / 3, 1.0)
RESAMPLES = 2000


def tokens_to(target: float, tokens: Sequence[int], bits: Sequence[float]) -> float:
    """Tokens at which the loss first reaches the target, linear in the logarithm of the tokens; infinite if never.

    A run that is better already with the fewest tokens is counted as if it had needed all of these.
    """
    if bits[0] <= target:
        return tokens[0]
    for number in range(1, len(tokens)):
        worse, better = bits[number - 1], bits[number]
        if better <= target:
            before, after = math.log(tokens[number - 1]), math.log(tokens[number])
            return math.exp(before + (worse - target) / (worse - better) * (after - before))
    return math.inf


def shares_of_tokens(theirs_S: np.ndarray, ours_SN: np.ndarray, tokens_N: Sequence[int]) -> Iterator[float]:
    """Our tokens over theirs: of all seeds, then of resamples. Losses by seed, ours also by number of tokens."""
    chance = np.random.default_rng(0)
    yield tokens_to(theirs_S.mean(), tokens_N, ours_SN.mean(axis=0)) / tokens_N[-1]
    for _ in range(RESAMPLES):
        some, others = (chance.integers(len(each), size=len(each)) for each in (theirs_S, ours_SN))
        yield tokens_to(theirs_S[some].mean(), tokens_N, ours_SN[others].mean(axis=0)) / tokens_N[-1]


def _our_step(run: RunSpec, data: TokenData) -> tuple[Callable[[], object], int]:
    """A step of a run, and its tokens."""
    spec = run.resolved().training
    decoder = Decoder(run.model)
    dtype = torch.bfloat16 if spec.precision == "bfloat16" else torch.float32
    optimizer = build_optimizer(spec.optimizer, decoder, dtype)
    counts = ByteCounts.create([1] * VOCABULARY).to("cpu")
    step = Stepper(ParallelModel(decoder), next_token_loss, optimizer, spec.clip, dtype, counts)
    batch = Batches(data.split("train"), spec.batch_size, CONTEXT, 0).batch(0)
    return lambda: step([batch], 1e-4), batch.count


def token_times(family: str, precision: str, work: Path, tokens: int, runs: int) -> tuple[float, float, dict[str, Any]]:
    """Seconds for a token of ours and of the other, two threads, as many tokens of both in turn."""
    data = TokenData.open(work / "data")
    ours, of_ours = _our_step(described(Task(family, "new", precision, 0, tokens), work), data)
    if family == "attention":
        batch, baseline = Batches(data.split("train"), OLD_BATCH, CONTEXT, 0).batch(0), LlamaStep(llama(0), precision)
        other, of_other = (lambda: baseline(batch, 1e-4)), batch.count
    else:
        other, of_other = _our_step(described(Task(family, "old", precision, 0, tokens, 1e-3), work), data)
    both = math.lcm(of_ours, of_other)

    def often(step: Callable[[], object], times: int) -> Callable[[], object]:
        return lambda: [step() for _ in range(times)]

    torch.set_num_threads(2)
    found = contest(often(ours, both // of_ours), often(other, both // of_other), runs, warm_up=3).summary()
    return found["ours_median_s"] / both, found["other_median_s"] / both, found


def compared(family: str, precision: str, work: Path, arguments: argparse.Namespace, tokens: int) -> dict[str, Any]:
    """Everything of a family in one precision."""
    seeds = range(arguments.seeds)
    task = partial(Task, family, precision=precision, device=arguments.device)
    rates = measured([task("old", seed=0, tokens=tokens, lr=lr) for lr in LEARNING_RATES], work, arguments.jobs)
    best = min(rates, key=lambda each: rates[each]).lr
    olds = measured([task("old", seed=seed, tokens=tokens, lr=best) for seed in seeds], work, arguments.jobs)
    some = [round(share * tokens) for share in SHARES]
    grid = [task("new", seed=seed, tokens=count) for count in some for seed in seeds]
    found = measured(grid, work, arguments.jobs)
    theirs_S = np.array(list(olds.values()))
    ours_SN = np.array([found[task] for task in grid]).reshape(len(some), -1).T
    share, *resampled = shares_of_tokens(theirs_S, ours_SN, some)
    ours_s, theirs_s, timed = token_times(family, precision, work, tokens, arguments.runs)
    times = np.array(resampled) * ours_s / theirs_s
    return {
        "old_learning_rates": {f"{each.lr:g}": round(bits, 4) for each, bits in rates.items()},
        "old_bits_per_byte": [round(float(bits), 4) for bits in theirs_S],
        "new_bits_per_byte": {str(n): [round(float(b), 4) for b in ours_SN[:, i]] for i, n in enumerate(some)},
        "tokens": share,
        "token_time": ours_s / theirs_s,
        "time": share * ours_s / theirs_s,
        "interval_95": [float(np.quantile(times, q)) for q in (0.025, 0.975)],
        "old_token_s": theirs_s,
        "new_token_s": ours_s,
        "steps": timed,
    }


def of_family(family: str, arguments: argparse.Namespace, tokens: int) -> dict[str, Any]:
    """In each precision, and ours in bfloat16 against the other in float32."""
    found = {each: compared(family, each, arguments.work, arguments, tokens) for each in arguments.precisions}
    if {"float32", "bfloat16"} <= found.keys():
        narrow = found["bfloat16"]
        found["bfloat16_against_float32"] = {
            "time": narrow["tokens"] * narrow["new_token_s"] / found["float32"]["old_token_s"]
        }
    return found


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", nargs="+", default=[], help="text files")
    parser.add_argument("--validation", nargs="+", default=[], help="text files")
    parser.add_argument("--work", type=Path, required=True, help="data and runs; the same command continues")
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=["attention"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=float, default=1.0, help="of the old")
    parser.add_argument("--precisions", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    parser.add_argument("--jobs", type=int, default=2, help="trainings at once, each with one thread")
    parser.add_argument("--device", default="cpu", help="where it is trained: cpu, cuda")
    parser.add_argument("--runs", type=int, default=15, help="of each contestant, for the time of a step")
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    keep_freed_memory()
    data = prepare(arguments.train, arguments.validation, arguments.work)
    tokens = int(arguments.epochs * len(data.split("train")))
    found = {family: of_family(family, arguments, tokens) for family in arguments.families}
    report("time_to_quality", {"tokens": tokens, "trained_on": arguments.device, **found})


if __name__ == "__main__":
    main()
