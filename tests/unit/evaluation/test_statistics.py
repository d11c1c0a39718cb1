import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from linnet.evaluation.statistics import (
    Estimate,
    accuracy,
    beats_chance,
    bootstrap_interval,
    exact_p_value,
    holm_correction,
    mean,
    mean_of,
    p_value_against_chance,
    paired_difference,
    ratio,
    student_cdf,
    student_quantile,
)

NUMBERS = st.floats(-100, 100)
SCORES = st.lists(NUMBERS, min_size=2, max_size=30)
P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def _documents(count, seed=0):
    random = np.random.default_rng(seed)
    bytes_N = random.integers(50, 2000, count)
    return bytes_N * random.normal(2, 0.3, count), bytes_N


def test_a_ratio_by_hand():
    """Residuals of 1/2: 1 - 1/2, 0 - 1/2 and 2 - 2; squares 1/4, 1/4, 0; of three documents over a total of 6."""
    found = ratio([1, 0, 2], [1, 1, 4])
    assert found.value == 0.5
    assert found.standard_error == pytest.approx(math.sqrt(3 / 2 * 0.5) / 6)


def test_documents_of_different_lengths_and_one_ratio_have_no_error():
    _, bytes_N = _documents(20)
    assert ratio(1.7 * bytes_N, bytes_N).standard_error == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("count", [40, 400])
def test_the_error_of_a_ratio_is_that_of_leaving_one_document_out(count):
    above_N, below_N = _documents(count)
    left_out_N = (above_N.sum() - above_N) / (below_N.sum() - below_N)
    jackknife = math.sqrt((count - 1) * np.var(left_out_N))
    assert ratio(above_N, below_N).standard_error == pytest.approx(jackknife, rel=3 / count)


def test_the_error_of_a_ratio_is_the_spread_of_samples():
    """1,000 samples of 60 documents each: what they spread by is what one of them says, on average."""
    found = [ratio(*_documents(60, seed)) for seed in range(1000)]
    spread = np.std([one.value for one in found])
    assert np.mean([one.standard_error for one in found]) == pytest.approx(spread, rel=0.05)
    held = np.mean([low <= 2 <= high for low, high in (one.interval() for one in found)])
    assert 0.93 < held < 0.97


@given(SCORES)
def test_the_mean_agrees_with_scipy(values):
    found, low_high = mean(values), mean(values).interval()
    assert found.value == pytest.approx(np.mean(values), abs=1e-9)
    assert found.standard_error == pytest.approx(stats.sem(values), rel=1e-6, abs=1e-9)
    if found.standard_error > 1e-6:
        expected = stats.t.interval(0.95, len(values) - 1, found.value, found.standard_error)
        assert low_high == pytest.approx(expected, rel=1e-9, abs=1e-9)
        assert found.p_value(1.0) == pytest.approx(stats.ttest_1samp(values, 1.0).pvalue, rel=1e-5, abs=1e-12)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=20))
def test_the_paired_difference_agrees_with_scipy(pairs):
    first, second = zip(*pairs, strict=True)
    found = paired_difference(first, second)
    assert found.value == pytest.approx(np.mean(second) - np.mean(first), abs=1e-9)
    if found.standard_error > 1e-6:
        assert found.p_value() == pytest.approx(stats.ttest_rel(second, first).pvalue, rel=1e-5, abs=1e-12)


def test_a_paired_difference_has_a_smaller_error_than_its_parts():
    above_N, below_N = _documents(50)
    harder_N = above_N + 0.01 * below_N + np.random.default_rng(1).normal(0, 1, 50)
    found = paired_difference(above_N, harder_N, below_N)
    assert found.value == pytest.approx(ratio(harder_N, below_N).value - ratio(above_N, below_N).value)
    assert found.standard_error < ratio(above_N, below_N).standard_error / 20
    assert found.p_value() < 1e-6


