"""Deduplication on one core: signatures against datatrove's, records from text to decisions, and the whole command.

`python benchmarks/data.py [--documents N] [--runs N] [--megabytes 10 100]`. Documents of 400 words are drawn from a
vocabulary of 20,000; a tenth are near copies of others. Rates are of the process's own processor time, which other
programs disturb less than the clock. Needs `pip install 'linnet[data]'`.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from harness import contest, gate, report
from linnet.data.deduplicate import DeduplicationSpec, decide, describe
from linnet.data.minhash import hash_shingles, hash_words, minhash
from linnet.data.workers import batched_texts

NEAR_LIMIT, EXACT_LIMIT = 2_000, 50_000
"""Documents a second on one core."""

WORDS, VOCABULARY, VALUES, COMPARED = 400, 20_000, 112, 200

COMMAND = r"""
import json, re, sys, time
from pathlib import Path
from linnet.data.deduplicate import deduplicate
begun_s = time.process_time()
found = deduplicate([sys.argv[1]], sys.argv[2], workers=1)
peak = 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
print(json.dumps([found.read.documents, found.kept.documents, time.process_time() - begun_s, peak]))
"""


def made_texts(count: int) -> list[str]:
    """Texts of which every tenth differs from an earlier one in one word."""
    source = random.Random(0)
    vocabulary = ["".join(source.choices("etaoinshrdlucmfwypvbgk", k=source.randint(2, 9))) for _ in range(VOCABULARY)]
    texts = [" ".join(source.choices(vocabulary, k=WORDS)) for _ in range(count)]
    for number in range(10, count, 10):
        words = texts[number - 5].split()
        words[source.randrange(WORDS)] = source.choice(vocabulary)
        texts[number] = " ".join(words)
    return texts


def processor_s(run: Callable[[], object]) -> float:
    """Processor seconds of one call."""
    start_s = time.process_time()
    run()
    return time.process_time() - start_s


def rate(texts: list[str], spec: DeduplicationSpec, runs: int, limit: int) -> dict[str, Any]:
    """Documents a processor second, from their text to the decision which of them stay."""

    def whole() -> int:
        records = np.concatenate([describe(batch, spec) for batch in batched_texts(texts)])
        return int(np.count_nonzero(decide(records, 0, spec).reasons))

    removed, copies = whole(), 0 if spec.near is None else (len(texts) - 1) // 10
    gate(
        "near" if spec.near else "exact", abs(removed - copies) <= 0.01 * copies, f"{removed} of {copies} copies found"
    )
    seconds = [processor_s(whole) for _ in range(runs)]
    found = len(texts) / statistics.median(seconds)
    return {
        "documents_per_processor_s": round(found),
        "lowest": round(len(texts) / max(seconds)),
        "highest": round(len(texts) / min(seconds)),
        "limit": limit,
        "within_limit": found >= limit,
    }


def against_datatrove(texts: list[str], runs: int) -> dict[str, Any]:
    """Signatures of word 5-grams from text, 14 x 8 values in both.

    datatrove gets its words by `str.split`, which is faster than spaCy, and its hash from bytes: it does not know that
    xxhash 4 takes no strings.
    """
    import xxhash
    from datatrove.pipeline.dedup import minhash as module

    class Words:
        """Faster than the tokenizers that datatrove has."""

        word_tokenize = staticmethod(str.split)

    hash_bytes = xxhash.xxh64_intdigest
    module.load_word_tokenizer = lambda language: Words()
    with TemporaryDirectory() as folder:
        theirs = module.MinhashDedupSignature(folder)
        theirs._hash_func = lambda text: hash_bytes(text.encode())

        def ours() -> Any:
            return minhash(*hash_shingles(*hash_words(texts), 5), VALUES)

        def other() -> Any:
            found = [theirs.get_signature(theirs.get_shingles(text)) for text in texts]
            return np.array(found, dtype=np.uint64).reshape(len(texts), VALUES)

        copies = np.arange(10, len(texts), 10)
        estimates = [(found[copies] == found[copies - 5]).mean() for found in (ours(), other())]
        close = abs(estimates[0] - estimates[1]) < 0.02
        gate("datatrove", close, "estimated similarity of near copies {:.3f} and {:.3f}".format(*estimates))
        return {"documents": len(texts), **contest(ours, other, runs, warm_up=0).summary()}


def command(texts: list[str], megabytes: int) -> dict[str, Any]:
    """The whole command in a process of its own, reading and writing included."""
    with TemporaryDirectory() as name:
        path, written, number = Path(name) / "text.jsonl", 0, 0
        with path.open("w") as file:
            while written < 1_000_000 * megabytes:
                words = texts[number % len(texts)].split()
                random.Random(number).shuffle(words)
                written += file.write(json.dumps({"text": " ".join(words)}) + "\n")
                number += 1
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, str(path), str(Path(name) / "out")],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    read, kept, seconds, peak = json.loads(done.stdout)
    gate(f"{megabytes} MB", read == number and kept == number, f"{read} read, {kept} kept of {number} different texts")
    return {
        "megabytes": megabytes,
        "documents": read,
        "documents_per_processor_s": round(read / seconds),
        "peak_memory_mb": round(peak / 1e6),
    }


def main() -> None:
    """Check, then time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 100], help="of text for the whole command")
    args = parser.parse_args()
    torch.set_num_threads(1)
    texts = made_texts(args.documents)
    results = {
        "texts": f"{args.documents:,} of {WORDS} words, {sum(map(len, texts)) / len(texts):,.0f} bytes each",
        "minhash": rate(texts, DeduplicationSpec(), args.runs, NEAR_LIMIT),
        "exact": rate(texts, DeduplicationSpec(near=None), args.runs, EXACT_LIMIT),
        "datatrove": against_datatrove(texts[:COMPARED], args.runs),
        "command": [command(texts, megabytes) for megabytes in args.megabytes],
    }
    report("data", results)


if __name__ == "__main__":
    main()
