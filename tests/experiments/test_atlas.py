"""The atlas: what is compared is comparable, and the page is made of its record."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trainings
from gathered import of_text
from page import deviation, mean, names_kept, write_page
from record import Record

import linnet
from linnet.layers.registry import MIXERS
from linnet.model.cost import model_cost
from linnet.present.plot import Plot

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "experiments" / "atlas.json"


@pytest.fixture
def texts(tmp_path: Path) -> list[trainings.Text]:
    (tmp_path / "wikitext2-train.txt").write_text(" = One = \n\n first\n = = Part = = \n more\n = Two = \n second\n")
    return trainings.texts(tmp_path, tmp_path / "work")


def test_every_mixer_has_as_many_parameters(texts: list[trainings.Text]) -> None:
    for text in texts:
        counts = {name: model_cost(model).parameters for name, model in trainings.models_of(text).items()}
        assert max(counts.values()) / min(counts.values()) < 1.002, counts


def test_every_kind_of_mixer_is_in_it(texts: list[trainings.Text]) -> None:
    there = {block.mixer.kind for model in trainings.models_of(texts[0]).values() for block in model.blocks}
    assert there == set(MIXERS)


def trained_with(monkeypatch: pytest.MonkeyPatch, call: Callable[[], None]) -> dict[str, list[str]]:
    """The runs that a call trains, by the folder's name."""
    found: dict[str, list[str]] = {}

    def compare(plain: Mapping[str, Any], folder: Path, _: object) -> None:
        found[folder.name] = [run["name"] for run in plain["runs"]]

    monkeypatch.setattr(linnet, "compare", compare)
    call()
    return found


def test_what_the_record_has_is_not_trained_again(texts: list[trainings.Text], tmp_path: Path, monkeypatch) -> None:
    text, names = texts[0], list(trainings.models_of(texts[0]))
    seconds = dict.fromkeys(names[:-1], 1.0)
    bits = {name: [1.0 + place] for place, name in enumerate(names)} | {names[0]: [1.0, 1.1, 1.2]}

    def call() -> None:
        trainings.equal_tokens(text, tmp_path, names[1:])
        trainings.more_seeds(text, tmp_path, bits)
        trainings.equal_time(text, tmp_path, seconds, names[2:])

    found = trained_with(monkeypatch, call)
    expected = {"": names[:1], "-seeds": names[1:6], "-time": names[1:2]}
    assert found == {text.key + ending: runs for ending, runs in expected.items()}
    assert trained_with(monkeypatch, lambda: trainings.equal_tokens(text, tmp_path, names)) == {}


def test_the_record_comes_before_new_figures(texts: list[trainings.Text], tmp_path: Path) -> None:
    earlier = Record({"mixers": [{"name": "TED", "bits_per_byte": {"tinystories": {"equal_tokens": [1.5]}}}]})
    new = {"runs": [{"name": name, "seeds": [{"bits_per_byte": bits}]} for name, bits in (("TED", 9.0), ("H3", 2.0))]}
    more = {"runs": [{"name": "TED", "seeds": [{"bits_per_byte": 1.6}, {"bits_per_byte": 1.7}]}]}
    for folder, content in (("tinystories", new), ("tinystories-seeds", more), ("tinystories-time", new)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "comparison.json").write_text(json.dumps(content))
    assert of_text(texts[0], tmp_path, "TED", earlier) == {"equal_tokens": [1.5, 1.6, 1.7], "equal_time": 9.0}
    assert of_text(texts[0], tmp_path, "H3", earlier) == {"equal_tokens": [2.0], "equal_time": 2.0}
    assert of_text(texts[0], tmp_path, "S4D", earlier) == {"equal_tokens": [], "equal_time": None}


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
    record, second = json.loads(RECORD.read_text()), RECORD.with_name("atlas-abilities.json")
    write_page(record, tmp_path / "atlas.md", json.loads(second.read_text()) if second.is_file() else None)
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


def test_names_have_a_binomial_error() -> None:
    assert names_kept({"right": 2068, "mentions": 2914}) == "71.0 ± 0.8 %"
