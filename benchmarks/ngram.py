"""The n-gram model, order 5, counted and evaluated: a whole text, and against dictionaries on its first 300,000 tokens.

`python benchmarks/ngram.py [--text FILE] [--threads N] [--runs N]`; without a text stories are made, 2 million words.
The record is of WikiText-2's training file, prepared with a BPE of 2,048 tokens.
"""

import argparse
import math
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from harness import contest, gate, report
from linnet.data.prepare import prepare
from linnet.data.token_data import TokenData
from linnet.stories import texts
from linnet.training.ngram.interface import evaluate_ngram, train_ngram
from linnet.training.ngram.model import NGram, count_ngrams, estimate_discounts

ORDER, STORIES, TOKENS, NEW, LIMIT_S = 5, 12_000, 300_000, 20_000, 20.0


class Dictionaries:
    """The same model as one would write it down; `tokens` are of one document behind its end token."""

    def __init__(self, tokens: Sequence[int], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        seen = [Counter(zip(*(tokens[n:] for n in range(length)), strict=False)) for length in range(1, ORDER + 1)]
        seen[0][tokens[0],] -= 1
        self.behind: list[dict[Any, Counter[int]]] = [defaultdict(Counter) for _ in seen]
        self.discounts = []
        for length, counts in enumerate(seen):
            before = Counter(gram[1:] for gram in seen[length + 1]) if length + 1 < ORDER else counts
            adjusted = {
                gram: count if length and gram[0] == tokens[0] else before[gram] for gram, count in counts.items()
            }
            adjusted = {gram: count for gram, count in adjusted.items() if count}
            self.discounts.append((0.0, *estimate_discounts(np.array([*adjusted.values()])).amounts))
            for gram, count in adjusted.items():
                self.behind[length][gram[:-1]][gram[-1]] = count
        self.left = [
            {
                context: (sum(words.values()), sum(taken[min(count, 3)] for count in words.values()))
                for context, words in behind.items()
            }
            for behind, taken in zip(self.behind, self.discounts, strict=True)
        ]

    def nats(self, tokens: Sequence[int]) -> float:
        """Of all tokens but the first."""
        found = 0.0
        for place in range(1, len(tokens)):
            probability = 1 / self.vocab_size
            for length in range(min(ORDER, place + 1)):
                context = tuple(tokens[place - length : place])
                if context in self.left[length]:
                    total, taken = self.left[length][context]
                    count = self.behind[length][context][tokens[place]]
                    own = count - self.discounts[length][min(count, 3)]
                    probability = (own + taken * probability) / total
            found -= math.log(probability)
        return found


def whole(data: Path, folder: Path, runs: int) -> dict[str, Any]:
    """Training and evaluating on a data folder, from reading the tokens to the figures."""
    seconds, processor_seconds = [], []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(runs):
        begun_s, begun_processor_s = time.perf_counter(), time.process_time()
        train_ngram(data, folder / f"model-{number}", ORDER)
        found = evaluate_ngram(folder / f"model-{number}", data)
        seconds.append(time.perf_counter() - begun_s)
        processor_seconds.append(time.process_time() - begun_processor_s)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tokens = TokenData.open(data).manifest.splits["train"].tokens
    return {
        "tokens": tokens,
        "least_s": round(min(seconds), 2),
        "most_s": round(max(seconds), 2),
        "least_processor_s": round(min(processor_seconds), 2),
        "limit_s": LIMIT_S,
        "within_limit": min(seconds) <= LIMIT_S,
        "memory_bytes_per_token": round(1024 * (peak - before) / tokens),
        "model_bytes": sum(path.stat().st_size for path in (folder / "model-0").iterdir()),
        "bits_per_byte": round(found.losses.likelihood.bits_per_byte, 4),
    }


def main() -> None:
    """Check, then time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", help="a text file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with TemporaryDirectory() as name:
        folder = Path(name)
        if args.text is None:
            (folder / "stories.txt").write_text("\n".join(texts(STORIES, 0, "train")))
        prepare([args.text or str(folder / "stories.txt")], folder / "data", "bpe", 2048)
        results = {"text": Path(args.text or "stories.txt").name, "whole": whole(folder / "data", folder, args.runs)}
        data = TokenData.open(folder / "data")
        end, size = data.tokenizer.end_id, data.tokenizer.vocab_size
        train = data.split("train").read(1, TOKENS)
        train, new = (np.append([end], part[part != end]) for part in (train[:-NEW], train[-NEW:]))

    def ours() -> float:
        model = NGram(count_ngrams(train, end, size, ORDER), end)
        return -float(np.log(model.token_probabilities(new)[1:]).sum())

    plain_train, plain_new = train.tolist(), new.tolist()

    def other() -> float:
        return Dictionaries(plain_train, size).nats(plain_new)

    found, expected = ours(), other()
    gate("nats", math.isclose(found, expected, rel_tol=1e-9), f"{found:.6f} against {expected:.6f}")
    results["dictionaries"] = {"tokens": len(train), **contest(ours, other, args.runs, warm_up=0).summary()}
    report("ngram", results)


if __name__ == "__main__":
    main()
