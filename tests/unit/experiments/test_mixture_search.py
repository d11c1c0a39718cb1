import json

import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.core.spec import read_yaml
from linnet.data.mixture import MixtureSpec
from linnet.data.prepare import prepare
from linnet.experiments import mixture_search
from linnet.experiments.executors import make_executor
from linnet.experiments.jobs import Runner
from linnet.experiments.mixture_search import MixtureSearchSettings, search_mixture
from linnet.scaling.mixture_law import MixtureLaw

LAW = MixtureLaw(np.array([1.0, 0.5]), np.array([[-1.0, 0.5], [0.4, -0.6]]))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed")
    for name, text in (("birds", "the bird sang "), ("numbers", "12 34 567 ")):
        (folder / f"{name}.txt").write_text("<|endoftext|>".join(text * (4 + n % 3) + str(n) for n in range(60)))
    plain = {"sources": {name: {"inputs": str(folder / f"{name}.txt"), "weight": 1.0} for name in ("birds", "numbers")}}
    (folder / "mixture.yaml").write_text(json.dumps(plain))
    prepare([], folder / "data", mixture=folder / "mixture.yaml", tokenizer="bytes", validation=0.2)
    return folder


SMALL = [
    f"training.{field}"
    for field in ("steps=2", "batch_size=2", "context_length=16", "evaluate.tokens=32", "precision=float32")
]


def search(mixed, out, settings, **changes):
    mixture = MixtureSpec.model_validate(json.loads((mixed / "mixture.yaml").read_text()) | changes)
    runner = Runner(lambda line: None)
    return search_mixture(mixture, mixed / "data", out, settings, SMALL, runner, make_executor("local"))


def planted_losses(search, run):
    """What is measured of a run follows a known law of its shares."""
    spec = read_yaml(run / "config.yaml")["training"]["mixture"]["sources"]
    shares_S = np.array([spec[name]["weight"] for name in ("birds", "numbers")])
    return LAW.predict(shares_S[None] / shares_S.sum())[0]


@pytest.fixture(scope="module")
def searched(mixed):
    """A finished search, and its folder."""
    settings = MixtureSearchSettings(runs=5, targets={"birds": 1.0, "numbers": 3.0}, confirm=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixture_search._Search, "_losses", planted_losses)
        patch.setattr("linnet.training.machine.PEAK_BUDGET_S", 1e-9)
        patch.setattr("linnet.training.metrics.draw_curves", lambda lines, path, title, causal: path.touch())
        return search(mixed, mixed / "out", settings), mixed / "out"


def test_the_best_shares_are_found_written_and_confirmed(mixed, searched):
    found, out = searched
    grid_MS = np.stack([np.linspace(0, 1, 1001), 1 - np.linspace(0, 1, 1001)], 1)
    tried_N = np.array([run.shares_S[0] for run in found.runs])
    within_M = (grid_MS[:, 0] >= tried_N.min()) & (grid_MS[:, 0] <= tried_N.max())
    expected = grid_MS[within_M][(LAW.predict(grid_MS[within_M]) @ [1.0, 3.0]).argmin()]
    assert np.abs(found.best.shares_S - expected).max() < 0.03
    assert found.best.measured_T == pytest.approx(LAW.predict(found.best.shares_S[None])[0])
    assert found.best.measured_T == pytest.approx(found.best.predicted_T, abs=0.01) and found.rank_correlation > 0.9
    written = MixtureSpec.model_validate(read_yaml(out / "mixture.yaml"))
    assert [written.sources[name].weight for name in ("birds", "numbers")] == found.best.shares_S.tolist()
    assert written.sources["birds"].inputs == (str(mixed / "birds.txt"),)
    assert "0.73 at 1 M" in found.conclusion()
    assert json.loads((out / "search.json").read_text())["best"] == found.to_dict()["best"]


def test_losses_are_those_of_each_source_and_no_run_is_trained_twice(mixed, searched, monkeypatch):
    monkeypatch.setattr("linnet.training.trainer.Trainer.run_steps", None)
    found = search(mixed, searched[1], MixtureSearchSettings(runs=5))
    losses_NT = np.stack([run.measured_T for run in found.runs])
    assert losses_NT.shape == (5, 2) and not np.allclose(losses_NT[:, 0], losses_NT[:, 1])
    assert found.best.measured_T is None and found.targets == ("birds", "numbers")


@pytest.mark.parametrize(
    ("settings", "changes", "message"),
    [
        ({"runs": 4}, {}, "runs: 4: expected at least 5 for 2 sources"),
        ({"targets": {"bird": 1.0}}, {}, r"target: bird: did you mean birds\?"),
        ({}, {"curriculum": [{"after_step": 1, "weights": {"birds": 1}}]}, "mixture.curriculum: a search finds one"),
        ({}, {"sources": {"birds": {}}}, "mixture.sources: birds: expected two sources or more"),
    ],
    ids=["runs", "target", "curriculum", "one"],
)
def test_what_cannot_be_searched_is_refused_before_training(mixed, tmp_path, settings, changes, message):
    with pytest.raises(UserError, match=message):
        search(mixed, tmp_path / "out", MixtureSearchSettings(**settings), **changes)
    assert not (tmp_path / "out").exists()
