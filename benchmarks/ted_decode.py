"""TED's decoding, one stream of `ted-tinystories`, float32: `python benchmarks/ted_decode.py`.

A bank of sums and an eviction policy against the published way of stepping (`plain_ted.py`), with a threshold that
leaves about 30 tokens in each context; the bank at age 100 and at age 100,000; and a prompt of 10,000 tokens read in
parallel against reading it token by token. Before that the policy must give the logits of the published way, and the
bank those of the full context. Steps are compiled ones, which are built first where the cache does not have them.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from compiled_steps import build_all, loaded_step
from harness import contest, gate, report, threads_from_command_line
from linnet.inference.cache_policy import CachePolicies, cache_policy_state
from linnet.inference.step_packages import package_of
from linnet.layers.cache_policy import FULL
from linnet.layers.mixers.ted import BankCache, EvictionCache
from linnet.layers.mixers.ted.state import TedState
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.state import DecoderState
from plain_ted import PlainTed

CAPACITY, TOKENS, PROMPT, HELD, WARM = 2**18, 200, 10_000, 30, 200


def state_of(decoder: Decoder, policy: CachePolicies) -> DecoderState:
    return cache_policy_state(decoder, 1, CAPACITY if policy != FULL else 2 * PROMPT, policy)


def stepper(decoder: Decoder, state: DecoderState, tokens: Tensor) -> Callable[[], Tensor]:
    """Reads the tokens one by one behind those of a state, with logits, as generation does after the first seconds."""
    made = loaded_step(decoder, state)
    if made is None:
        raise SystemExit(f"the step is not compiled: see the files beside {package_of(decoder, state)[1]}")
    step = made(state)

    def run() -> Tensor:
        with torch.inference_mode():
            return torch.cat([step(token[None, None]) for token in tokens])

    return run


def plain_stepper(plain: PlainTed, tokens: Tensor) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with torch.inference_mode():
            return torch.stack([plain.step(int(token)) for token in tokens])

    return run


@torch.inference_mode()
def threshold_for(decoder: Decoder, tokens: Tensor) -> float:
    """The one that leaves about `HELD` tokens in the average context, by bisection."""
    low, high = -12.0, 2.0
    for _ in range(12):
        middle = (low + high) / 2
        state = state_of(decoder, EvictionCache(0, 10**middle))
        decoder.hidden(tokens[None, :WARM], state)
        mean = sum(int(layer.sizes(WARM)) for layer in state.layers if isinstance(layer, TedState)) / len(state.layers)
        low, high = (middle, high) if mean > HELD else (low, middle)
    return float(10**high)


def check(decoder: Decoder, tokens: Tensor, threshold: float) -> None:
    """The policy gives the published way's logits, the bank the full context's."""
    expected = plain_stepper(PlainTed(decoder, threshold), tokens[:TOKENS])().view(TOKENS, -1)[1:]
    actual = stepper(decoder, aged(decoder, tokens, EvictionCache(0, threshold), 1), tokens[1:TOKENS])()
    error = float((actual - expected).abs().max())
    gate("eviction policy", error < 1e-4, f"logits differ by {error:.1e} from the published way's")
    with torch.inference_mode():
        full, bank = (decoder(tokens[None, :2000], state_of(decoder, context)) for context in (FULL, BankCache()))
    error = float((full - bank).abs().max())
    gate("bank", error < 1e-3, f"logits differ by {error:.1e} from the full context's")
    stepped = stepper(decoder, aged(decoder, tokens, BankCache(), WARM), tokens[WARM:2000])()
    error = float((full[0, WARM:] - stepped).abs().max())
    gate("step of the bank", error < 1e-3, f"logits differ by {error:.1e} from the full context's")


def aged(decoder: Decoder, tokens: Tensor, policy: CachePolicies, age: int) -> DecoderState:
    """A state that has read so many tokens, as one prompt."""
    state = state_of(decoder, policy)
    with torch.inference_mode():
        decoder.hidden(tokens[:age][None], state)
    return state


def prompt_contest(decoder: Decoder, tokens: Tensor, policy: CachePolicies, runs: int) -> dict[str, object]:
    """The whole prompt in one pass, against its first tokens one by one, as if all took as long as they."""

    def in_parallel() -> None:
        aged(decoder, tokens, policy, PROMPT)

    one_by_one = stepper(decoder, aged(decoder, tokens, policy, WARM), tokens[:TOKENS])
    times = contest(in_parallel, one_by_one, runs=runs)
    per_token = times.ratio * PROMPT / TOKENS
    return {
        "times_as_fast_as_token_by_token": round(per_token, 2),
        "seconds": round(sorted(times.ours_s)[runs // 2], 3),
    }


def main() -> None:
    """Check, then time."""
    runs = threads_from_command_line(__doc__)
    torch.manual_seed(0)
    decoder = Decoder(ModelSpec.load("ted-tinystories")).eval()
    tokens = torch.randint(90, (CAPACITY // 2,), generator=torch.Generator().manual_seed(1))
    threshold = threshold_for(decoder, tokens)
    policy = EvictionCache(0, threshold)
    contexts, top = {"bank": BankCache(), "policy": policy}, {"top 30": EvictionCache(30, -1.0)}
    build_all([package_of(decoder, aged(decoder, tokens, each, 1)) for each in (contexts | top).values()], math.inf)
    check(decoder, tokens, threshold)
    few, results = tokens[:TOKENS], {"shape": f"ted-tinystories, {TOKENS} tokens, threshold {threshold:.2g}"}
    plain = PlainTed(decoder, threshold)
    plain_stepper(plain, tokens[:WARM])()
    for name, context in contexts.items():
        ours = stepper(decoder, aged(decoder, tokens, context, WARM), few)
        times = contest(ours, plain_stepper(plain, few), runs=runs)
        rate = {"tokens_per_s": round(TOKENS / times.summary()["ours_median_s"])}
        results[f"{name} against the published way"] = {**times.summary(), **rate}
    results["tokens in the published way's contexts"] = plain.sizes()
    young, old = (stepper(decoder, aged(decoder, tokens, BankCache(), age), few) for age in (100, 100_000))
    # Two equal things: more runs, because the machine is less even than they are.
    results["bank at age 100,000 against age 100"] = contest(old, young, runs=4 * runs).summary()
    for name, context in (contexts | top).items():
        results[f"prompt of {PROMPT}, {name}"] = prompt_contest(decoder, tokens, context, runs)
    report("ted_decode", results)


if __name__ == "__main__":
    main()
