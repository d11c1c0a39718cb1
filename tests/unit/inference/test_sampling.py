"""Sampling is that of Transformers, step by step; what is drawn follows the probabilities."""

import itertools
import math
import re
from collections import Counter
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from linnet.core.errors import UserError
from linnet.inference.sampling import (
    Sampling,
    TokenCounts,
    adjust,
    choose,
    choose_tokens,
    counts_of,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    keep_typical,
    likeliest_in_one_copy,
    probabilities,
    sample,
    uniform_numbers,
    warp,
)

unhurried = settings(deadline=None)  # the first call of a library may take long
TIED = st.sampled_from([-2.0, -1.0, 0.0, 0.5, 3.0])
FREE = st.floats(-30, 30, width=32)
LOGITS = st.integers(1, 12).flatmap(
    lambda width: st.lists(st.lists(st.one_of(TIED, FREE), min_size=width, max_size=width), min_size=1, max_size=3).map(
        torch.tensor
    )
)
TEMPERATURES = st.floats(0.05, 5)
TOP_K = st.integers(1, 15)
TOP_P = st.floats(0, 1)
TYPICAL_P = st.floats(0, 1, exclude_min=True, exclude_max=True)


@pytest.fixture(scope="module")
def transformers() -> ModuleType:
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def gpt2(transformers: ModuleType) -> Any:
    """A model of Transformers, for what its `generate` makes of a configuration."""
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=2, n_embd=2, n_layer=1, n_head=1))


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@unhurried
@given(logits_BV=LOGITS, top_k=TOP_K)
def test_top_k_is_that_of_transformers(transformers: ModuleType, logits_BV: Tensor, top_k: int):
    same(keep_top_k(logits_BV, top_k), transformers.TopKLogitsWarper(top_k)(None, logits_BV))


@unhurried
@given(logits_BV=LOGITS, top_p=TOP_P)
@example(logits_BV=torch.zeros(1, 4), top_p=0.75)
def test_top_p_is_that_of_transformers(transformers: ModuleType, logits_BV: Tensor, top_p: float):
    same(keep_top_p(logits_BV, top_p), transformers.TopPLogitsWarper(top_p)(None, logits_BV))


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 5.0], ids=str)
@pytest.mark.parametrize("top_p", [0.0, 0.3, 0.9, 0.999])
def test_top_p_of_a_large_vocabulary_drops_what_the_sum_of_all_says(scale: float, top_p: float):
    """Logits in steps of a sixteenth, so that many are tied, with tokens that a grammar forbids; up to rounding."""
    logits_BV = (scale * 16 * torch.randn(3, 4096, generator=torch.Generator().manual_seed(1))).round() / 16
    logits_BV[1, :4000] = -math.inf
    kept_BV = keep_top_p(logits_BV, top_p)
    for logits_V, kept_V in zip(logits_BV, kept_BV, strict=True):
        ascending_V, order_V = logits_V.double().sort(stable=True)
        sum_V = ascending_V.softmax(dim=0).cumsum(dim=0)
        stays_V = kept_V[order_V].isfinite()
        assert not stays_V[sum_V < 1 - top_p - 1e-5].any() and stays_V[sum_V > 1 - top_p + 1e-5][:-1].all()
        assert stays_V[-1]
        assert torch.equal(kept_V[order_V][stays_V], logits_V[order_V][stays_V])


@unhurried
@given(logits_BV=LOGITS, min_p=st.floats(0, 1))
def test_min_p_is_that_of_transformers(transformers: ModuleType, logits_BV: Tensor, min_p: float):
    same(keep_min_p(logits_BV, min_p), transformers.MinPLogitsWarper(min_p)(None, logits_BV))


@unhurried
@given(logits_BV=LOGITS, typical_p=TYPICAL_P)
def test_typical_is_that_of_transformers(transformers: ModuleType, logits_BV: Tensor, typical_p: float):
    same(keep_typical(logits_BV, typical_p), transformers.TypicalLogitsWarper(typical_p)(None, logits_BV))


