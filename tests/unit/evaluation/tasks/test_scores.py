import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from linnet.evaluation.statistics import holm, mean, right_by_chance
from linnet.evaluation.tasks.baselines import baselines
from linnet.evaluation.tasks.items import TaskItem, one_hot
from linnet.evaluation.tasks.measure import SuiteResult, TaskResult, mean_of
from linnet.evaluation.tasks.scores import chance_probability, paired_difference
from linnet.evaluation.tasks.suite import Suite, SuiteTask
from linnet.evaluation.tasks.verdict import CHANCE, compared, verdicts

chances = st.lists(st.integers(0, 64).map(lambda number: number / 64), min_size=1, max_size=8)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(chances)
def test_the_number_of_right_guesses_is_that_of_all_ways_to_guess(each: list[float]):
    expected = np.zeros(len(each) + 1)
    for right in itertools.product((0, 1), repeat=len(each)):
        expected[sum(right)] += math.prod(p if hit else 1 - p for p, hit in zip(each, right, strict=True))
    np.testing.assert_allclose(right_by_chance(np.array(each)), expected, atol=1e-12)


def test_right_answers_are_tested_exactly():
    values, quarter = np.array([1.0] * 14 + [0.0] * 26), np.full(40, 0.25)
    both = 2 * min(stats.binom.cdf(14, 40, 0.25), stats.binom.sf(13, 40, 0.25))
    assert chance_probability(values, quarter) == pytest.approx(both, rel=1e-9)
    assert chance_probability(values[12:22], quarter[:10]) == 1.0  # 2 of 10 is what guessing gives


def test_other_values_are_tested_by_their_differences():
    values = np.array([0.5, 0.75, 0.25, 1.0, 0.625])
    chance = np.array([0.5, 0.25, 0.25, 0.5, 0.5])
    z = (values - chance).mean() / stats.sem(values - chance)
    assert chance_probability(values, chance) == pytest.approx(2 * stats.norm.sf(abs(z)), rel=1e-9)


def test_errors_and_differences_by_their_definitions():
    first, second = np.array([1.0, 0.0, 1.0, 1.0, 0.0, 1.0]), np.array([0.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    assert mean(first).standard_error == pytest.approx(stats.sem(first))
    found = paired_difference(first, second)
    assert found.value == pytest.approx(1 / 6)
    assert found.standard_error == pytest.approx(stats.sem(first - second))
    assert found.interval == pytest.approx(stats.norm.interval(0.95, 1 / 6, stats.sem(first - second)))
    assert found.probability == pytest.approx(2 * stats.norm.sf(found.value / stats.sem(first - second)))


def test_what_cannot_be_told():
    one = np.array([1.0])
    assert mean(one).standard_error is None and paired_difference(one, 0 * one).interval is None
    assert paired_difference(one, 0 * one).probability == 1.0
    assert paired_difference(np.ones(5), np.ones(5)).probability == 1.0
    assert paired_difference(np.ones(5), np.zeros(5)).probability == 0.0


def test_holm_by_its_definition():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


def _item(gold: int, *choices: str) -> TaskItem:
    return TaskItem.of_choices("Q", choices, one_hot(gold, len(choices)))


ITEMS = [_item(0, "long answer", "no"), _item(1, "yes", "of course"), _item(0, "é", "ab"), _item(0, "a", "bcd", "ef")]


def test_plain_ways_of_choosing():
    assert baselines(ITEMS) == {"longest": 3 / 4, "shortest": 1 / 2, "letter": 3 / 4}
    several = [TaskItem.of_choices("Q", ["aa", "b", "c"], [0, 1, 1]), TaskItem.of_choices("Q", ["a", "bb"], [1, 0])]
    assert baselines(several) == {"longest": 0.0, "shortest": 1.0, "letter": 0.5}


def test_the_scores_of_an_item():
    item = TaskItem.of_choices("Q", ["é", "ab", "abcd"], [0, 0, 1])
    assert item.chance == pytest.approx(1 / 3)
    found = [-3.0, -4.0, -5.0]  # by character -3, -2, -1.25; by byte -1.5, -2, -1.25
    assert [item.score(name, found) for name in ("acc", "acc_norm", "acc_bytes")] == [0.0, 1.0, 1.0]
    by_byte = [-2.2, -4.0, -5.0]  # by character -2.2, -2, -1.25; by byte -1.1
    assert [item.score(name, by_byte) for name in ("acc", "acc_norm", "acc_bytes")] == [0.0, 1.0, 0.0]
    mass = TaskItem.of_choices("Q", ["a", "b", "c"], [1, 0, 1]).score(
        "mc2", [math.log(p) - 2000 for p in (0.1, 0.3, 0.2)]
    )
    assert mass == pytest.approx(0.5)  # though no float holds the probabilities themselves


def _result(name: str, values: list[float], items: list[TaskItem] = ITEMS) -> TaskResult:
    return TaskResult(SuiteTask(name, "acc", items), np.array(values), {})


def _coins(count: int) -> list[TaskItem]:
    """Half of them right at the first place, the longer one right in three of four."""
    return [_item(number % 2, "a" * (1 + 2 * (number % 4 != 1)), "bb") for number in range(count)]


def test_verdicts_in_words():
    coins = _coins(200)
    results = [
        _result("good", [1.0] * 180 + [0.0] * 20, coins),
        _result("chance", [1.0, 0.0] * 100, coins),
        _result("bad", [0.0] * 180 + [1.0] * 20, coins),
        _result("plain", [1.0] * 130 + [0.0] * 70, coins),
    ]
    assert results[0].baselines["longest"] == 0.75
    said = [words for _, words in verdicts(results)]
    assert said == ["above chance", CHANCE, "below chance", "above chance, not above taking the longest"]


def test_the_more_tasks_the_more_it_takes():
    coins = _coins(200)
    lucky = _result("lucky", [1.0] * 115 + [0.0] * 85, coins)
    assert verdicts([lucky])[0][1] != CHANCE
    dull = [_result(f"dull{n}", [1.0, 0.0] * 100, coins) for n in range(3)]
    assert verdicts([lucky, *dull])[0][1] == CHANCE


def test_two_models_task_by_task_and_on_average():
    suite = Suite("s", [SuiteTask("one", "acc", ITEMS), SuiteTask("two", "acc", ITEMS)], {"mean": ["one", "two"]})
    first = SuiteResult("a", suite, [_result("one", [1, 0, 1, 0]), _result("two", [1, 1, 1, 1])])
    second = SuiteResult("b", suite, [_result("one", [1, 1, 1, 0]), _result("two", [0, 0, 0, 0])])
    one, two, mean = compared(first, second)
    assert (one.difference.value, two.difference.value, mean.difference.value) == (0.25, -1.0, -0.375)
    assert mean.difference.standard_error == pytest.approx(0.25 / 2)
    assert (one.verdict, two.verdict, mean.verdict) == ("no difference shown", "worse", "worse")
    assert one.corrected == pytest.approx(one.difference.probability)  # the second of two
    assert mean_of(first.tasks) == (0.75, pytest.approx(stats.sem([1, 0, 1, 0]) / 2))
