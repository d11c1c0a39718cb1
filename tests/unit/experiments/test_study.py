"""A study: its runs as one comparison, groups with and without shared weights, what scores are worth in each."""

import json

import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.design.sample import shares_weights, stratified_sample
from linnet.design.space import load_space
from linnet.experiments import study as study_module
from linnet.experiments.jobs import Runner
from linnet.experiments.results import Failure, Findings, RunSummary, SeedResult
from linnet.experiments.study import StudyResult, StudySettings, study, study_suite
from linnet.model.cost import model_cost

SETTINGS = StudySettings(shapes=12, bands=2, seeds=2, steps=7, stories=100, resamples=20)


@pytest.fixture(scope="module")
def space():
    return load_space("study")


@pytest.fixture
def pretended(space, monkeypatch):
    """Training in no time: larger models are better, but for a little noise; the last one diverges."""
    asked = []

    def run_suite(spec, out, runner, origin, executor):
        asked.append(spec)
        draws, runs = np.random.default_rng(0), []
        for run in spec.runs:
            blocks = run.set["model.blocks"]
            model = space.model([[alone for (alone,) in space.plain].index(block) for block in blocks])
            loss = 20 - np.log(model_cost(model).blocks.parameters)
            losses = [loss + 1e-3 * draws.standard_normal() for _ in spec.seeds]
            outcomes = [SeedResult(s, {"bits_per_byte": each}, []) for s, each in zip(spec.seeds, losses, strict=True)]
            runs.append(RunSummary(run.name, 1, 1, outcomes))
        lost = [Failure(runs[-1].name, seed, 3, "too fast") for seed in spec.seeds]
        runs[-1] = RunSummary(runs[-1].name, None, None, [], lost)
        return Findings("study", runs, lost)

    monkeypatch.setattr(study_module, "run_suite", run_suite)
    return asked


def test_every_shape_is_a_run_that_can_be_compared(space):
    candidates = stratified_sample(space, 6, 1, seed=0)
    described = study_suite(space, candidates, SETTINGS, {"training.batch_size": 4})
    assert described.seeds == (0, 1)
    assert [run.name for run in described.runs] == [f"shape {n:02}" for n in range(1, 7)]
    for candidate, run in zip(candidates, described.runs, strict=True):
        trained = described.run_spec(run, 1, "data")
        assert trained.model.blocks == space.model(candidate).blocks
        assert trained.training.steps == 7
        assert trained.training.batch_size == 4
        assert trained.training.seed == 1
    assert described.text.stories == 100
    on_files = study_suite(space, candidates, SETTINGS.model_copy(update={"files": ("a.txt",)}), {})
    assert (on_files.text.files, on_files.text.stories) == (["a.txt"], None)


def test_scores_are_compared_with_the_losses(space, pretended, tmp_path):
    groups = study(space, SETTINGS, {}, tmp_path, Runner(print)).groups
    assert [group.name for group in groups] == ["all", "no shared weights"]  # of the others five are left
    everything, own = groups
    assert len(everything.trained.models) == 11
    assert len(own.trained.models) == 6
    assert (everything.band, own.band) == (5, 3)
    assert everything.worth["decoder_parameters"].spearman.value > 0.95
    assert 0.0005 < everything.trained.noise < 0.002
    candidates = stratified_sample(space, 12, 2, seed=0)
    names = [f"shape {n:02}" for n, c in enumerate(candidates, 1) if not shares_weights(space, c)]
    assert [model.name for model in own.trained.models] == names
    assert len(pretended) == 1


def test_tables_of_the_study(space, pretended, tmp_path):
    found = study(space, SETTINGS, {}, tmp_path, Runner(print))
    groups, figures = found.groups, json.loads(json.dumps(found.to_dict()))
    assert len(figures["shapes"]) == 11
    assert figures["groups"].keys() == {"all", "no shared weights"}
    assert figures["groups"]["all"]["scores"]["entropy"]["spearman"] == groups[0].worth["entropy"].spearman.value
    models, *scores = found.tables()
    losses = [float(row[4]) for row in models.rows]
    assert losses == sorted(losses)
    assert [table.title for table in scores] == ["Scores: all", "Scores: no shared weights"]
    assert len(found.plots()) == 1
    nothing = StudyResult([])
    assert nothing.to_dict() == {"shapes": [], "groups": {}} and nothing.tables() == nothing.plots() == []


def test_too_few_shapes_for_the_bands(space, tmp_path):
    with pytest.raises(UserError, match="shapes: 12: expected at least 15, 3 for each band"):
        study(space, SETTINGS.model_copy(update={"bands": 5}), {}, tmp_path, Runner(print))
