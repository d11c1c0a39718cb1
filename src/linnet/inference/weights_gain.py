"""Whether weights of fewer bits make a model faster on this machine, from a measurement of a second or two.

Fewer bytes are less time only where reading weights is what a token's time goes into: in a small model it is not.
"""

import statistics
import time
from dataclasses import dataclass

from linnet.core.errors import note
from linnet.inference.engine import decode
from linnet.inference.sampling import Sampling
from linnet.inference.weights import convert_weights
from linnet.model.decoder import Decoder

LIMIT_S = 0.6
"""Of the steps in one precision."""
STEPS, FEWEST = 24, 3
LEAST_GAIN = 1.02
"""Times as fast; what is less may be the scatter of a busy machine."""


@dataclass(frozen=True)
class Gain:
    """Seconds of a token of one stream, before and after the weights were converted."""

    before_s: float
    after_s: float

    @property
    def faster(self) -> bool:
        """Whether it was worth it."""
        return self.before_s >= LEAST_GAIN * self.after_s


def convert_and_report(decoder: Decoder, precision: str) -> None:
    """`convert_weights`, and a note where `int8` or `int4` was asked for and makes no faster what was there."""
    short = decoder.spec.context_length <= FEWEST + 3  # learned positions end there
    if precision not in ("int8", "int4") or decoder.spec.prefix_field is not None or short:
        convert_weights(decoder, precision)
        return
    before = str(decoder.dtype).removeprefix("torch.")
    before_s = seconds_per_token(decoder)
    convert_weights(decoder, precision)
    gain = Gain(before_s, seconds_per_token(decoder))
    if not gain.faster:
        told = f"{gain.after_s * 1e3:.2f} ms a token, in {before} {gain.before_s * 1e3:.2f}"
        note(f"precision {precision}: not faster than as stored, for this model on this machine: {told}")


def seconds_per_token(decoder: Decoder) -> float:
    """Of one stream at its beginning: the median of a few steps. A model for pairs has no stream of its own."""
    taken_s: list[float] = []
    until_s = time.perf_counter() + LIMIT_S
    tokens = min(STEPS + 2, decoder.spec.context_length - 1)
    steps = decode(decoder, [[0]], tokens, Sampling(temperature=0.0))
    next(steps), next(steps)
    begun_s = time.perf_counter()
    for _ in steps:
        taken_s.append(time.perf_counter() - begun_s)
        if len(taken_s) >= FEWEST and time.perf_counter() > until_s:
            break
        begun_s = time.perf_counter()
    return statistics.median(taken_s)