@unhurried
@given(
    logits_BV=LOGITS,
    temperature=TEMPERATURES,
    top_k=st.integers(0, 15),
    top_p=TOP_P,
    min_p=st.floats(0, 1),
    typical_p=TYPICAL_P,
    penalty=st.floats(0.1, 5),
    bias=st.floats(-5, 5),
    prompt=st.lists(st.integers(0, 30), min_size=1, max_size=5),
)
def test_all_together_are_what_generate_of_transformers_applies(
    transformers: ModuleType,
    gpt2: Any,
    logits_BV: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    typical_p: float,
    penalty: float,
    bias: float,
    prompt: list[int],
):
    tokens = [token % logits_BV.shape[1] for token in prompt]
    config = transformers.GenerationConfig(
        do_sample=True,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=penalty,
        sequence_bias={(0,): bias},
    )
    gpt2._prepare_special_tokens(config, device="cpu")
    tokens_BT = torch.tensor([tokens] * len(logits_BV))
    theirs_BV = gpt2._get_logits_processor(config, input_ids_seq_length=len(tokens))(tokens_BT, logits_BV)
    sampling = Sampling(
        temperature,
        top_k,
        top_p,
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=penalty,
        logit_bias={0: bias},
    )
    same(warp(adjust(logits_BV, sampling, counts_of(tokens_BT.tolist())), sampling), theirs_BV)


def test_penalties_count_what_was_generated_since_the_prompt():
    """`logit - frequency * times - presence * (times > 0)`, as OpenAI's interface defines it; each row has its own."""
    sampling = Sampling(frequency_penalty=0.5, presence_penalty=0.25)
    rows = [TokenCounts({0, 1}), TokenCounts({2})]
    for token in (3, 1, 3):
        rows[0].add(token)
    adjusted_BV = adjust(torch.zeros(2, 4), sampling, rows)
    same(adjusted_BV, torch.tensor([[0.0, -0.75, 0.0, -1.25], [0.0, 0.0, 0.0, 0.0]]))
    rows[0].read_prompt([2])
    same(adjust(torch.zeros(1, 4), sampling, rows[:1]), torch.zeros(1, 4))
    assert rows[0].seen == {0, 1, 2, 3}


@unhurried
@given(
    prompt=st.lists(st.integers(0, 90), max_size=70),
    generated=st.lists(st.integers(0, 200), max_size=90),
    more=st.lists(st.integers(0, 90), max_size=5),
)
@example(prompt=[], generated=[*range(129), 128], more=[200])
@example(prompt=[*range(64)], generated=[64, 64], more=[])
def test_counts_that_grow_are_those_of_a_counter(prompt: list[int], generated: list[int], more: list[int]):
    """Ids of the embedding that are no tokens (100 and above) are counted and change no logit."""
    counts, seen = TokenCounts(prompt), {*prompt, *generated}
    for token in generated:
        counts.add(token)
    assert (counts.seen, counts.generated) == (seen, Counter(generated))
    again = TokenCounts(counts.seen, counts.generated)
    sampling = Sampling(repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.25)
    expected_V = torch.ones(100)
    for token in (token for token in seen if token < 100):
        times = generated.count(token)
        expected_V[token] = 1 / torch.tensor(1.5) - (0.5 * times + 0.25 if times else 0)
    for kept in (counts, again):
        same(adjust(torch.ones(1, 100), sampling, [kept])[0], expected_V)
    counts.read_prompt(more)
    assert (counts.seen, counts.generated) == (seen | {*more}, {})