def test_one_document_has_no_error():
    one = ratio([3.0], [2.0])
    assert one == Estimate(1.5, None, 1)
    assert one.interval() is None and one.p_value() is None and bootstrap_interval([3.0], [2.0]) is None
    assert accuracy(1, 1).standard_error is None


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # infinity less infinity
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_have_no_interval_and_no_p_value(wrong: float):
    broken = mean([0.0, wrong, 1.0])
    average = mean_of([broken, mean([0.0, 1.0, 1.0])])
    for found in (broken, average):
        assert not math.isfinite(found.value) and found.interval() is None and found.p_value() is None


def test_scores_without_spread_differ_or_do_not():
    assert mean([2.0, 2.0, 2.0]).p_value(2.0) == 1
    assert mean([2.0, 2.0, 2.0]).p_value(1.0) == 0


def test_a_bootstrap_is_near_students_interval_and_follows_its_seed():
    above_N, below_N = _documents(300)
    found = bootstrap_interval(above_N, below_N, 4000, seed=1)
    assert found == pytest.approx(
        ratio(above_N, below_N).interval(), abs=0.1 * ratio(above_N, below_N).standard_error * 4
    )
    assert found == bootstrap_interval(above_N, below_N, 4000, seed=1) != bootstrap_interval(above_N, below_N, 4000)
    narrow = bootstrap_interval(above_N, below_N, level=0.5)
    assert found[0] < narrow[0] < narrow[1] < found[1]


def test_resamples_without_bytes_are_left_out():
    low, high = bootstrap_interval([0.0, 2.0], [0.0, 1.0], 100)
    assert (low, high) == (2.0, 2.0)


def test_holm_by_hand():
    """Holm's procedure: 0.01 times 4, 0.02 times 3, then never less than before."""
    assert holm_correction([0.04, 0.01, 0.02, 0.9]) == pytest.approx([0.08, 0.04, 0.06, 0.9])
    assert holm_correction([0.03, 0.03]) == pytest.approx([0.06, 0.06])


@given(P_VALUES)
def test_holm_rejects_what_its_procedure_rejects(p_values):
    adjusted = holm_correction(p_values)
    order = sorted(range(len(p_values)), key=lambda number: p_values[number])
    going_on, rejected = True, set()
    for rank, number in enumerate(order):
        going_on = going_on and p_values[number] * (len(p_values) - rank) < 0.05
        rejected |= {number} if going_on else set()
    assert {number for number, value in enumerate(adjusted) if value < 0.05} == rejected
    assert all(after >= before and after <= 1 for before, after in zip(p_values, adjusted, strict=True))
    assert [adjusted[number] for number in order] == sorted(adjusted)


@given(st.integers(1, 200), st.data())
def test_the_accuracy_is_the_mean_of_ones_and_zeros(items, data):
    right = data.draw(st.integers(0, items))
    found, plain = accuracy(right, items), mean([1.0] * right + [0.0] * (items - right))
    assert found.value == pytest.approx(plain.value)
    if items > 1:
        assert found.standard_error == pytest.approx(plain.standard_error, abs=1e-12)


