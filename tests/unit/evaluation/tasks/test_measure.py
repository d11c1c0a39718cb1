import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from linnet.evaluation.statistics import poisson_binomial
from linnet.evaluation.tasks.items import TaskItem, baselines, one_hot
from linnet.evaluation.tasks.measure import (
    CHANCE,
    TaskResult,
    TaskSuiteResult,
    compare_scores,
    difference_table,
    score_table,
    verdicts,
)
from linnet.evaluation.tasks.suite import SuiteTask, TaskSuite
from linnet.present.table import MISSING

chances = st.lists(st.integers(0, 64).map(lambda number: number / 64), min_size=1, max_size=8)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(chances)
def test_the_number_of_right_guesses_is_that_of_all_ways_to_guess(each: list[float]):
    expected = np.zeros(len(each) + 1)
    for right in itertools.product((0, 1), repeat=len(each)):
        expected[sum(right)] += math.prod(p if hit else 1 - p for p, hit in zip(each, right, strict=True))
    np.testing.assert_allclose(poisson_binomial(np.array(each)), expected, atol=1e-12)


def _item(gold: int, *choices: str) -> TaskItem:
    return TaskItem.of_choices("Q", choices, one_hot(gold, len(choices)))


ITEMS = [_item(0, "long answer", "no"), _item(1, "yes", "of course"), _item(0, "é", "ab"), _item(0, "a", "bcd", "ef")]


def test_baselines_that_do_not_read_the_question():
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


def test_the_order_of_equally_likely_choices_is_told():
    item = TaskItem.of_choices("Q", ["é", "ab", "abcd"], [0, 0, 1])
    assert item.is_tied("acc", [-2.0, -3.0, -2.0]) and item.is_tied("acc_bytes", [-2.0, -9.0, -4.0])
    assert not item.is_tied("acc", [-2.0, -2.0, -3.0]), "both are wrong"
    assert not item.is_tied("acc_norm", [-2.0, -9.0, -4.0]) and not item.is_tied("mc2", [-2.0, -3.0, -2.0])
    assert not item.is_tied("acc", [math.nan, math.nan, math.nan])
    task = SuiteTask("even", "acc", ITEMS)
    suite = TaskSuite("s", [task], {})
    result = TaskSuiteResult("a", suite, [TaskResult(task, np.ones(4), {}, ties=3, in_windows=1)])
    note = score_table(result).meaning
    assert "equally likely, and the first counts: even 3 of 4 items." in note
    assert "longer than the model's context and was read in windows: even 1 of 4 items." in note
    assert (result.to_dict()["tasks"]["even"]["ties"], result.to_dict()["tasks"]["even"]["in_windows"]) == (3, 1)


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
    words_of_verdicts = [words for _, words in verdicts(results)]
    assert words_of_verdicts == ["above chance", CHANCE, "below chance", "above chance, not above taking the longest"]


def test_more_tasks_need_smaller_p_values():
    coins = _coins(200)
    lucky = _result("lucky", [1.0] * 115 + [0.0] * 85, coins)
    assert verdicts([lucky])[0][1] != CHANCE
    dull = [_result(f"dull{n}", [1.0, 0.0] * 100, coins) for n in range(3)]
    assert verdicts([lucky, *dull])[0][1] == CHANCE


def test_two_models_task_by_task_and_on_average():
    suite = TaskSuite("s", [SuiteTask("one", "acc", ITEMS), SuiteTask("two", "acc", ITEMS)], {"mean": ["one", "two"]})
    first = TaskSuiteResult("a", suite, [_result("one", [1, 0, 1, 0]), _result("two", [1, 1, 1, 1])])
    second = TaskSuiteResult("b", suite, [_result("one", [1, 1, 1, 0]), _result("two", [0, 0, 0, 0])])
    one, two, mean = compare_scores(first, second)
    assert (one.difference.value, two.difference.value, mean.difference.value) == (0.25, -1.0, -0.375)
    assert mean.difference.standard_error == pytest.approx(0.25 / 2)
    assert (one.verdict, two.verdict, mean.verdict) == ("no difference shown", "worse", "no difference shown")
    assert mean.corrected == pytest.approx(2 * stats.t.sf(3, 3))  # three standard errors, of four items
    assert one.corrected == pytest.approx(stats.ttest_rel([1, 1, 1, 0], [1, 0, 1, 0]).pvalue)  # the second of two
    average = first.average("mean").mean
    assert (average.value, average.standard_error) == (0.75, pytest.approx(stats.sem([1, 0, 1, 0]) / 2))


def test_a_model_without_numbers_has_no_score_and_no_difference():
    assert math.isnan(ITEMS[0].score("acc", [math.nan, -1.0])), "not the first choice for want of a better one"
    suite = TaskSuite("s", [SuiteTask("one", "acc", ITEMS), SuiteTask("two", "acc", ITEMS)], {"mean": ["one", "two"]})
    fine = TaskSuiteResult("a", suite, [_result("one", [1, 0, 1, 0]), _result("two", [1, 1, 1, 1])])
    broken = TaskSuiteResult("b", suite, [_result("one", [math.nan, 0, 1, 0]), _result("two", [1, 1, 1, 0])])
    one, two, mean = compare_scores(fine, broken)
    assert [row.verdict for row in (one, two, mean)] == ["no score of one", "no difference shown", "no score of one"]
    assert (one.corrected, mean.corrected, two.corrected) == (None, None, two.difference.p_value())
    assert [words for _, words in verdicts(broken.tasks)] == [
        "no score: of 1 of 4 items the model gave no number",
        CHANCE,
    ]
    assert json.loads(json.dumps(broken.to_dict(), allow_nan=False))["averages"]["mean"]["mean"] is None
    assert list(score_table(broken).rows[-1][2:4]) == [MISSING, MISSING]
    assert difference_table("a", "a", compare_scores(fine, fine)).rows[1] == (
        "two",
        *["0.0"] * 3,
        "1.000",
        "no difference shown",
    )


def test_one_item_shows_no_difference():
    suite = TaskSuite("s", [SuiteTask("one", "mc2", ITEMS[:1])], {})
    first, second = (TaskSuiteResult("a", suite, [_result("one", [value], ITEMS[:1])]) for value in (0.9, 0.1))
    (one,) = compare_scores(first, second)
    assert one.corrected is None and one.verdict == "no difference shown"
    assert verdicts(first.tasks) == [(None, CHANCE)]