@unhurried
@given(logits_BV=LOGITS, data=st.data(), temperature=TEMPERATURES, top_p=TOP_P, uniform=st.floats(1e-9, 1))
def test_a_grammar_is_last_and_always_leaves_a_token(
    logits_BV: Tensor, data: st.DataObject, temperature: float, top_p: float, uniform: float
):
    rows, size = logits_BV.shape
    row = st.lists(st.booleans(), min_size=size, max_size=size).filter(any)
    permitted_BV = torch.tensor([data.draw(row) for _ in range(rows)])
    uniform_B = torch.full((rows,), uniform, dtype=torch.float64)
    for sampling in (Sampling(temperature, 2, top_p), Sampling(0)):
        chosen_B = choose(logits_BV, sampling, uniform_B, permitted_BV)
        assert permitted_BV.gather(1, chosen_B[:, None]).all()
    same(chosen_B, logits_BV.masked_fill(~permitted_BV, -math.inf).argmax(-1))
    sampling = Sampling(temperature, 2, top_p)
    warped_BV = warp(logits_BV, sampling)
    for warped_V, permitted_V, logits_V, found_V in zip(
        warped_BV, permitted_BV, logits_BV, probabilities(logits_BV, sampling, permitted_BV), strict=True
    ):
        survives_V = permitted_V & ~warped_V.isneginf()
        if survives_V.any():
            expected_V = warped_V.masked_fill(~permitted_V, -math.inf).softmax(-1)
        else:
            expected_V = probabilities(logits_V.masked_fill(~permitted_V, -math.inf)[None], sampling)[0]
        same(found_V, expected_V)


def test_damaged_logits_are_reported_behind_a_grammar():
    for sampling in (Sampling(0), Sampling()):
        with pytest.raises(UserError, match="not finite"):
            choose(torch.tensor([[math.nan, 1.0]]), sampling, torch.ones(1), torch.tensor([[False, True]]))


def test_a_bias_and_penalties_also_change_the_greedy_choice_and_leave_the_logits_of_the_model():
    logits_BV = torch.tensor([[2.0, 1.9, -1.0]])
    sampling = Sampling(0, repetition_penalty=1.5)
    assert choose(adjust(logits_BV, sampling, [TokenCounts({0})]), sampling, None).item() == 1
    sampling = Sampling(0, logit_bias={2: 4.0})
    assert choose(adjust(logits_BV, sampling, [TokenCounts()]), sampling, None).item() == 2
    same(logits_BV, torch.tensor([[2.0, 1.9, -1.0]]))


def test_a_bias_of_a_token_that_does_not_exist_is_refused():
    with pytest.raises(UserError, match=r"^logit_bias: token id 3: expected 0 to 2, the vocabulary$"):
        adjust(torch.zeros(1, 3), Sampling(logit_bias={3: 1.0}), [TokenCounts()])


@unhurried
@given(LOGITS, TEMPERATURES, TOP_K, TOP_P)
def test_at_least_one_token_is_left_and_the_likeliest_is_among_them(
    logits_BV: Tensor, temperature: float, top_k: int, top_p: float
):
    distribution_BV = probabilities(logits_BV, Sampling(temperature, top_k, top_p))
    torch.testing.assert_close(distribution_BV.sum(-1), torch.ones(len(logits_BV)))
    assert (distribution_BV.amax(-1) == distribution_BV[logits_BV == logits_BV.amax(-1, keepdim=True)].max()).any()


@unhurried
@given(LOGITS, st.floats(0, 1, exclude_min=True))
def test_a_token_of_probability_zero_is_never_drawn(logits_BV: Tensor, uniform: float):
    distribution_BV = probabilities(logits_BV, Sampling(1.0, top_k=2))
    drawn_B = sample(distribution_BV, torch.full((len(logits_BV),), uniform, dtype=torch.float64))
    assert (distribution_BV.gather(1, drawn_B[:, None]) > 0).all()


