"""The atlas: what is compared is comparable, and the page is made of its record."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trainings
from measured import known_seconds
from origins_page import of_seeds, origins_table
from outdated import outdated, said
from page import bits_of, deviation, mean, names_kept, write_page
from provenance import hashed, of_run
from record import AtlasRecord
from wanted import Wanted, train

from linnet.experiments.comparison.parts import prepare_parts
from linnet.experiments.comparison.spec import ComparisonSpec
from linnet.experiments.runner import Runner
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


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def atlas(tmp_path: Path, told: list[str]) -> trainings.Atlas:
    """With the shipped record, in a folder of the test."""
    record = AtlasRecord(tmp_path / "atlas.json", json.loads(RECORD.read_text()), {"commit": "now"})
    return trainings.Atlas(record, tmp_path / "work", Runner(told.append))


SECONDS = {mixer["name"]: mixer["speed"]["step_s"] for mixer in json.loads(RECORD.read_text())["mixers"]}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Wanted]:
    """What would be trained, each to one bit per byte more than its seed."""
    found: list[Wanted] = []

    def train(one: Wanted, _: object, origin: object) -> object:
        found.append(one)
        return origin

    monkeypatch.setattr(trainings, "train", train)
    monkeypatch.setattr(trainings, "bits_per_byte", lambda run, data: {"bits_per_byte": 1.0 + int(run.name[-1])})
    monkeypatch.setattr(trainings.Text, "prepare", trainings.Text.data)
    return found


def names_of(trained: list[Wanted]) -> list[str]:
    return [one.name for one in trained]


def all_of(atlas: trainings.Atlas, text: trainings.Text) -> None:
    atlas.equal_tokens(text)
    atlas.more_seeds(text)
    atlas.names(trainings.titles()[-1], lambda run, data: {"right": 1, "mentions": 2})


def test_what_the_record_has_is_not_trained_again(atlas: trainings.Atlas, trained: list[Wanted], told: list[str]):
    for text in trainings.titles()[:2]:
        all_of(atlas, text)
    assert trained == []
    assert told[0] == "TinyStories, equal tokens: nothing to make; 20 in the record"
    assert told[2] == "names on the built-in stories: nothing to make; 20 in the record"


def test_another_recipe_trains_all_anew_and_is_said(
    atlas: trainings.Atlas, trained: list[Wanted], told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    changed = tmp_path / "atlas.yaml"
    changed.write_text(trainings.DESCRIPTION.read_text().replace("lr: 5.5e-3", "lr: 5.0e-3"))
    monkeypatch.setattr(trainings, "DESCRIPTION", changed)
    text = trainings.titles()[0]
    before = atlas.record.mixer("TED")["bits_per_byte"]["tinystories"]["equal_time"]
    atlas.equal_tokens(text)
    assert names_of(trained) == list(trainings.models_of(text))
    assert "TED (made with another training)" in told[0] and "in the record" not in told[0]
    kept = json.loads((tmp_path / "atlas.json").read_text())
    ted = next(mixer for mixer in kept["mixers"] if mixer["name"] == "TED")["bits_per_byte"]["tinystories"]
    (figure,), number = ted["equal_tokens"], ted["equal_tokens"][0]["made"]["origin"]
    assert (figure["bits_per_byte"], ted["equal_time"], kept["origins"][number]) == (1.0, before, {"commit": "now"})
    trained.clear()
    atlas.equal_tokens(text)
    assert trained == [], "it is in the record now"
    atlas.more_seeds(text)
    had = {"RWKV-4", "RWKV-7", "Mamba", "Mamba-2", "sLSTM", "RG-LRU"}
    assert {one.mixer for one in trained} >= had and {one.seed for one in trained} == {1, 2}


def test_another_default_of_a_layer_trains_that_mixer_anew(
    atlas: trainings.Atlas, trained: list[Wanted], told: list[str], monkeypatch: pytest.MonkeyPatch
):
    found = trainings.runs_of

    def with_another_default(text: trainings.Text, *rest: Any) -> dict[str, Any]:
        runs = found(text, *rest)
        (block,) = runs["mLSTM"].model.blocks
        changed = block.model_copy(update={"mixer": block.mixer.model_copy(update={"heads": 2})})
        model = runs["mLSTM"].model.model_copy(update={"blocks": [changed]})
        return {**runs, "mLSTM": runs["mLSTM"].model_copy(update={"model": model})}

    monkeypatch.setattr(trainings, "runs_of", with_another_default)
    atlas.equal_tokens(trainings.titles()[0])
    assert names_of(trained) == ["mLSTM"]
    assert told == ["TinyStories, equal tokens: to make: mLSTM (made with another model); 19 in the record"]


def test_a_missing_figure_is_made_and_an_unknown_one_kept(
    atlas: trainings.Atlas, trained: list[Wanted], told: list[str]
):
    record, text = atlas.record, trainings.titles()[0]
    del record.content["mixers"][0]
    record.seeds("TED", text.key)[0]["made"]["training"] = None
    atlas.equal_tokens(text)
    assert names_of(trained) == ["attention"]
    assert told[0].startswith("TinyStories, equal tokens: to make: attention (missing); 19 in the record; TED, kept, ")


def test_times_are_made_anew_where_steps_moved_by_a_tenth(atlas: trainings.Atlas, trained: list[Wanted]):
    text, seconds = trainings.titles()[0], {**SECONDS, "RG-LRU": SECONDS["RG-LRU"] * 2}
    steps = {one.mixer: one.steps for one in atlas.time_wanted(text, seconds)}
    for name, own in steps.items():
        atlas.record.timed(name, text.key)["steps"] = own + (own // 11 if name == "H3" else 0)
    atlas.record.timed("RG-LRU", text.key)["steps"] = 2 * steps["RG-LRU"]
    atlas.equal_time(text, seconds)
    (one,) = trained
    assert (one.mixer, one.steps, one.run.training.steps) == ("RG-LRU", steps["RG-LRU"], steps["RG-LRU"])
    assert atlas.record.timed("RG-LRU", text.key)["steps"] == one.steps
    assert "attention" not in steps and steps["minLSTM"] > 400 > steps["RWKV-7"]


def test_without_attention_s_speed_nothing_is_trained_for_its_time(atlas: trainings.Atlas):
    assert list(atlas.time_wanted(trainings.titles()[0], {"TED": 1.0})) == []


def test_speeds_of_another_model_are_not_used(told: list[str]):
    text, record = trainings.titles()[0], AtlasRecord(Path("none"), json.loads(RECORD.read_text()), {})
    record.mixer("TED")["speed"]["made"]["model"] = "another"
    del record.mixer("H3")["speed"]
    assert set(known_seconds(text, record, told.append)) == set(SECONDS) - {"TED", "H3"}
    assert "TED (made with another model), H3 (missing)" in told[0]


def test_a_figure_is_of_who_ended_its_training(tmp_path: Path, told: list[str]):
    plain = {
        "text": {"ability": {"kind": "copying", "length": 3, "symbols": 3}, "items": 40},
        "model": {"vocab_size": 300, "d_model": 8, "context_length": 16, "blocks": [{"mixer": {"kind": "minlstm"}}]},
        "training": {"steps": 1, "batch_size": 4, "evaluate": {"every": 1}, "threads": 1, "precision": "float32"},
        "runs": [{"name": "minLSTM"}],
    }  # fmt: skip
    spec = ComparisonSpec.parse(plain, "tiny")
    (data,) = prepare_parts(spec, tmp_path / "data")
    run = spec.run_of(spec.runs[0], 0, data).resolved()
    one = Wanted("minLSTM", 0, run, of_run(run, "text"), None, tmp_path / "runs")
    assert train(one, Runner(told.append), {"commit": "first"}) == {"commit": "first"}
    assert train(one, Runner(told.append), {"commit": "second"}) == {"commit": "first"}
    other = replace(one, of={**one.of, "training": "another"})
    assert other.folder != one.folder and other.folder.parent == one.folder.parent


def test_hashes_are_of_what_is_said():
    plain = {"b": 1, "a": {"c": None, "d": [1, 2]}}
    assert hashed(plain) == hashed({"a": {"d": (1, 2)}, "b": 1, "new": False, "newer": [], "newest": {"off": None}})
    assert hashed(plain) != hashed({"b": 1, "a": {"d": [2, 1]}})
    assert hashed({"a": False}) != hashed({"a": True}) and hashed({"a": 0}) != hashed({})
    assert hashed(plain) == "63b469e18162", "all records would be of another description"


def test_a_rate_that_moves_nothing_is_no_part_of_a_description():
    runs = trainings.runs_of(trainings.titles()[0])
    for name, matters in (("TED", False), ("PLGA", True)):
        run = runs[name]
        optimizer = run.training.optimizer.model_copy(update={"low_lr": 1e-3})
        training = run.training.model_copy(update={"optimizer": optimizer, "seed": 7, "threads": 1})
        assert (of_run(run, "t") != of_run(run.model_copy(update={"training": training}), "t")) is matters


def test_the_hash_of_a_text_is_that_of_its_content(tmp_path: Path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("one")
    second.write_text("one")

    def text(file: Path) -> trainings.Text:
        return trainings.Text("k", "T", {"files": [str(file)]})

    assert text(first).hash == text(second).hash
    second.write_text("two")
    assert text(first).hash != text(second).hash
    assert trainings.titles()[0].hash is None, "not at hand"


def test_every_figure_of_the_record_tells_its_origin():
    def figures(plain: Any) -> Iterator[dict[str, Any]]:
        if isinstance(plain, dict):
            yield from [plain] if "made" in plain else []
        for part in plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ():
            yield from figures(part)

    for file, least in ((RECORD, 20 * 7), (RECORD.with_name("atlas-abilities.json"), 18 * 3 * 2)):
        record = json.loads(file.read_text())
        made = [figure["made"] for figure in figures(record)]
        assert len(made) >= least and {each["origin"] for each in made} == set(record["origins"])
        for origin in record["origins"].values():
            assert {"commit", "date", "processor", "amx"} <= origin.keys()
            assert origin["commit"] or origin["recorded"], "where the commit is not known, who recorded it is"


def test_the_page_says_what_is_of_another_description():
    record = json.loads(RECORD.read_text())
    before = outdated(record)
    record["mixers"][3]["names"]["made"]["model"] = "another"
    found = outdated(record)
    assert found.pop("names kept") == ["TED"] and found == before
    assert said({}) == "All are of today's description." and "names kept: TED" in said({"names kept": ["TED"]})


def test_a_row_for_each_origin():
    origins = {
        "1": {"commit": "abc", "date": "2026-11-23", "processor": "X", "amx": True},
        "2": {"commit": None, "recorded": "def", "date": None, "processor": None, "amx": None},
    }
    figures = of_seeds("T", {"A": figures_of("1", "2"), "B": figures_of("1"), "C": figures_of("2"), "D": []})
    assert origins_table(origins, figures).splitlines()[2:] == [
        "| abc | 2026-11-23 | X, AMX | T: all others |",
        "| unknown; recorded in def | unknown | unknown | T: C; T, more seeds: all |",
    ]


def figures_of(*numbers: str) -> list[dict[str, Any]]:
    return [{"seed": seed, "made": {"origin": number}} for seed, number in enumerate(numbers)]


def test_an_article_is_a_document(texts: list[trainings.Text]) -> None:
    file = Path(texts[1].described["files"][0])
    found = [json.loads(line)["text"] for line in file.read_text().splitlines()]
    assert [text.splitlines()[0].strip() for text in found] == ["= One =", "= Two ="]
    assert "= = Part = =" in found[0]


def test_the_page_is_made_of_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plot, "write", lambda plot, path: None)
    record, second = json.loads(RECORD.read_text()), RECORD.with_name("atlas-abilities.json")
    write_page(record, tmp_path / "atlas.md", json.loads(second.read_text()) if second.is_file() else None)
    assert (tmp_path / "atlas.md").read_text() == (ROOT / "docs" / "atlas.md").read_text()


def test_the_best_six_have_three_seeds() -> None:
    mixers = json.loads(RECORD.read_text())["mixers"]
    by_first_seed = sorted(mixers, key=lambda mixer: bits_of(mixer, "tinystories")[0])
    seeds = [len(bits_of(mixer, "tinystories")) for mixer in by_first_seed]
    assert seeds[: trainings.BEST] == [3] * trainings.BEST


def test_mean_and_spread_are_of_the_seeds() -> None:
    bits = {"tinystories": [1.0, 2.0, 3.0], "wikitext2": [1.5]}
    seeds = {text: {"equal_tokens": [{"bits_per_byte": bit} for bit in of_text]} for text, of_text in bits.items()}
    mixer = {"name": "A", "bits_per_byte": seeds}
    assert (mean(mixer, "tinystories"), deviation(mixer, "tinystories")) == (2.0, 1.0)
    assert deviation(mixer, "wikitext2") == 0.0


def test_names_have_a_binomial_error() -> None:
    assert names_kept({"right": 2068, "mentions": 2914}) == "71.0 ± 0.8 %"
