"""Items that the harness logged, of its own tasks over rows at hand, are those that the suites read from files."""

import functools
from typing import Any

import numpy as np
import pytest
from asked_by_harness import harness_task
from set_rows import ROWS, YAML_FILES

from linnet.evaluation.tasks.harness_items import result_of_harness
from linnet.evaluation.tasks.measure import SuiteResult
from linnet.evaluation.tasks.row_files import item_of
from linnet.evaluation.tasks.suite import suite_spec
from linnet.evaluation.tasks.verdict import UNKNOWN, verdicts

pytest.importorskip("lm_eval", reason="the extra tasks is not installed")

TASKS = {task.name: task for name in ("pldr", "merino") for task in suite_spec(name).tasks}
OWN_NAMES = {"rte": "sglue_rte", "siqa": "social_iqa"}


def _found(*tasks: Any) -> dict[str, Any]:
    """What the harness finds of a model that likes short texts."""
    import lm_eval
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    class Short(LM):
        def loglikelihood(self, requests, disable_tqdm=False):
            return [(-float(len("".join(request.args))), False) for request in requests]

        def loglikelihood_rolling(self, requests, disable_tqdm=False):
            return [-3.0 for _ in requests]

        def generate_until(self, requests, disable_tqdm=False):
            return ["no" for _ in requests]

    manager = TaskManager(include_defaults=False)
    return lm_eval.simple_evaluate(
        Short(), tasks=list(tasks), bootstrap_iters=0, verbosity="ERROR", task_manager=manager
    )


@functools.cache
def _result(name: str) -> SuiteResult:
    return result_of_harness("m", _found(harness_task(*YAML_FILES[name], ROWS[name])))


@pytest.mark.parametrize("name", TASKS)
def test_items_chance_and_baselines_are_those_of_the_suites(name: str):
    (found,) = _result(name).tasks
    spec = TASKS[name]
    expected = [item_of(name, spec.context, row, "here", spec.choices) for row in ROWS[name]]
    assert found.task.name == OWN_NAMES.get(name, name)
    assert [item.labels for item in found.task.items] == [item.labels for item in expected]
    assert [item.choices for item in found.task.items] == [
        tuple(choice.strip() for choice in item.choices) for item in expected
    ]
    score = "mc2" if name == "truthfulqa_mc2" else "acc"
    values = [item.score(score, [-float(len("".join(pair))) for pair in item.pairs]) for item in expected]
    np.testing.assert_allclose(found.values_N, values)
    assert found.chance == pytest.approx(np.mean([item.chance for item in expected]))


def test_what_is_no_mean_over_items_is_left_to_the_harness():
    task = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "metric_list": [{"metric": "bits_per_byte"}]}
    rolling = harness_task("boolq_rolling", "test", ROWS["boolq"], own={**task, "doc_to_target": "{{passage}}"})
    assert result_of_harness("m", _found(rolling)).tasks == []


def test_answers_without_choices_have_an_error_but_no_chance():
    metric = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
    task = {"output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "{{['no', 'yes'][label]}}"}
    asked = harness_task("boolq_said", "test", ROWS["boolq"], own={**task, "metric_list": [metric]})
    (found,) = result_of_harness("m", _found(asked)).tasks
    assert (found.task.score, found.values_N.tolist()) == ("exact_match", [1.0, 0.0])
    assert found.mean.standard_error == 0.5 and found.chance is None and found.baselines == {}
    assert verdicts([found]) == [(None, UNKNOWN)]
