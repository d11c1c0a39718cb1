"""Decoding with compiled steps against the ordinary ones, every mixer whose step is compiled, at its `tiny-` preset.

Greedy, one stream of float32 behind 32 tokens, on one thread (`--threads`). Packages that the cache does not have are
compiled first (up to a minute each). The gate compares all tokens. `python benchmarks/compiled_steps.py`
"""

import time

import torch

from gpu_models import kinds
from harness import contest, gate, report, threads_from_command_line
from linnet.inference.compiled_step import BUILDS, can_compile, package_of, start_build
from linnet.inference.engine import decode
from linnet.inference.prefill import new_state
from linnet.inference.sampling import Sampling
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

PROMPT, TOKENS = list(range(1, 33)), 200


def tokens_of(decoder: Decoder, compiles: bool) -> list[int | None]:
    """The tokens, with or without compiled steps."""
    BUILDS.enabled = compiles
    return [token for (token,) in decode(decoder, [PROMPT], TOKENS, Sampling(temperature=0.0))]


def main() -> None:
    """Compile, check, then time, for each mixer."""
    runs, results = threads_from_command_line(__doc__), {}
    for kind, preset in kinds().items():
        torch.manual_seed(0)
        decoder = Decoder(ModelSpec.load(preset)).eval().requires_grad_(False)
        state = new_state(decoder, [PROMPT], TOKENS)
        with torch.inference_mode():
            decoder.hidden(torch.tensor([PROMPT]), state)
        assert can_compile(decoder, state)
        request, package = package_of(decoder, state)
        start_s = time.perf_counter()
        if not (package.is_file() or (start_build(request, package) and BUILDS.processes[package].wait() == 0)):
            results[kind] = "not compiled: see the files beside its package"
            continue
        compiled_s = time.perf_counter() - start_s
        same = sum(a == b for a, b in zip(tokens_of(decoder, True), tokens_of(decoder, False), strict=True))
        gate(kind, same == TOKENS, f"{same} of {TOKENS} tokens are those of ordinary steps")
        found = contest(lambda: tokens_of(decoder, True), lambda: tokens_of(decoder, False), runs)  # noqa: B023
        rates = {
            "tokens_per_s": round(TOKENS / min(found.ours_s)),
            "ordinary_tokens_per_s": round(TOKENS / min(found.other_s)),
        }
        results[kind] = found.summary() | rates | {"compiled_in_s": round(compiled_s, 1)}
    report("compiled_steps", {"shape": f"{TOKENS} tokens behind {len(PROMPT)}, one stream, float32", **results})


if __name__ == "__main__":
    main()