def test_the_ends_of_the_random_numbers_draw_the_first_and_the_last_token_left():
    distribution_BV = torch.tensor([[0.0, 0.25, 0.75, 0.0]])
    assert sample(distribution_BV, torch.tensor([2.0**-53], dtype=torch.float64)).item() == 1
    assert sample(distribution_BV, torch.tensor([1.0], dtype=torch.float64)).item() == 2


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0, seed=1), Sampling(0.7, 4, 0.9, seed=2), Sampling(1.5, 0, 0.8, seed=3)]
)
def test_what_is_drawn_follows_the_probabilities(sampling: Sampling):
    logits_BV = torch.tensor([[0.1, 1.2, -0.4, 2.0, 0.0, 1.9]])
    draws = 4000
    uniforms = torch.tensor(list(itertools.islice(uniform_numbers(sampling.seed), draws)), dtype=torch.float64)
    drawn = choose(logits_BV.expand(draws, -1), sampling, uniforms)
    expected = probabilities(logits_BV, sampling)[0] * draws
    counts = drawn.bincount(minlength=6)
    assert (counts[expected == 0] == 0).all()
    kept = expected > 0
    chi_square = ((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum().item()
    assert chi_square < 20.5  # the 0.1 % point of chi-square with 5 degrees of freedom


@unhurried
@given(st.integers(0, 2**63 - 1), st.integers(0, 9))
def test_the_random_numbers_of_a_seed_are_those_of_pytorch_and_continue(seed: int, drawn: int):
    generator = torch.Generator().manual_seed(seed)
    expected = [1.0 - float(torch.rand(1, dtype=torch.float64, generator=generator)) for _ in range(14)]
    assert list(itertools.islice(uniform_numbers(seed, drawn), 5)) == expected[drawn : drawn + 5]


def test_random_numbers_are_above_zero_and_may_be_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "rand", lambda *_, **options: torch.zeros(1, dtype=options["dtype"]))
    assert next(uniform_numbers(0)) == 1.0


@unhurried
@given(LOGITS)
def test_temperature_zero_takes_the_likeliest_token(logits_BV: Tensor):
    chosen_B = choose(logits_BV, Sampling(0, top_k=3, top_p=0.5), None)
    assert choose_tokens(logits_BV, Sampling(0), None) == logits_BV.argmax(-1).tolist()
    assert likeliest_in_one_copy(logits_BV) == logits_BV.argmax(-1).tolist()
    same(logits_BV.gather(1, chosen_B[:, None])[:, 0], logits_BV.amax(-1))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rows", [1, 2])
def test_logits_that_are_not_finite_are_reported(value: float, temperature: float, rows: int):
    logits_BV = torch.tensor([[0.0, 1.0], [0.0, value]])[-rows:]
    for choice in (choose, choose_tokens):
        with pytest.raises(UserError, match="not finite"):
            choice(logits_BV, Sampling(temperature), torch.tensor([0.5, 0.5], dtype=torch.float64)[-rows:])
    with pytest.raises(UserError, match="not finite"):
        likeliest_in_one_copy(logits_BV)


def test_the_lowest_temperature_still_gives_probabilities():
    distribution_BV = probabilities(torch.tensor([[1e4, -1e4, 9999.0]]), Sampling(1e-6))
    same(distribution_BV, torch.tensor([[1.0, 0.0, 0.0]]))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e-9),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("typical_p", 0.0),
        ("typical_p", float("nan")),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("frequency_penalty", float("nan")),
        ("presence_penalty", float("inf")),
        ("seed", -1),
        ("seed", 1.5),
        ("top_k", 2.5),
        ("temperature", None),
        ("temperature", "0.8"),
        ("repetition_penalty", 1e-40),
        ("logit_bias", {5: 1e39}),
        ("logit_bias", {"13": 1}),
        ("logit_bias", None),
        ("seed", 2**63),
    ],
)
def test_a_value_that_cannot_be_is_named(field: str, value: float):
    shown = "" if value is None else f"{re.escape(str(value))}: "
    with pytest.raises(UserError, match=rf"^{field}: {shown}expected "):
        Sampling(**{field: value})
