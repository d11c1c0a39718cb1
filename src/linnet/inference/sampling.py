"""Choosing the next token from logits: temperature, then top-k, then top-p, in the order and meaning of Transformers.

The three steps are its `TemperatureLogitsWarper`, `TopKLogitsWarper` and `TopPLogitsWarper`, ties included.
Top-p is nucleus sampling (Holtzman et al., arXiv 1904.09751).

Legend: `B` batch, `V` vocabulary.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from linnet.core.errors import UserError

MIN_TEMPERATURE = 1e-6
"""Below it, a logit divided by the temperature may exceed the range of float32."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    temperature: logits are divided by it; 0 is greedy, and then the other fields have no effect.
    top_k: only the k most likely tokens, and those tied with the last of them; 0 for all.
    top_p: only the smallest set of most likely tokens whose probabilities together reach it; 1 for all.
    seed: the same seed gives the same tokens; None draws a new one. Row `b` of a batch uses `seed + b`, so its tokens
        are those that it would get alone with that seed.
    drawn: number of random numbers of the seed that have been used before.
    """

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    drawn: int = 0

    def __post_init__(self) -> None:
        accepted_values = {
            "temperature": (
                self.temperature == 0 or MIN_TEMPERATURE <= self.temperature < float("inf"),
                f"0 (greedy) or from {MIN_TEMPERATURE} on",
            ),
            "top_k": (self.top_k >= 0, "0 (all tokens) or a number of tokens"),
            "top_p": (0 <= self.top_p <= 1, "a probability from 0 to 1"),
            "seed": (self.seed is None or 0 <= self.seed < 2**63, "a whole number from 0 to 2**63 - 1"),
        }
        for field, (is_accepted, accepted) in accepted_values.items():
            if not is_accepted:
                raise UserError(field=field, value=getattr(self, field), accepted=accepted)

    @property
    def greedy(self) -> bool:
        """True if the most likely token is always chosen."""
        return self.temperature == 0


def fresh_seed() -> int:
    """A seed from the system's source of randomness."""
    return torch.Generator().seed() % 2**63


def row_uniforms(seed: int, rows: int, drawn: int = 0) -> Iterator[Tensor]:
    """An endless stream of random numbers in `(0, 1]` for each row, float64 `[B]` on the CPU.

    The first `drawn` numbers are skipped.
    """
    generators = [torch.Generator().manual_seed(seed + row) for row in range(rows)]
    for generator in generators:
        torch.rand(drawn, dtype=torch.float64, generator=generator)
    while True:
        yield 1.0 - torch.cat([torch.rand(1, dtype=torch.float64, generator=generator) for generator in generators])


def choose(logits_BV: Tensor, sampling: Sampling, uniform_B: Tensor | None) -> Tensor:
    """The next token of each row, int64 `[B]`; `uniform_B` in `(0, 1]` decides it unless the choice is greedy.

    Raises `UserError` if logits are not finite.
    """
    if len(logits_BV) == 1 and logits_BV.device.type == "cpu":  # for one row NumPy takes a third of PyTorch's time
        logits_V = logits_BV[0].float().numpy()
        likeliest = int(logits_V.argmax())
        highest, likeliest_B = [float(logits_V[likeliest])], torch.tensor([likeliest])
    else:
        highest_B, likeliest_B = logits_BV.max(dim=-1)
        highest = highest_B.tolist()
    if not all(map(math.isfinite, highest)):
        raise UserError("the model's logits are not finite: its weights are damaged, or its training diverged")
    if sampling.greedy:
        return likeliest_B
    assert uniform_B is not None
    return sample(probabilities(logits_BV, sampling), uniform_B.to(logits_BV.device))


def sample(probabilities_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """The token where the cumulative probability first reaches `uniform_B` (in `(0, 1]`) of its total: int64 `[B]`.

    A token of probability 0 is never chosen.
    """
    cumulative_BV = probabilities_BV.double().cumsum(dim=-1)
    target_B1 = uniform_B[:, None] * cumulative_BV[:, -1:]
    return torch.searchsorted(cumulative_BV, target_B1)[:, 0]


def probabilities(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """The distribution from which tokens are drawn, float32 `[B, V]`."""
    return warp(logits_BV.float(), sampling).softmax(dim=-1)


def warp(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Logits after temperature, top-k and top-p, those of dropped tokens `-inf`; not for greedy choice."""
    assert not sampling.greedy
    logits_BV = logits_BV / sampling.temperature
    if sampling.top_k > 0:
        logits_BV = keep_top_k(logits_BV, sampling.top_k)
    if sampling.top_p < 1:
        logits_BV = keep_top_p(logits_BV, sampling.top_p)
    return logits_BV


def keep_top_k(logits_BV: Tensor, top_k: int) -> Tensor:
    """Drop tokens that are less likely than the k-th; tokens tied with it stay."""
    kth_B1 = logits_BV.topk(min(top_k, logits_BV.shape[-1])).values[:, -1:]
    return logits_BV.masked_fill(logits_BV < kth_B1, -math.inf)


def keep_top_p(logits_BV: Tensor, top_p: float) -> Tensor:
    """Drop the least likely tokens whose probabilities together are at most `1 - top_p`; never all tokens.

    Of equally likely tokens those with the smaller ids are dropped first, as in the web page.
    """
    ascending_BV, order_BV = logits_BV.sort(stable=True)
    dropped_BV = ascending_BV.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
    dropped_BV[:, -1] = False
    return logits_BV.masked_fill(dropped_BV.scatter(1, order_BV, dropped_BV), -math.inf)
