"""The rows of a table of scores are what `linnet evaluate` finds of each."""

import pytest
import torch
from protocol_models import save_models, save_questions

from linnet.evaluation.tasks.measure import evaluate_suite
from linnet.evaluation.tasks.suite import load_tasks
from linnet.experiments.measures import ScoreMeasure
from linnet.experiments.protocol import ProtocolResult, measure_scores, scores_table
from linnet.experiments.suite import Suite
from linnet.inference.language_model import load

COLUMNS = {"ARC-e": "arc_easy", "TruthfulQA": "truthfulqa_mc2", "Avg-2": "Avg-2"}
SPEC = ScoreMeasure(suite="pldr", columns=COLUMNS, calibrations=["identity", "random"], seed=3, without_kv_cache=True)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scores")
    return save_models(folder), save_questions(folder / "tasks")


@pytest.fixture(scope="module")
def found(places):
    models, files = places
    return measure_scores({name: load(path) for name, path in models.items()}, SPEC, load_tasks("pldr", files))


def result_of(found):
    suite = Suite(name="t", measures={"scores": SPEC.model_dump()})
    return ProtocolResult(suite, found, {}, [], torch.device("cpu"))


def scores_of(result):
    return {task.task.name: task.mean.value for task in result.tasks}


def test_each_row_equals_the_result_of_evaluate(found, places):
    models, files = places
    plga = next(one for one in found if one.own.model == "plga")
    (own,) = evaluate_suite([models["plga"]], "pldr", files).results
    assert scores_of(plga.own) == scores_of(own)
    for result, operator in zip(plga.with_calibration, SPEC.calibrations, strict=True):
        (other,) = evaluate_suite([models["plga"]], "pldr", files, calibration=operator, seed=SPEC.seed).results
        assert scores_of(result) == scores_of(other)
        assert scores_of(result) != scores_of(own), "this model depends on its operator"


def test_the_kv_cache_does_not_change_scores(found):
    for one in found:
        assert one.without_cache is not None and one.cache_effect < 1e-5
    assert not next(one for one in found if one.own.model == "attention").with_calibration


def test_models_are_rows_followed_by_their_variants(found):
    table = scores_table(found, SPEC)
    assert table.columns == ("model", *COLUMNS)
    names = ["chance", "attention", "  no KV-cache", "plga", "  identity", "  random", "  no KV-cache"]
    assert [row[0] for row in table.rows] == names
    plga = next(one for one in found if one.own.model == "plga").own
    assert table.rows[3][3].startswith(f"{100 * plga.average('Avg-2').mean.value:.1f}\n±")
    assert table.rows[3][2].startswith(f"{100 * scores_of(plga)['truthfulqa_mc2']:.1f}\n±")
    assert table.rows[0][2] == "66.7" and "changes a score by at most" in table.meaning


def test_a_task_without_a_file_has_a_dash(places, tmp_path):
    models, files = places
    (tmp_path / "arc_easy.jsonl").write_text((files / "arc_easy.jsonl").read_text())
    plain = SPEC.model_copy(update={"calibrations": [], "without_kv_cache": False})
    found = measure_scores({"a": load(models["attention"])}, plain, load_tasks("pldr", tmp_path))
    table = scores_table(found, plain)
    chance, own = table.rows
    assert own[2:] == ["–", "–"] and chance[2:] == ["–", "–"] and own[1] != "–"
    assert "KV" not in table.meaning and "in its place" not in table.meaning
    assert result_of(found).to_dict()["scores"]["models"][0]["without_kv_cache"] is None


def test_differences_are_from_the_first_model_and_from_the_own_calibration(found):
    titles = [table.title for table in result_of(found).tables()][1:]
    assert titles == ["plga against attention", "plga, identity against plga", "plga, random against plga"]
    told = result_of(found).to_dict()["scores"]["differences"]
    assert [(row["first"], row["second"]) for row in told[1:]] == [("plga", "plga, identity"), ("plga", "plga, random")]
