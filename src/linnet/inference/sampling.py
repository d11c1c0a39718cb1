"""The choice of the next token from logits, by a chain of processors in the order and meaning of Transformers.

The order is: logit bias (its `SequenceBiasLogitsProcessor`, for single tokens), repetition penalty
(`RepetitionPenaltyLogitsProcessor`), frequency and presence penalties (those of OpenAI's interface), temperature,
top-k, top-p, min-p and typical sampling (its four `LogitsWarper` of these names), ties included; a grammar comes last.

A grammar (`inference.constrained`) permits some of the tokens that the others leave. Where it permits none of them, the
tokens that it does permit are all that top-k, top-p, min-p and typical sampling see in that step, so that one is always
left. llama.cpp has the same two cases; vLLM and Transformers apply a grammar first in every step, which differs for
tokens that the truncation drops while others that are permitted stay. A greedy choice is the likeliest permitted token.

Sources: top-p is nucleus sampling (Holtzman et al., arXiv 1904.09751); the repetition penalty is of Keskar et al.
(arXiv 1909.05858), min-p of Nguyen et al. (arXiv 2407.01082), typical sampling of Meister et al. (arXiv 2202.00666).

Legend: `B` batch, `V` vocabulary.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from linnet.core.bounds import MAX_INTEGER
from linnet.core.errors import UserError, check_kind, check_whole, did_you_mean

MIN_TEMPERATURE = 1e-6
"""Below it, a logit divided by the temperature may exceed the range of float32."""

MAX_BIAS, MAX_PENALTY = 1e4, 1e3
"""Limits of what is added to logits and of what they are divided by: far beyond them float32 overflows."""


MAX_SORTED = 2048
"""Tokens of a vocabulary that top-p sorts as a whole on a CPU."""


class SamplingSettings(TypedDict, total=False):
    """The fields of `Sampling` as keywords of `generate`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. The processors apply in the order that the module describes.

    temperature: logits are divided by it; 0 is greedy: the likeliest token after the bias and the penalties.
    top_k: only the k most likely tokens, and those tied with the last of them; 0 for all.
    top_p: only the smallest set of most likely tokens whose probabilities together reach it; 1 for all.
    min_p: only tokens with at least this share of the likeliest token's probability; 0 for all.
    typical_p: only the smallest set of tokens with a typical information content whose probabilities together reach
        it; 1 for all.
    repetition_penalty: positive logits of tokens that the stream has had, prompt included, are divided by it, negative
        ones multiplied; 1 has no effect.
    frequency_penalty, presence_penalty: subtracted from the logit of a token that has been generated since the prompt:
        for each time, and once.
    logit_bias: is added to the logits of these token ids.
    seed: the same seed gives the same tokens; None draws a new one. Row `b` of a batch uses `seed + b`, so its tokens
        are those that it would get alone with that seed.
    drawn: number of random numbers of the seed that have been used before.
    """

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    _: KW_ONLY
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    drawn: int = 0

    def __post_init__(self) -> None:
        share, positive = (0.0, 1.0), (1 / MAX_PENALTY, MAX_PENALTY)
        numbers = {
            "top_p": (share, "a probability from 0 to 1"),
            "min_p": (share, "a share from 0 to 1"),
            "typical_p": ((math.ulp(0.0), 1.0), "a probability above 0, at most 1"),
            "repetition_penalty": (positive, f"a number from {1 / MAX_PENALTY:g} to {MAX_PENALTY:g}; 1 has no effect"),
            "frequency_penalty": ((-MAX_BIAS, MAX_BIAS), f"a number within {MAX_BIAS:g} of 0, which has no effect"),
            "presence_penalty": ((-MAX_BIAS, MAX_BIAS), f"a number within {MAX_BIAS:g} of 0, which has no effect"),
        }
        for name, ((least, most), accepted) in numbers.items():
            if not (_is_number(value := getattr(self, name)) and least <= value <= most):
                raise UserError(field=name, value=value, accepted=accepted)
        check_whole("top_k", self.top_k, 0, MAX_INTEGER, "0 (all tokens) or a number of tokens")
        if self.seed is not None:
            check_whole("seed", self.seed, 0, MAX_INTEGER, "a whole number from 0 to 2**63 - 1")
        temperature = self.temperature
        if not (_is_number(temperature) and (temperature == 0 or MIN_TEMPERATURE <= temperature < math.inf)):
            raise UserError(field="temperature", value=temperature, accepted=f"0 (greedy) or from {MIN_TEMPERATURE} on")
        if not isinstance(self.logit_bias, Mapping) or not all(
            _is_number(token, Integral) and token >= 0 and _is_number(bias) and abs(bias) <= MAX_BIAS
            for token, bias in self.logit_bias.items()
        ):
            accepted = f"token ids with numbers within {MAX_BIAS:g} of 0"
            raise UserError(field="logit_bias", value=self.logit_bias, accepted=accepted)

    @property
    def greedy(self) -> bool:
        """True if the likeliest token is always chosen."""
        return self.temperature == 0

    @property
    def penalizes(self) -> bool:
        """True if the tokens of the stream so far change the logits."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0


