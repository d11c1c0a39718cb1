"""The atlas: what is compared is comparable, and the page is made of its record."""

import json
from pathlib import Path

import pytest
import trainings
from page import deviation, mean, write_page

from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec
from linnet.present.plot import Plot

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "experiments" / "atlas.json"


@pytest.fixture
def texts(tmp_path: Path) -> list[trainings.Text]:
    (tmp_path / "wikitext2-train.txt").write_text(" = One = \n\n first\n = = Part = = \n more\n = Two = \n second\n")
    return trainings.texts(tmp_path, tmp_path / "work")


def models(text: trainings.Text) -> dict[str, ModelSpec]:
    from linnet.experiments.comparison.spec import ComparisonSpec

    spec = ComparisonSpec.parse(trainings.common(text), "atlas")
    return {run.name: spec.run_of(run, 0, Path("data")).resolved().model for run in spec.runs}


def test_every_mixer_has_as_many_parameters(texts: list[trainings.Text]) -> None:
    for text in texts:
        counts = {name: model_cost(model).parameters for name, model in models(text).items()}
        assert max(counts.values()) / min(counts.values()) < 1.002, counts


def test_an_article_is_a_document(texts: list[trainings.Text]) -> None:
    file = Path(texts[1].described["files"][0])
    found = [json.loads(line)["text"] for line in file.read_text().splitlines()]
    assert [text.splitlines()[0].strip() for text in found] == ["= One =", "= Two ="]
    assert "= = Part = =" in found[0]


def test_equal_time_gives_a_faster_mixer_more_steps() -> None:
    runs = [{"name": "attention"}, {"name": "fast", "set": {"model.d_model": 8}}, {"name": "slow"}]
    found = list(trainings.shorter_or_longer(runs, 100, {"attention": 2.0, "fast": 1.0, "slow": 4.0}))
    assert [(run["name"], run["set"]["training.steps"]) for run in found] == [("fast", 200), ("slow", 50)]
    assert found[0]["set"]["model.d_model"] == 8


def test_the_page_is_made_of_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plot, "write", lambda plot, path: None)
    record = json.loads(RECORD.read_text())
    write_page(record, tmp_path / "atlas.md")
    assert (tmp_path / "atlas.md").read_text() == (ROOT / "docs" / "atlas.md").read_text()


def test_the_best_six_have_three_seeds() -> None:
    mixers = json.loads(RECORD.read_text())["mixers"]
    by_first_seed = sorted(mixers, key=lambda mixer: mixer["bits_per_byte"]["tinystories"]["equal_tokens"][0])
    seeds = [len(mixer["bits_per_byte"]["tinystories"]["equal_tokens"]) for mixer in by_first_seed]
    assert seeds == [3] * trainings.BEST + [1] * (len(mixers) - trainings.BEST)


def test_mean_and_spread_are_of_the_seeds() -> None:
    mixer = {"bits_per_byte": {"tinystories": {"equal_tokens": [1.0, 2.0, 3.0]}, "wikitext2": {"equal_tokens": [1.5]}}}
    assert (mean(mixer, "tinystories"), deviation(mixer, "tinystories")) == (2.0, 1.0)
    assert deviation(mixer, "wikitext2") == 0.0
