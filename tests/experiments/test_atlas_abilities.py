"""The atlas's second part: no mixer is missing, the record is what was measured, and the page says who can."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import abilities
import abilities_page
import pytest
from abilities import Abilities
from abilities_page import cell, ranked, section, table
from record import AbilityRecord

import linnet
from linnet.experiments.comparison.spec import ComparisonSpec
from linnet.layers.registry import MIXERS
from linnet.present.plot import Plot

SHIPPED = Path(__file__).parents[2] / "experiments"


def kinds(plain: Any) -> Iterator[str]:
    """Of every mixer in a description."""
    if isinstance(plain, dict):
        for key, value in plain.items():
            if key.rpartition(".")[2] == "mixer":
                yield value["kind"]
            yield from kinds(value)
    elif isinstance(plain, list):
        for part in plain:
            yield from kinds(part)


@pytest.mark.parametrize("task", abilities.TASKS)
def test_no_mixer_is_missing(task: str):
    spec = ComparisonSpec.load(SHIPPED / f"{task}.yaml")
    found = set(kinds([spec.model, *(run.set for run in spec.runs)]))
    assert found == set(MIXERS), "a new mixer needs its row in recall.yaml, copying.yaml and tracking.yaml"


def test_the_three_tasks_have_the_same_runs():
    first, *others = [ComparisonSpec.load(SHIPPED / f"{task}.yaml") for task in abilities.TASKS]
    assert all(other.runs == first.runs and other.seeds == first.seeds for other in others)


def atlas_abilities(tmp_path: Path, content: dict[str, Any], told: list[str]) -> Abilities:
    return Abilities(AbilityRecord(tmp_path / "found.json", content, {"commit": "now"}), tmp_path / "work", told.append)


def test_jobs_are_whole_seeds_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(abilities, "prepare_parts", lambda spec, folder: [folder])
    found = list(atlas_abilities(tmp_path, {"origins": {}}, []).jobs())
    seeds, tasks = [one.seed for _, one, _ in found], [task for task, _, _ in found]
    assert seeds == sorted(seeds) and tasks[:54] == [task for task in abilities.TASKS for _ in range(18)]
    assert len({one.folder for _, one, _ in found}) == len(found) == 108
    assert found[0][1].run.training.threads == 1


def test_what_the_record_has_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(abilities, "prepare_parts", lambda spec, folder: [folder])
    content, told = json.loads((SHIPPED / "atlas-abilities.json").read_text()), list[str]()
    assert list(atlas_abilities(tmp_path, content, told).jobs()) == []
    assert told[0] == "recall of 8 pairs: nothing to make; 36 in the record"
    content["tasks"]["copying"]["mixers"][3]["seeds"][1]["made"]["text"] = "another"
    content["tasks"]["tracking"]["mixers"][4]["seeds"].pop(0)
    found = [(task, one.name) for task, one, _ in atlas_abilities(tmp_path, content, told).jobs()]
    assert found == [("tracking", "TED with keys"), ("copying", "TED, seed 1")]
    assert told[4] == "copying 12 letters: to make: TED, seed 1 (made with another text); 35 in the record"


TINY = {
    "name": "tiny", "text": {"ability": {"kind": "copying", "length": 3, "symbols": 3}, "items": 40},
    "model": {"vocab_size": 300, "d_model": 8, "context_length": 16, "blocks": [{"mixer": {"kind": "minlstm"}}]},
    "training": {"steps": 1, "batch_size": 4, "evaluate": {"every": 1}, "threads": 1, "precision": "float32"},
    "seeds": [3, 4], "runs": [{"name": "minLSTM"}],
}  # fmt: skip


def test_the_record_has_every_figure_of_every_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(abilities, "described", lambda task: TINY)
    monkeypatch.setattr(abilities, "TASKS", {"copying": "copying"})
    monkeypatch.setattr(abilities, "spec_of", lambda task: ComparisonSpec.parse(TINY, task))
    monkeypatch.setattr(abilities, "here", lambda: {"commit": "of the training"})
    atlas = atlas_abilities(tmp_path, {"origins": {}}, [])
    atlas.describe()
    for job in list(atlas.jobs()):
        atlas.keep(job, abilities.carry_out(job))
    kept = json.loads((tmp_path / "found.json").read_text())
    (mixer,) = kept["tasks"]["copying"]["mixers"]
    assert (kept["tasks"]["copying"]["steps"], mixer["name"], kept["origins"]) == (
        1, "minLSTM", {"1": {"commit": "of the training"}},
    )  # fmt: skip
    whole = linnet.compare({**TINY, "seeds": [3, 4]}, tmp_path / "compared", print)
    (compared,) = json.loads((tmp_path / "compared" / "comparison.json").read_text())["runs"]
    assert whole and [seed["seed"] for seed in mixer["seeds"]] == [3, 4]
    for seed, same in zip(mixer["seeds"], compared["seeds"], strict=True):
        own = {name: seed[name] for name in abilities.KEPT}
        assert own.items() <= same["ability"].items() and own["symbols_chance"] == 1 / 3
        assert (mixer["state_bytes"], mixer["parameters"]) == (same["state_bytes"], compared["parameters"])
    assert list(atlas_abilities(tmp_path, kept, []).jobs()) == []


def seed(right: float, chance: float = 0.125) -> dict[str, Any]:
    return {"symbols_right": right, "symbols_chance": chance, "right": right, "chance": 0.0, "items": 2000,
            "above_chance": True, "seed": 0, "made": {"origin": "1"}}  # fmt: skip


def record() -> dict[str, Any]:
    mixers = {
        "TED": [seed(0.13), seed(0.12)], "attention": [seed(1.0), seed(0.96)], "RWKV-4": [seed(0.5), seed(0.97)],
        "H3": [],
    }  # fmt: skip
    own = [{"name": name, "seeds": seeds, **({"state_bytes": 4096} if seeds else {})} for name, seeds in mixers.items()]
    tasks = {task: {"name": f"{task} of 8", "steps": 1200, "mixers": own} for task in abilities.TASKS}
    return {"origins": {"1": {"commit": "abc"}}, "tasks": tasks}


def test_a_cell_says_who_can_and_who_can_not():
    assert cell({"seeds": [seed(1.0), seed(0.96)]}) == "98.0 ± 2.0, **can**"
    assert cell({"seeds": [seed(0.5), seed(0.97)]}) == "73.5 ± 23.5", "one seed can: neither"
    assert cell({"seeds": [seed(0.13)]}) == "13.0, no better than chance"
    assert cell({"seeds": [seed(0.125 + 3.1 * (0.125 * 0.875 / 2000) ** 0.5)]}) == "14.8"
    assert cell({"seeds": []}) == "diverged"


def test_the_section_has_the_table_and_the_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    drawn: list[Plot] = []
    monkeypatch.setattr(Plot, "write", lambda plot, path: drawn.append(plot))
    found = section(record(), tmp_path / "atlas.md")
    assert section(None, tmp_path / "atlas.md") == ""
    assert ranked(record()) == ["attention", "RWKV-4", "TED", "H3"]
    lines = table(record())
    assert lines[2] == "| *chance* | 12.5 | 12.5 | 12.5 | – |"
    assert lines[3] == "| attention | 98.0 ± 2.0, **can** | 98.0 ± 2.0, **can** | 98.0 ± 2.0, **can** | 4,096 |"
    assert lines[-1] == "| H3 | diverged | diverged | diverged | – |"
    assert all(line in found for line in lines) and "half the range of 2 seeds" in found
    (plot,) = drawn
    assert [panel.title for panel in plot.panels] == list(abilities_page.TASKS.values())
    points = plot.panels[0].series[0]
    assert list(points.labels) == ["TED", "attention", "RWKV-4"] and list(points.x) == [4096] * 3
    assert [list(values or ()) for values in (points.low, points.high)] == [[0.12, 0.96, 0.5], [0.13, 1.0, 0.97]]
    assert [rule.at for rule in plot.panels[0].rules] == [0.125]
