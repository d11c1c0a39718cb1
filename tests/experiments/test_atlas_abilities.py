"""The atlas's second part: no mixer is missing, the record is what was measured, and the page says who can."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import abilities
import abilities_page
import pytest
from abilities_page import cell, ranked, section, table

from linnet.core.errors import UserError
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


def test_jobs_are_whole_seeds_one_after_another(tmp_path: Path):
    found = abilities.jobs(tmp_path)
    assert [(task, seed) for task, seed, _ in found[:4]] == [
        ("recall", 0), ("copying", 0), ("tracking", 0), ("recall", 1)
    ]  # fmt: skip
    assert len({out for _, _, out in found}) == len(found)
    assert abilities.described("recall")["training"]["threads"] == 1


TINY = {
    "name": "tiny", "text": {"ability": {"kind": "copying", "length": 3, "symbols": 3}, "items": 40},
    "model": {"vocab_size": 300, "d_model": 8, "context_length": 16, "blocks": [{"mixer": {"kind": "minlstm"}}]},
    "training": {"steps": 1, "batch_size": 4, "evaluate": {"every": 1}, "threads": 1, "precision": "float32"},
    "seeds": [3, 4], "runs": [{"name": "minLSTM"}],
}  # fmt: skip


def test_the_record_has_every_figure_of_every_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(abilities, "described", lambda task: TINY)
    monkeypatch.setattr(abilities, "TASKS", {"copying": "copying"})
    with pytest.raises(UserError, match=r"copying-3/comparison.json: the comparison is not finished"):
        abilities.gather_abilities(tmp_path)
    for job in abilities.jobs(tmp_path):
        assert abilities.carry_out(job).startswith("copying, seed ")
    found = abilities.gather_abilities(tmp_path)["tasks"]["copying"]
    (mixer,) = found["mixers"]
    assert (found["steps"], mixer["name"], len(mixer["seeds"])) == (1, "minLSTM", 2)
    for seed, kept in zip((3, 4), mixer["seeds"], strict=True):
        (run,) = json.loads((tmp_path / f"copying-{seed}" / "comparison.json").read_text())["runs"]
        assert kept.items() <= run["seeds"][0]["ability"].items() and kept["symbols_chance"] == 1 / 3
        assert mixer["state_bytes"] == run["seeds"][0]["state_bytes"]


def seed(right: float, chance: float = 0.125) -> dict[str, Any]:
    return {"symbols_right": right, "symbols_chance": chance, "right": right, "chance": 0.0, "items": 2000,
            "above_chance": True}  # fmt: skip


def record() -> dict[str, Any]:
    mixers = {
        "TED": [seed(0.13), seed(0.12)], "attention": [seed(1.0), seed(0.96)], "RWKV-4": [seed(0.5), seed(0.97)],
        "H3": [],
    }  # fmt: skip
    own = [{"name": name, "seeds": seeds, **({"state_bytes": 4096} if seeds else {})} for name, seeds in mixers.items()]
    tasks = {task: {"name": f"{task} of 8", "steps": 1200, "mixers": own} for task in abilities.TASKS}
    return {"commit": "abc", "machine": {"cores": 2}, "tasks": tasks}


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
