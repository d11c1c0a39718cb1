"""Steps of post-training against what they are measured by, on conversations of realistic lengths.

Supervised fine-tuning: a step with packed conversations against a pre-training step over as many tokens, and an epoch
of packed conversations against the same epoch in padded rows, which predicts the same targets; and the same epoch in
rows as a run reads them, without what fills them up, against these padded rows. With `--trl-python PATH`
also against TRL's trainers (`post_training_trl.py`), where PATH is a Python with `trl` of its own.
`python benchmarks/post_training.py [--parts sft] [--mixers attention]`; what is not measured keeps its last results.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import RESULTS, contest, gate, write_record
from linnet.core.system import keep_freed_memory
from linnet.data.loader import Batch, Batches, document_rows
from linnet.data.packing import PackedBatches
from linnet.data.pieces import ByteCounts
from linnet.data.shards import TokenSequence
from linnet.model.decoder import Decoder
from linnet.training.objectives import Loss, Objective
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.optimizers import build_optimizer
from linnet.training.parallel import ParallelModel
from linnet.training.sections import ClipSpec, OptimizerSpec
from linnet.training.step import Stepper
from llamas import llama_spec
from post_training_trl import FORMS, TINY, Trainers, TrlSizes, against_trl

VOCABULARY, WIDTH, LAYERS, HEADS, HIDDEN, CONTEXT = 4096, 256, 4, 4, 688, 1024
CONVERSATIONS, BATCH = 52, 4
ROWS = 8
"""Rows of a padded batch: as many conversations as a packed batch has in the mean, or a few more."""

MIXERS: dict[str, dict[str, Any]] = {
    "attention": {"kind": "attention", "heads": HEADS},
    "gated_delta": {"kind": "gated_delta", "heads": HEADS},
    "ted": {"kind": "ted", "heads": HEADS},
}


def conversations(count: int, seed: int = 0) -> TokenSequence:
    """Random tokens in `count` conversations, about half of them in answers.

    Lengths are log-normal with a median of 160 tokens, half of them between 93 and 275, the longest as long as a
    window: much like those of public instruction data.
    """
    random = np.random.default_rng(seed)
    lengths = np.clip(random.lognormal(math.log(160), 0.8, count), 16, CONTEXT).astype(np.int64)
    starts = np.cumsum([0, *lengths])
    tokens = random.integers(1, VOCABULARY, starts[-1] + 1)
    tokens[starts] = 0
    mask = np.zeros(len(tokens), dtype=np.uint8)
    for start, length in zip(starts[:-1].tolist(), lengths.tolist(), strict=True):
        turns = max(1, length // 120)
        for turn in range(turns):
            first, last = (start + (turn + share) * length // turns for share in (0, 1))
            mask[(first + last) // 2 : last] = 1
    mask[starts] = 0
    return TokenSequence.in_memory("chat", 0, tokens, mask, starts=starts[:-1])


def padded_loss(decoder: Decoder, batch: Batch) -> Loss:
    """The loss of rows that are computed with what fills them up."""
    loss = decoder(batch.tokens, targets=batch.labels)
    return Loss(loss.total, loss.nats.detach())


def stepper(mixer: dict[str, Any], dtype: torch.dtype, objective: Objective = next_token_loss) -> Stepper:
    """The same model each time, with the trainer's own step."""
    torch.manual_seed(0)
    decoder = Decoder(llama_spec(VOCABULARY, WIDTH, LAYERS, mixer, HIDDEN, CONTEXT))
    byte_counts = ByteCounts.create([1] * VOCABULARY).to("cpu")
    optimizer = build_optimizer(OptimizerSpec(), decoder, dtype)
    return Stepper(ParallelModel(decoder), objective, optimizer, ClipSpec(), dtype, byte_counts)


def packed_epoch(sequence: TokenSequence) -> list[Batch]:
    """The conversations in packed windows."""
    packed = PackedBatches(sequence, BATCH, CONTEXT, 0, document_starts=True)
    numbers = range(packed.examples_per_epoch)
    return [packed.examples(numbers[first : first + BATCH]) for first in numbers[::BATCH]]


def padded_epoch(sequence: TokenSequence) -> list[Batch]:
    """The conversations as rows, in the order in which a run reads them."""
    rows = Batches(sequence, ROWS, CONTEXT, 0, document_rows(sequence))
    numbers = range(rows.examples_per_epoch)
    return [rows.examples(numbers[first : first + ROWS]) for first in numbers[::ROWS]]


