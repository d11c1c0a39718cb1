"""Items that the harness logged, of its own tasks over rows at hand, are those that the suites read from files."""

import copy
import functools
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from asked_by_harness import harness_task
from set_rows import ROWS, YAML_FILES

from linnet.evaluation.tasks.harness_run import results_of_harness
from linnet.evaluation.tasks.items import parse_item
from linnet.evaluation.tasks.measure import NO_CHANCE_LEVEL, SuiteReport, TaskSuiteResult, verdicts
from linnet.evaluation.tasks.suite import suite_spec
from linnet.present.table import MISSING

pytest.importorskip("lm_eval", reason="the extra tasks is not installed")

TASKS = {task.name: task for name in ("pldr", "merino") for task in suite_spec(name).tasks}
OWN_NAMES = {"rte": "sglue_rte", "siqa": "social_iqa"}


def _found(*tasks: Any, scored: Callable[[str], float] = lambda text: -float(len(text))) -> dict[str, Any]:
    """What the harness finds of a model that finds texts so likely: the shorter the more."""
    import lm_eval
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    class Short(LM):
        def loglikelihood(self, requests, disable_tqdm=False):
            return [(scored("".join(request.args)), False) for request in requests]

        def loglikelihood_rolling(self, requests, disable_tqdm=False):
            return [-3.0 for _ in requests]

        def generate_until(self, requests, disable_tqdm=False):
            return ["no" for _ in requests]

    manager = TaskManager(include_defaults=False)
    return lm_eval.simple_evaluate(
        Short(), tasks=list(tasks), bootstrap_iters=0, verbosity="ERROR", task_manager=manager
    )


def _only(found: dict[str, Any]) -> TaskSuiteResult:
    (result,) = results_of_harness(["m"], [found])
    return result


@functools.cache
def _result(name: str) -> TaskSuiteResult:
    return _only(_found(harness_task(*YAML_FILES[name], ROWS[name])))


@pytest.mark.parametrize("name", TASKS)
def test_items_chance_and_baselines_are_those_of_the_suites(name: str):
    (found,) = _result(name).tasks
    spec = TASKS[name]
    expected = [parse_item(name, spec.context, row, "here", spec.choices) for row in ROWS[name]]
    assert found.task.name == OWN_NAMES.get(name, name)
    assert [item.labels for item in found.task.items] == [item.labels for item in expected]
    assert [item.choices for item in found.task.items] == [
        tuple(choice.strip() for choice in item.choices) for item in expected
    ]
    score = "mc2" if name == "truthfulqa_mc2" else "acc"
    values = [item.score(score, [-float(len("".join(pair))) for pair in item.pairs]) for item in expected]
    np.testing.assert_allclose(found.values_N, values)
    assert found.chance == pytest.approx(np.mean([item.chance for item in expected]))


def test_measures_that_are_not_means_over_items_are_left_to_the_harness():
    task = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "metric_list": [{"metric": "bits_per_byte"}]}
    rolling = harness_task("boolq_rolling", "test", ROWS["boolq"], own={**task, "doc_to_target": "{{passage}}"})
    assert _only(_found(rolling)).tasks == []


def test_answers_without_choices_have_an_error_but_no_chance():
    metric = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
    task = {"output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "{{['no', 'yes'][label]}}"}
    asked = harness_task("boolq_said", "test", ROWS["boolq"], own={**task, "metric_list": [metric]})
    (found,) = _only(_found(asked)).tasks
    assert (found.task.score, found.values_N.tolist()) == ("exact_match", [1.0, 0.0])
    assert found.mean.standard_error == 0.5 and found.chance is None and found.baselines == {}
    assert verdicts([found]) == [(None, NO_CHANCE_LEVEL)]


def test_a_model_without_numbers_is_reported_but_not_compared():
    def asked() -> Any:
        return harness_task(*YAML_FILES["truthfulqa_mc2"], ROWS["truthfulqa_mc2"] * 2)

    fine, broken = _found(asked()), _found(asked(), scored=lambda text: math.nan)
    for models in ([fine, broken], [broken, fine]):
        findings = SuiteReport(results_of_harness(["a", "b"], models))
        (row,) = findings.to_dict()["differences"][0]["tasks"].values()
        assert (row["difference"], row["p_value"], row["verdict"]) == (None, None, "no score of one")
        assert json.loads(json.dumps(findings.to_dict(), allow_nan=False))
        assert findings.tables()[2].rows[0][1:5] == (MISSING,) * 4
    first, second = (result.tasks[0] for result in results_of_harness(["a", "b"], [fine, broken]))
    assert first.task is second.task and first.task.score == "acc" and first.chance == pytest.approx(2 / 3)
    assert [verdicts([one])[0][1] for one in (first, second)] == [
        "above chance, not above taking the shortest",
        "no score: of 2 of 2 items the model gave no number",
    ]


def test_the_measure_and_the_right_choices_are_those_of_all_models():
    """Of one of them whole scores, of the other shares: what is right is not to be guessed from the first alone."""
    task = harness_task(*YAML_FILES["arc_easy"], ROWS["arc_easy"])
    fine = _found(task)
    partly = copy.deepcopy(fine)
    for sample in partly["samples"]["arc_easy"]:
        sample["acc"] = math.nan
    partly["results"]["arc_easy"]["acc,none"] = math.nan
    for models in ([fine, partly], [partly, fine]):
        first, second = (result.tasks[0] for result in results_of_harness(["a", "b"], models))
        assert (first.task.score, second.task.score) == ("acc", "acc") and first.task is second.task
        assert first.chance == second.chance == _only(fine).tasks[0].chance
