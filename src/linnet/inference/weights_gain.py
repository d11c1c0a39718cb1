"""Whether weights of few bits make a model faster on this machine."""

import statistics
import time

from linnet.core.errors import note
from linnet.inference.decode import decode
from linnet.inference.sampling import Sampling
from linnet.inference.weights import convert_weights
from linnet.model.decoder import Decoder

MEASURE_LIMIT_S = 0.6
"""Time limit of the measured steps in one precision."""
MAX_STEPS, MIN_STEPS = 24, 3
MIN_SPEEDUP = 1.02
"""Smallest ratio that counts as faster; less may be the scatter of a busy machine."""


def convert_and_report(decoder: Decoder, precision: str) -> None:
    """`convert_weights`, and a note if `int8` or `int4` does not make the model faster on this machine.

    Fewer bytes save time only where reading weights dominates; in a small model it does not.
    """
    too_short = decoder.spec.context_length <= MIN_STEPS + 3  # learned positions end there
    if precision not in ("int8", "int4") or decoder.spec.prefix_field is not None or too_short:
        convert_weights(decoder, precision)
        return
    before = str(decoder.dtype).removeprefix("torch.")
    before_s = seconds_per_token(decoder)
    convert_weights(decoder, precision)
    after_s = seconds_per_token(decoder)
    if before_s < MIN_SPEEDUP * after_s:
        times = f"{after_s * 1e3:.2f} ms a token, in {before} {before_s * 1e3:.2f}"
        note(f"precision {precision}: not faster than as stored, for this model on this machine: {times}")


def seconds_per_token(decoder: Decoder) -> float:
    """The median time of the first steps of one stream; not for models of pairs, which need an input."""
    times_s: list[float] = []
    until_s = time.perf_counter() + MEASURE_LIMIT_S
    tokens = min(MAX_STEPS + 2, decoder.spec.context_length - 1)
    steps = decode(decoder, [[0]], tokens, Sampling(temperature=0.0))
    next(steps), next(steps)
    start_s = time.perf_counter()
    for _ in steps:
        times_s.append(time.perf_counter() - start_s)
        if len(times_s) >= MIN_STEPS and time.perf_counter() > until_s:
            break
        start_s = time.perf_counter()
    return statistics.median(times_s)