def steps(step: Stepper, batches: Sequence[Batch]) -> Callable[[], None]:
    """A step over each of the batches."""

    def run() -> None:
        for batch in batches:
            step([batch], lr=1e-4)

    return run


def nats(step: Stepper, batches: Sequence[Batch]) -> tuple[float, int]:
    """The summed loss of all batches, without a step, and the number of their targets."""
    with torch.no_grad():
        losses = [float(step.objective(step.model.decoder, batch).nats) for batch in batches]
    return math.fsum(losses), sum(batch.count for batch in batches)


def supervised_fine_tuning(runs: int, mixers: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The ratios for each mixer, in each precision."""
    sequence = conversations(CONVERSATIONS)
    packed, padded = packed_epoch(sequence), padded_epoch(sequence)
    whole = packed[:2]
    text = TokenSequence.in_memory("text", 0, np.random.default_rng(1).integers(0, VOCABULARY, 100_000))
    stream = Batches(text, BATCH, CONTEXT, 0)
    plain = [stream.batch(number) for number in range(len(whole))]
    places = {name: sum(batch.tokens.numel() for batch in of) for name, of in (("packed", packed), ("padded", padded))}
    counted = sum(batch.count for batch in packed)
    shape = {"conversations": CONVERSATIONS, "targets": counted, **{f"places_{name}": n for name, n in places.items()}}
    yield "shape", shape
    for name in mixers:
        mixer = MIXERS[name]
        expected = nats(stepper(mixer, torch.float32, padded_loss), padded)
        for form, batches in (("packed", packed), ("rows", padded)):
            same = nats(stepper(mixer, torch.float32), batches)
            holds = same[1] == expected[1] and abs(same[0] / expected[0] - 1) < 1e-6
            shown = f"{same[0]:.3f} and {expected[0]:.3f} nats of {expected[1]:,} targets"
            gate(f"{name}: {form} and padded", holds, shown)
        found = {}
        for dtype in (torch.float32, torch.bfloat16):
            step, other = stepper(mixer, dtype), steps(stepper(mixer, dtype, padded_loss), padded)
            found[str(dtype).removeprefix("torch.")] = {
                "packed_against_padded": contest(steps(step, packed), other, runs).summary(),
                "rows_against_padded": contest(steps(step, padded), other, runs).summary(),
                "step_against_pre_training": contest(steps(step, whole), steps(step, plain), runs).summary(),
            }
        yield name, found


Part = Callable[[int, Sequence[str]], Iterator[tuple[str, dict[str, Any]]]]

PARTS: dict[str, Part] = {"sft": supervised_fine_tuning}
"""Each yields its results one by one, so that they are kept when a later one takes too long."""


def main() -> None:
    """Measure the parts that were asked for, and keep the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="processor threads (default 2)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each contestant; the median counts (default 5)")
    parser.add_argument("--mixers", nargs="+", choices=MIXERS, default=list(MIXERS), help="of these (default all)")
    parser.add_argument("--trl-python", type=Path, help="a Python with trl, for the parts trl_...")
    parser.add_argument(
        "--small", action="store_true", help="tiny models against TRL: tries the script, keeps no result"
    )
    names = [*PARTS, *(f"trl_{kind}" for kind in FORMS)]
    parser.add_argument("--parts", nargs="+", choices=names, help="what is measured (default all that can be)")
    arguments = parser.parse_args()
    parts = dict(PARTS)
    if arguments.trl_python is not None:
        sizes = TINY if arguments.small else TrlSizes()
        trainers = Trainers(arguments.trl_python, sizes, arguments.threads)
        parts |= {f"trl_{kind}": partial(_against_trl, kind, trainers) for kind in FORMS}
    chosen = arguments.parts or list(parts)
    if missing := [name for name in chosen if name not in parts]:
        parser.error(f"{', '.join(missing)}: needs --trl-python")
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()  # as `linnet train` does
    path = RESULTS / "post_training.json"
    results = json.loads(path.read_text())["results"] if path.is_file() and not arguments.small else {}
    for part in chosen:
        for name, found in parts[part](arguments.runs, arguments.mixers):
            results.setdefault(part, {})[name] = found
            if not arguments.small:
                write_record("post_training", results)
    print(json.dumps(results, indent=2))


def _against_trl(
    kind: str, trainers: Trainers, runs: int, mixers: Sequence[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A part that has attention alone: TRL's model is a Llama."""
    yield from against_trl(kind, trainers, runs)


if __name__ == "__main__":
    main()
