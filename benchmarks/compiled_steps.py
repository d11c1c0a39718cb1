"""Decoding with compiled steps against the ordinary ones: every mixer, one stream and eight of different ages.

Greedy, float32, behind prompts of up to 32 tokens, in one batch of the engine. Packages that the cache does not have
are compiled first (up to a minute each). The gate compares all tokens. `python benchmarks/compiled_steps.py [--size
"10 M"] [--kinds ted,mamba2]`; with `--kinds` nothing is written. The record is of `tiny-` presets on one thread
(`--threads 1`).
"""

import argparse
import time
from typing import Any

import torch

from gpu_models import SIZES, kinds, model
from harness import contest, gate, report
from linnet.inference.compiled_step import BUILDS, can_compile, package_of, start_build
from linnet.inference.decode import decode
from linnet.inference.prefill import new_state
from linnet.inference.sampling import Sampling
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

TOKENS = 200
LENGTHS = (32, 27, 30, 5, 32, 11, 21, 32)
"""Tokens of the prompts; the first is that of a single stream."""


def tokens_of(decoder: Decoder, streams: int, compiles: bool) -> list[int | None]:
    """The tokens of all streams, with or without compiled steps."""
    BUILDS.enabled = compiles
    prompts = [list(range(1, length + 1)) for length in LENGTHS[:streams]]
    return [token for step in decode(decoder, prompts, TOKENS, Sampling(temperature=0.0)) for token in step]


def compiled_s(decoder: Decoder, streams: int) -> float | None:
    """Seconds of a build, 0 if the cache has the package; None if it failed."""
    prompts = [[1, 2, 3]] * streams
    state = new_state(decoder, prompts, TOKENS)
    with torch.inference_mode():
        decoder.hidden(torch.tensor(prompts), state)
    assert can_compile(decoder, state)
    request, package = package_of(decoder, state)
    start_s = time.perf_counter()
    if not (package.is_file() or (start_build(request, package) and BUILDS.processes[package].wait() == 0)):
        return None
    return round(time.perf_counter() - start_s, 1)


def measure(kind: str, decoder: Decoder, streams: int, runs: int) -> dict[str, Any]:
    """The comparison for one number of streams; rates are of tokens of all streams."""
    spent_s = compiled_s(decoder, streams)
    if spent_s is None:
        return {"error": "not compiled: see the files beside its package"}
    count = TOKENS * streams
    ours, ordinary = (tokens_of(decoder, streams, compiles) for compiles in (True, False))
    same = sum(a == b for a, b in zip(ours, ordinary, strict=True))
    gate(f"{kind}, {streams} streams", same == count, f"{same} of {count} tokens are those of ordinary steps")
    found = contest(lambda: tokens_of(decoder, streams, True), lambda: tokens_of(decoder, streams, False), runs)
    rates = {
        "tokens_per_s": round(count / min(found.ours_s)),
        "ordinary_tokens_per_s": round(count / min(found.other_s)),
    }
    return found.summary() | rates | {"compiled_in_s": spent_s}


def main() -> None:
    """Compile, check, then time, for each mixer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="processor threads (default 1)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each contestant; the median counts (default 5)")
    parser.add_argument("--size", default="tiny", choices=["tiny", *SIZES], help="size of the models (default tiny)")
    parser.add_argument("--kinds", help="only these mixers, separated by commas; then no record is written")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results: dict[str, Any] = {}
    for kind in arguments.kinds.split(",") if arguments.kinds else kinds():
        torch.manual_seed(0)
        size = arguments.size
        spec = ModelSpec.load(kinds()[kind]) if size == "tiny" else model(kind, SIZES[size])
        decoder = Decoder(spec).eval().requires_grad_(False)
        one, eight = (measure(kind, decoder, streams, arguments.runs) for streams in (1, len(LENGTHS)))
        results[kind] = {"1 stream": one, "8 streams": eight}
        if "error" not in one | eight:  # the time of a step of 8 streams, in times of 8 steps of one
            results[kind]["share_of_8_times_one"] = round(one["tokens_per_s"] / eight["tokens_per_s"], 3)
        print(kind, results[kind], flush=True)
    if not arguments.kinds:
        shape = f"{arguments.size}, {TOKENS} tokens behind up to {max(LENGTHS)}, float32"
        report("compiled_steps", {"shape": shape, **results})


if __name__ == "__main__":
    main()