GREEDY_SETTINGS = ("repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias")
"""The settings that change a choice of the likeliest."""


def check_sampling(sampling: object) -> None:
    """`UserError` for what is no `Sampling`."""
    check_kind("sampling", sampling, Sampling, "a Sampling, as Sampling(temperature=0.8, seed=1)")


def seeded(sampling: Sampling) -> Sampling:
    """The same with a seed, a fresh one if it has none, unless nothing is drawn."""
    return sampling if sampling.greedy or sampling.seed is not None else replace(sampling, seed=fresh_seed())


def sampling_of(settings: Mapping[str, Any], keywords: Iterable[str]) -> Sampling:
    """The fields of `Sampling` as keywords of a function; `TypeError` for another, with the keyword that is meant."""
    for name in settings:
        if name not in SamplingSettings.__annotations__:
            meant = did_you_mean(name, keywords, f"expected {', '.join(keywords)}")
            raise TypeError(f"generate() has no keyword {name!r}; {meant}")
    return Sampling(**settings)


def _is_number(value: object, kind: type = Real) -> bool:
    """True for numbers of Python and NumPy, without truth values."""
    return isinstance(value, kind) and not isinstance(value, bool)


class TokenCounts:
    """What the penalties of one row count: the tokens of the stream, and those generated since the prompt.

    seen: the tokens of the stream. generated: how often each was generated since the prompt. They are kept as arrays
    that a token changes in one place, so that a step of a long text costs no more than one of a short text.
    """

    def __init__(self, seen: Iterable[int] = (), generated: Mapping[int, int] = MappingProxyType({})) -> None:
        self._added: list[int] = []  # generated tokens that the arrays do not have yet: only penalties read them
        self._places: dict[int, int] = {}
        self._tokens_S, self._times_S = np.empty(64, np.int64), np.zeros(64, np.float32)
        for token in seen:
            self._place(token)
        for token, times in generated.items():
            place = self._place(token)
            self._times_S[place] = times

    @property
    def seen(self) -> set[int]:
        """The tokens of the stream."""
        self._count_added()
        return set(self._places)

    @property
    def generated(self) -> Counter[int]:
        """How often each token was generated since the prompt."""
        self._count_added()
        times = self._times_S
        return Counter({token: int(times[place]) for token, place in self._places.items() if times[place]})

    def read_prompt(self, tokens: Iterable[int]) -> None:
        """Add the tokens of a prompt, with which the count of generated tokens begins again."""
        self._count_added()
        self._times_S[:] = 0
        for token in tokens:
            self._place(token)

    def add(self, token: int) -> None:
        """Add a generated token."""
        self._added.append(token)

    def tensors(self, vocab_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """`[S]`, `[S]`: the tokens of the stream below `vocab_size`, and how often each was generated (float32).

        A vocabulary may have fewer ids than the embedding, and a prompt may contain the others.
        """
        self._count_added()
        tokens_S, times_S = self._tokens_S[: len(self._places)], self._times_S[: len(self._places)]
        if tokens_S.size and tokens_S.max() >= vocab_size:
            times_S, tokens_S = times_S[tokens_S < vocab_size], tokens_S[tokens_S < vocab_size]
        return torch.from_numpy(tokens_S).to(device), torch.from_numpy(times_S).to(device)

    def _count_added(self) -> None:
        """Bring the arrays up to the token that was generated last."""
        for token in self._added:
            place = self._place(token)  # before the arrays are looked at, which it may replace
            self._times_S[place] += 1
        self._added.clear()

    def _place(self, token: int) -> int:
        """The place of a token in the arrays; a new one is added."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._tokens_S):
            self._tokens_S = np.concatenate([self._tokens_S, np.empty_like(self._tokens_S)])
            self._times_S = np.concatenate([self._times_S, np.zeros_like(self._times_S)])
        self._tokens_S[place] = token
        return place


def counts_of(prompts: Iterable[Iterable[int]]) -> list[TokenCounts]:
    """The counts of rows that begin with these prompts, without their padding."""
    return [TokenCounts(prompt) for prompt in prompts]


def fresh_seed() -> int:
    """A seed from the system's source of randomness."""
    return torch.Generator().seed() % 2**63


def following_seed(seed: int | None, number: int = 1) -> int:
    """The seed of the text so many behind that of `seed` (None: 0); behind the largest one they begin again at 0."""
    return ((seed or 0) + number) % (MAX_INTEGER + 1)


def uniform_numbers(seed: int, drawn: int = 0) -> Iterator[float]:
    """The endless random numbers of a seed, in `(0, 1]`, without the first `drawn` ones; float64 of PyTorch's CPU."""
    generator = torch.Generator().manual_seed(seed)
    torch.rand(drawn, dtype=torch.float64, generator=generator)
    while True:
        yield 1.0 - float(torch.rand(1, dtype=torch.float64, generator=generator))


def choose(
    logits_BV: Tensor, sampling: Sampling, uniform_B: Tensor | None, permitted_BV: Tensor | None = None
) -> Tensor:
    """The next token of each row, int64 `[B]`; `uniform_B` in `(0, 1]` decides it unless the choice is greedy.

    logits_BV: after bias and penalties (`adjust`). permitted_BV: truth values, the tokens that a grammar permits, at
    least one in each row; None: all. Raises `UserError` if logits are not finite.
    """
    if permitted_BV is not None and sampling.greedy:
        check_finite(logits_BV.amax(dim=-1).tolist())
        return forbid(logits_BV, permitted_BV).argmax(dim=-1)
    highest_B, likeliest_B = logits_BV.max(dim=-1)
    check_finite(highest_B.tolist())
    if sampling.greedy:
        return likeliest_B
    assert uniform_B is not None
    return sample(probabilities(logits_BV, sampling, permitted_BV), uniform_B.to(logits_BV.device))


def choose_tokens(
    logits_BV: Tensor, sampling: Sampling, uniform_B: Tensor | None, permitted_BV: Tensor | None = None
) -> list[int]:
    """`choose` as numbers; the likeliest tokens on a CPU by NumPy, in a third of PyTorch's time."""
    if sampling.greedy and permitted_BV is None and not logits_BV.is_cpu:
        return likeliest_in_one_copy(logits_BV)
    if sampling.greedy and permitted_BV is None:
        found = list[int]()
        for logits_V in (logits_BV if logits_BV.dtype == torch.float32 else logits_BV.float()).numpy():
            found.append(likeliest := int(logits_V.argmax()))
            if not math.isfinite(logits_V[likeliest]):
                check_finite((float(logits_V[likeliest]),))
        return found
    return choose(logits_BV, sampling, uniform_B, permitted_BV).tolist()


def likeliest_in_one_copy(logits_BV: Tensor) -> list[int]:
    """The likeliest token of each row; the processor waits for a device once, and the logits are checked as well."""
    highest_B, likeliest_B = logits_BV.max(dim=-1)
    highest, tokens = torch.stack((highest_B.float(), likeliest_B.float())).tolist()  # ids below 2^24 are exact
    check_finite(highest)
    return [int(token) for token in tokens]


def check_finite(highest: Iterable[float]) -> None:
    """Raise `UserError` if the highest logit of a row is no finite number."""
    if not all(map(math.isfinite, highest)):
        raise UserError("the model's logits are not finite: its weights are damaged, or its training diverged")


def sample(probabilities_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """The token where the cumulative probability first reaches `uniform_B` (in `(0, 1]`) of its total: int64 `[B]`.

    A token of probability 0 is never chosen.
    """
    cumulative_BV = probabilities_BV.double().cumsum(dim=-1)
    target_B1 = uniform_B[:, None] * cumulative_BV[:, -1:]
    return torch.searchsorted(cumulative_BV, target_B1)[:, 0]


def probabilities(logits_BV: Tensor, sampling: Sampling, permitted_BV: Tensor | None = None) -> Tensor:
    """The distribution from which tokens are drawn, float32 `[B, V]`.

    permitted_BV: see `choose`.
    """
    logits_BV = logits_BV.float()
    warped_BV = warp(logits_BV, sampling)
    if permitted_BV is not None:
        left_BV = forbid(warped_BV, permitted_BV)
        has_none_B1 = left_BV.isneginf().all(dim=-1, keepdim=True)
        if has_none_B1.any():
            left_BV = torch.where(has_none_B1, warp(forbid(logits_BV, permitted_BV), sampling), left_BV)
        warped_BV = left_BV
    return warped_BV.softmax(dim=-1)


def forbid(logits_BV: Tensor, permitted_BV: Tensor) -> Tensor:
    """Logits in which all tokens that are not permitted are `-inf`."""
    return logits_BV.masked_fill(~permitted_BV.to(logits_BV.device), -math.inf)


def check_bias(sampling: Sampling, vocab_size: int) -> None:
    """Raise `UserError` for a bias of a token id that the vocabulary does not have."""
    highest = max(sampling.logit_bias, default=-1)
    if highest >= vocab_size:
        accepted = f"0 to {vocab_size - 1}, the vocabulary"
        raise UserError(field="logit_bias", value=f"token id {highest}", accepted=accepted)


def adjust(logits_BV: Tensor, sampling: Sampling, counts: Sequence[TokenCounts]) -> Tensor:
    """Logits after the bias and the penalties, float32; the given ones if neither is set.

    counts: of each row. `UserError` as from `check_bias`.
    """
    if not sampling.logit_bias and not sampling.penalizes:
        return logits_BV
    vocab_size, device = logits_BV.shape[-1], logits_BV.device
    logits_BV = logits_BV.float().clone()
    if sampling.logit_bias:
        check_bias(sampling, vocab_size)
        logits_BV[:, list(sampling.logit_bias)] += torch.tensor(list(sampling.logit_bias.values()), device=device)
    if not sampling.penalizes:
        return logits_BV
    for logits_V, row in zip(logits_BV, counts, strict=True):
        tokens_S, times_S = row.tensors(vocab_size, device)
        values_S = logits_V[tokens_S]
        if sampling.repetition_penalty != 1:
            penalty = sampling.repetition_penalty
            values_S = torch.where(values_S < 0, values_S * penalty, values_S / penalty)
        if sampling.frequency_penalty or sampling.presence_penalty:
            penalty_S = sampling.frequency_penalty * times_S + sampling.presence_penalty
            values_S = torch.where(times_S > 0, values_S - penalty_S, values_S)
        logits_V[tokens_S] = values_S
    return logits_BV


def warp(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Logits after temperature, top-k, top-p, min-p and typical sampling, those of dropped tokens `-inf`; not for
    greedy choice.
    """
    assert not sampling.greedy
    logits_BV = logits_BV / sampling.temperature
    if sampling.top_k > 0:
        logits_BV = keep_top_k(logits_BV, sampling.top_k)
    if sampling.top_p < 1:
        logits_BV = keep_top_p(logits_BV, sampling.top_p)
    if sampling.min_p > 0:
        logits_BV = keep_min_p(logits_BV, sampling.min_p)
    if sampling.typical_p < 1:
        logits_BV = keep_typical(logits_BV, sampling.typical_p)
    return logits_BV


def keep_top_k(logits_BV: Tensor, top_k: int) -> Tensor:
    """Drop tokens that are less likely than the k-th; tokens tied with it stay."""
    kth_B1 = logits_BV.topk(min(top_k, logits_BV.shape[-1])).values[:, -1:]
    return logits_BV.masked_fill(logits_BV < kth_B1, -math.inf)


def keep_top_p(logits_BV: Tensor, top_p: float) -> Tensor:
    """Drop the least likely tokens whose probabilities together are at most `1 - top_p`; never all tokens.

    Of equally likely tokens those with the smaller ids are dropped first, as in the web page. Of a large vocabulary on
    a CPU only the tokens are sorted that may stay: those that are less likely than `(1 - top_p) / V` have together at
    most `1 - top_p`. The sums are then rounded otherwise than those of Transformers, in float32 to about 1e-5.
    """
    if logits_BV.device.type == "cpu" and logits_BV.shape[1] > MAX_SORTED:
        return torch.stack([_keep_top_p_of_row(logits_V, top_p) for logits_V in logits_BV])
    ascending_BV, order_BV = logits_BV.sort(stable=True)
    dropped_BV = ascending_BV.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
    dropped_BV[:, -1] = False
    return logits_BV.masked_fill(dropped_BV.scatter(1, order_BV, dropped_BV), -math.inf)


def _keep_top_p_of_row(logits_V: Tensor, top_p: float) -> Tensor:
    """`keep_top_p` of one row of a large vocabulary."""
    probabilities_V = logits_V.softmax(dim=-1)
    may_stay_V = probabilities_V > 0.5 * (1 - top_p) / len(logits_V)  # half of the bound: sums are rounded
    ids_N = may_stay_V.nonzero()[:, 0]
    ids_N = ids_N[logits_V[ids_N].argsort(stable=True)]
    below = probabilities_V.masked_fill(may_stay_V, 0).sum()
    stays_N = probabilities_V[ids_N].cumsum(dim=0) + below > 1 - top_p
    stays_N[-1:] = True
    kept_K = ids_N[stays_N]
    return torch.full_like(logits_V, -math.inf).index_copy(0, kept_K, logits_V[kept_K])


def keep_min_p(logits_BV: Tensor, min_p: float) -> Tensor:
    """Drop tokens with less than `min_p` of the likeliest token's probability."""
    probabilities_BV = logits_BV.softmax(dim=-1)
    least_B1 = min_p * probabilities_BV.amax(dim=-1, keepdim=True)
    return logits_BV.masked_fill(probabilities_BV < least_B1, -math.inf)


def keep_typical(logits_BV: Tensor, typical_p: float) -> Tensor:
    """Drop tokens whose information content is far from the entropy (Meister et al., eq. 11).

    The closest ones whose probabilities together reach `typical_p` stay, with those tied with the last of them.
    """
    log_BV = logits_BV.log_softmax(dim=-1)
    entropy_B1 = -(log_BV * log_BV.exp()).nansum(dim=-1, keepdim=True)
    distance_BV = (-log_BV - entropy_B1).abs()
    ascending_BV, order_BV = distance_BV.sort()
    reached_BV = logits_BV.gather(-1, order_BV).softmax(dim=-1).cumsum(dim=-1)
    last_B1 = (reached_BV < typical_p).sum(dim=-1, keepdim=True).clamp(max=logits_BV.shape[-1] - 1)
    return logits_BV.masked_fill(distance_BV > ascending_BV.gather(-1, last_B1), -math.inf)
