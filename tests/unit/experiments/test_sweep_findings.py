"""The best value, and whether there may be a better one."""

from pathlib import Path

import pytest

from linnet.experiments.sweep import Sweep, SweepFindings, SweptRun
from linnet.training.spec import RunSpec, run_of

MODEL = {
    "vocab_size": 257,
    "d_model": 8,
    "context_length": 16,
    "blocks": [{"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 8}}],
}
RUN = RunSpec.parse({"model": MODEL, "data": "data", "training": {"steps": 60}}, "test")


def found(path: str, values: dict[float, float | None], steps: int | None = None) -> SweepFindings:
    """None: it diverged."""
    sweep = Sweep(path, tuple(values))
    runs = [
        SweptRun(value, Path(f"out/{value}"), bits, 1.0, 60, 7680, "float32")
        if bits is not None
        else SweptRun(value, Path(f"out/{value}"), diverged_at=3, reason="loss nan")
        for value, bits in values.items()
    ]
    return SweepFindings(sweep, RUN, runs, steps)


def test_the_best_value_has_the_fewest_bits():
    findings = found("optimizer.lr", {0.001: 2.0, 0.002: 1.5, 0.004: 1.6})
    assert findings.best is findings.runs[1]
    assert (findings.edge, findings.further) == (None, [])
    assert findings.flags == ["--set", "training.optimizer.lr=0.002"]


@pytest.mark.parametrize(
    ("values", "edge", "further"),
    [
        ({0.001: 2.0, 0.002: 1.9, 0.004: 1.6}, "highest", [0.004, 0.008, 0.016]),
        ({0.001: 1.5, 0.003: 1.9}, "lowest", [0.000111111, 0.000333333, 0.001]),
        ({0.001: 1.5, 0.003: None}, "lowest", [0.000111111, 0.000333333, 0.001]),
        ({0.001: 1.5, 0.002: 1.4, 0.004: None}, None, []),
    ],
)
def test_at_an_edge_values_beyond_it_are_proposed(values: dict[float, float | None], edge: str | None, further: list):
    findings = found("optimizer.lr", values)
    assert (findings.edge, findings.further) == (edge, further)


def test_only_valid_values_are_proposed():
    assert found("batch_size", {4: 1.0, 8: 2.0}).further == [1, 2, 4]
    assert found("batch_size", {1: 1.0, 8: 2.0}).further == []
    assert found("optimizer.weight_decay", {0: 1.0, 0.1: 2.0}).further == []
    assert found("schedule.final_fraction", {0.2: 2.0, 0.6: 1.0}).further == []
    assert found("schedule.final_fraction", {0.3: 2.0, 0.6: 1.0}).edge == "highest"
    assert found("context_length", {8: 2.0, 16: 1.0}).further == []


def test_without_a_finished_value_there_is_no_best():
    findings = found("optimizer.lr", {1.0: None, 2.0: None})
    assert (findings.best, findings.edge, findings.further, findings.flags) == (None, None, [], [])
    assert findings.to_dict()["best"] is None
    assert findings.to_dict()["runs"][0]["state"] == "diverged at step 3"


def test_the_flags_reproduce_the_whole_run():
    findings = found("batch_size", {4: 1.0, 8: 2.0}, steps=10)
    changes = findings.flags[1::2]
    assert findings.flags[::2] == ["--set"] * len(changes)
    made = run_of(RUN.to_dict(), changes, "run").resolved()
    assert (made.training.batch_size, made.steps) == (4, 120)


def test_plain():
    plain = found("optimizer.lr", {0.001: 2.0, 0.002: 1.9}, steps=7).to_dict()
    assert (plain["field"], plain["sweep_steps"], plain["best"], plain["edge"]) == (
        "training.optimizer.lr", 7, 0.002, "highest",
    )  # fmt: skip
    assert plain["runs"][0] == {
        "value": 0.001,
        "folder": "out/0.001",
        "bits_per_byte": 2.0,
        "seconds": 1.0,
        "steps": 60,
        "tokens": 7680,
        "precision": "float32",
        "state": "finished",
        "reason": None,
    }