@given(st.integers(1, 100), st.floats(0.05, 0.95), st.data())
def test_guessing_with_one_chance_is_binomial(items, chance, data):
    right = data.draw(st.integers(0, items))
    tails = stats.binom.cdf(right, items, chance), stats.binom.sf(right - 1, items, chance)
    assert exact_p_value(right, [chance] * items) == pytest.approx(min(1, 2 * min(tails)), rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("right", range(4))
def test_guessing_with_different_chances_by_hand(right):
    """Every outcome of three coins."""
    chances = [0.5, 0.25, 0.2]
    weights = [0.0] * 4
    for outcome in range(8):
        heads = [outcome >> item & 1 for item in range(3)]
        weights[sum(heads)] += math.prod(c if head else 1 - c for c, head in zip(chances, heads, strict=True))
    expected = min(1, 2 * min(sum(weights[: right + 1]), sum(weights[right:])))
    assert exact_p_value(right, chances) == pytest.approx(expected)


def test_right_answers_are_tested_exactly_and_other_scores_by_their_differences():
    values, quarter = np.array([1.0] * 14 + [0.0] * 26), np.full(40, 0.25)
    both = 2 * min(stats.binom.cdf(14, 40, 0.25), stats.binom.sf(13, 40, 0.25))
    assert p_value_against_chance(values, quarter) == pytest.approx(both, rel=1e-9)
    assert p_value_against_chance(values[12:22], quarter[:10]) == 1.0  # 2 of 10 is what guessing gives
    shares, chances = np.array([0.5, 0.75, 0.25, 1.0, 0.625]), np.array([0.5, 0.25, 0.25, 0.5, 0.5])
    assert p_value_against_chance(shares, chances) == pytest.approx(stats.ttest_rel(shares, chances).pvalue, rel=1e-9)
    assert p_value_against_chance(shares[1:2], chances[1:2]) is None


def test_the_mean_of_two_samples_agrees_with_welch():
    """Half of a sum has the degrees of freedom of the difference that Welch tests."""
    random = np.random.default_rng(3)
    first, second = random.normal(1, 1, 9), random.normal(-1.2, 3, 30)
    found = mean_of([mean(first), mean(second)])
    theirs = stats.ttest_ind(first, -second, equal_var=False)
    assert found.value == pytest.approx((first.mean() + second.mean()) / 2)
    assert found.standard_error == pytest.approx(math.hypot(stats.sem(first), stats.sem(second)) / 2)
    assert found.degrees == int(theirs.df) and found.count == 39
    assert found.p_value() == pytest.approx(theirs.pvalue, rel=0.02)
    assert mean_of([mean([1.0]), mean(first)]).standard_error is None
    assert mean_of([mean([1.0, 1.0]), mean([1.0, 1.0])]).p_value(0.5) == 0


def test_the_mean_of_a_few_samples_has_the_degrees_that_rounding_took():
    """One sample's are its own, and those of the one that has an error are never none."""
    for number in range(1, 200):
        one = Estimate(0.5, number / 997, 12)
        assert mean_of([one]).degrees == 11
        few = mean_of([Estimate(0.5, number / 997, 2), Estimate(0.5, 0.0, 2)])
        assert few.degrees == 1 and few.p_value() != 0


def test_unknown_p_values_are_not_counted_in_the_correction():
    assert holm_correction([0.01, None, 0.04, math.nan]) == [pytest.approx(0.02), None, pytest.approx(0.04), None]


@pytest.mark.parametrize(("right", "chance", "expected"), [(0, 0.0, 1), (1, 0.0, 0), (3, 1.0, 1), (2, 1.0, 0)])
def test_guessing_that_is_sure(right, chance, expected):
    assert exact_p_value(right, [chance] * 3) == expected


def test_the_verdict():
    """250 of 1,000 four-way items are chance, 290 are not; 210 are no better."""
    chances = [0.25] * 1000
    verdicts = [beats_chance(exact_p_value(right, chances), right / 1000, 0.25) for right in (250, 270, 290, 210)]
    assert verdicts == [False, False, True, False]
    assert exact_p_value(210, chances) < 0.05 and not beats_chance(None, 1.0, 0.25)


DEGREES = st.one_of(st.integers(1, 60), st.sampled_from([999, 12_345, 1_000_000]))


@given(st.floats(-60, 60), DEGREES)
def test_probabilities_agree_with_scipy(t, degrees):
    assert student_cdf(t, degrees) == pytest.approx(stats.t.cdf(t, degrees), rel=1e-8, abs=1e-14)


@given(st.floats(0.0005, 0.9995), DEGREES)
def test_quantiles_agree_with_scipy(share, degrees):
    assert student_quantile(share, degrees) == pytest.approx(stats.t.ppf(share, degrees), rel=1e-7, abs=1e-9)


def test_values_of_tables():
    """Of one degree of freedom it is Cauchy's distribution; 12.706 and 2.228 stand in every table."""
    assert student_cdf(1.0, 1) == pytest.approx(0.75) and student_cdf(0.0, 7) == 0.5
    assert (round(student_quantile(0.975, 1), 3), round(student_quantile(0.975, 10), 3)) == (12.706, 2.228)


def test_the_ends():
    assert (student_cdf(math.inf, 3), student_cdf(-math.inf, 3), student_cdf(-1e200, 3)) == (1, 0, 0)
    assert math.isnan(student_cdf(math.nan, 3))
