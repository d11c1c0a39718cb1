import pytest
from protocol_models import save_models, save_questions

from linnet.core.errors import UserError
from linnet.experiments.measures import CacheTimes, Measures, OtherModel, ScoreMeasure
from linnet.experiments.protocol import run_protocol
from linnet.experiments.results import read_rows
from linnet.experiments.suite import Suite
from linnet.inspection.text_model import Target, inspect_model
from linnet.interop.contestants import contestants

SCORES = ScoreMeasure(suite="pldr", columns={"PIQA": "piqa"})


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return save_models(tmp_path_factory.mktemp("run"))


def protocol(**sections):
    return Suite(name="t", source="s", measures=Measures(**sections))


def test_inspections_are_those_of_the_verb(models):
    suite = protocol(inspections={"caches": {"prompt": "a", "tokens": 3}})
    found = run_protocol(suite, list(models.values()), contestants)
    name = str(models["plga"])
    assert list(found.inspected) == [name], "attention deduces nothing"
    alone = inspect_model("caches", Target(name), prompt="a", tokens=3)
    assert found.inspected[name]["caches"].to_dict() == alone.to_dict()
    assert found.tables()[0].title == f"{name}: Text" and found.to_dict()["scores"] is None


def test_questions_are_limited_and_belong_to_scores(models, tmp_path):
    files = save_questions(tmp_path / "tasks")
    found = run_protocol(protocol(scores=SCORES), [models["attention"]], contestants, files, limit=1)
    assert [len(task.task.items) for task in found.scores[0].own.tasks] == [1] * 8
    assert found.to_dict()["inspections"] == {}
    inspected = protocol(inspections={"caches": {"tokens": 1}})
    with pytest.raises(UserError, match=r"^files: .*asks no questions"):
        run_protocol(inspected, [models["plga"]], contestants, files)
    with pytest.raises(UserError, match=r"^limit: 3: .*asks no questions"):
        run_protocol(inspected, [models["plga"]], contestants, limit=3)
    with pytest.raises(UserError, match=r"^suite: pldr: `files` is missing"):
        run_protocol(protocol(scores=SCORES), [models["plga"]], contestants)


def test_names_of_models_are_unique(models):
    name = str(models["plga"])
    timed = protocol(cache_times=CacheTimes(tokens=1, against=[OtherModel(name=name, folder="x")]))
    with pytest.raises(UserError, match=r"^cache_times\.against: .* has that name too"):
        run_protocol(timed, [name], contestants)


def test_an_interrupted_call_continues_from_its_rows(models, tmp_path, monkeypatch):
    files, name = save_questions(tmp_path / "tasks"), str(models["plga"])
    scores = SCORES.model_copy(update={"calibrations": ["identity"], "without_kv_cache": True})
    inspected = {"caches": {"prompt": "a", "tokens": 3}}
    suite = protocol(scores=scores, inspections=inspected, cache_times=CacheTimes(tokens=2))
    first = run_protocol(suite, [name], contestants, files, out=tmp_path / "out")
    rows = read_rows(tmp_path / "out" / "results.jsonl")
    assert {(row.run, row.measure) for row in rows} == {
        (name, "inspection caches"),
        *((name, f"scores, {variant}") for variant in ("own calibration", "identity", "no KV-cache")),
        ("all models", "cache_times"),
    }
    for measuring in ("inspect_model", "measure_suite", "time_in_turn"):
        monkeypatch.setattr(f"linnet.experiments.protocol.{measuring}", None)
    again = run_protocol(suite, [name], contestants, files, out=tmp_path / "out")
    assert again.to_dict() == first.to_dict()
    cells = [[[*map(list, table.rows)] for table in result.tables()] for result in (first, again)]
    assert cells[0] == cells[1]
    other = protocol(scores=scores.model_copy(update={"seed": 1}))
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        run_protocol(other, [name], contestants, files, out=tmp_path / "out")
