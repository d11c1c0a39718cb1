"""The cost of checking every block of a shard at its first read, relative to the training steps that read it.

20 million tokens, batches of 8 x 512 from random places, so that nearly every window of the first ones meets a new
block. `python benchmarks/block_hashes.py`
"""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from harness import elapsed_s, gate, report, threads_from_command_line
from linnet.core.errors import UserError
from linnet.data.loader import Batches
from linnet.data.shards import BLOCK_BYTES, CheckedArray, ShardWriter, TokenSequence
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

TOKENS, VOCABULARY = 20_000_000, 1024
BATCH, CONTEXT, BATCHES = 8, 512, 4
LIMIT = 0.01
SHAPE = {
    "name": "seven-million",
    "vocab_size": VOCABULARY,
    "d_model": 256,
    "context_length": CONTEXT,
    "blocks": [
        {
            "repeat": 8,
            "mixer": {"kind": "attention", "heads": 4},
            "feed_forward": {"kind": "glu", "activation": "silu", "hidden": 768, "bias": False},
        }
    ],
}


def written(folder: Path) -> tuple[Path, list[str]]:
    """A shard of random tokens, and the hashes of its blocks."""
    with ShardWriter(folder, "train", VOCABULARY) as writer:
        writer.write(np.random.default_rng(0).integers(0, VOCABULARY, TOKENS))
        info = writer.info(TOKENS)
    (shard,) = info.shards
    blocks = shard.blocks["tokens"]
    assert blocks is not None
    return folder / shard.file, blocks


def reader(path: Path, blocks: list[str] | None) -> Callable[[], None]:
    """Reads the first batches of a shard that was just opened."""

    def read() -> None:
        shard = CheckedArray(np.memmap(path, np.uint16, "r"), str(path), VOCABULARY if blocks else None, blocks)
        batches = Batches(TokenSequence("train", 0, [shard], lambda: np.empty(0, np.int64)), BATCH, CONTEXT, seed=0)
        for number in range(BATCHES):
            batches.batch(number)

    return read


def refuses_a_changed_bit(path: Path, blocks: list[str]) -> bool:
    """True if a change is found in the block that has it, and in no other."""
    tokens = np.fromfile(path, np.uint16)
    tokens[TOKENS // 2] ^= 1
    shard = CheckedArray(tokens, str(path), VOCABULARY, blocks)
    shard.read(0, 1000)
    try:
        shard.read(TOKENS // 2 - 5, TOKENS // 2 - 1)
    except UserError:
        return True
    return False


def step_s() -> float:
    """A training step of the model on such a batch, only forward and backward."""
    decoder = Decoder(ModelSpec.parse(SHAPE, "benchmark"))
    tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1))

    def step() -> None:
        decoder(tokens[:, :-1], targets=tokens[:, 1:]).nats.backward()

    step()
    return median(elapsed_s(step) for _ in range(3))


def main() -> None:
    """Check, then time."""
    runs = threads_from_command_line(__doc__)
    with TemporaryDirectory() as name:
        path, blocks = written(Path(name))
        gate("blocks", refuses_a_changed_bit(path, blocks), f"one changed bit of {len(blocks)} blocks is found")
        checked, plain = reader(path, blocks), reader(path, None)
        plain()
        over_s = median(elapsed_s(checked) - elapsed_s(plain) for _ in range(runs)) / BATCHES
    share = over_s / step_s()
    results: dict[str, Any] = {
        "shape": f"{BATCHES} first batches of {BATCH} x {CONTEXT}, {TOKENS:,} tokens; blocks of {BLOCK_BYTES:,} bytes",
        "milliseconds_over_a_batch": round(1e3 * over_s, 3),
        "share_of_a_step": round(share, 5),
        "limit": LIMIT,
        "within_limit": share <= LIMIT,
    }
    report("block_hashes", results)


if __name__ == "__main__":
    main()
