"""A sweep as a table, words and a picture."""

from dataclasses import replace
from pathlib import Path

from linnet.experiments.sweep import Sweep, SweepFindings, SweptRun
from linnet.training.spec import RunSpec

MODEL = {
    "name": "small",
    "vocab_size": 257,
    "d_model": 8,
    "context_length": 16,
    "blocks": [{"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 8}}],
}
RUN = RunSpec.parse({"model": MODEL, "data": "data", "training": {"steps": 60}}, "test")
LOST = SweptRun(0.016, Path("out/lr-0.016"), diverged_at=3, reason="loss nan")
RUNS = [
    SweptRun(0.001, Path("out/lr-0.001"), 2.0, 65.0, 60, 7680, "float32"),
    SweptRun(0.004, Path("out/lr-0.004"), 1.5, 66.0, 60, 7680, "float32"),
    LOST,
]
FOUND = SweepFindings(Sweep("optimizer.lr", (0.001, 0.004, 0.016)), RUN, RUNS, folder=Path("out"))


def test_the_table_marks_the_best_and_the_diverged():
    (table,) = FOUND.tables()
    assert table.columns[0] == "lr"
    assert table.rows == [
        ["0.001", "2.0000", "+0.5000", "60", "1 min 05 s", "finished"],
        ["0.004", "1.5000", "best", "60", "1 min 06 s", "finished"],
        ["0.016", "–", "–", "–", "–", "diverged at step 3"],
    ]
    assert "precision" not in table.meaning
    other = replace(FOUND, runs=[RUNS[0], replace(RUNS[1], precision="bfloat16")])
    assert "--set training.precision=float32 avoids that" in other.tables()[0].meaning


def test_the_conclusion_names_the_flags():
    assert FOUND.conclusion().split("\n") == [
        "picture: out/sweep.png",
        "to train with the best lr, 0.004: --set training.optimizer.lr=0.004",
        "already trained with it: out/lr-0.004/model",
    ]
    edge = replace(FOUND, runs=RUNS[:2], steps=10)
    assert edge.conclusion().split("\n")[1:] == [
        "to train with the best lr, 0.004: --set training.optimizer.lr=0.004",
        "note: 0.004 is the highest value, so a better one may lie above it: --sweep lr=0.004,0.016,0.064",
    ]
    nothing = replace(FOUND, runs=[LOST, replace(LOST, value=0.064)])
    assert nothing.conclusion() == "picture: out/sweep.png"


def test_the_picture_has_the_best_and_a_line_where_one_diverged():
    (panel,) = FOUND.plot().panels
    curve, best = panel.series
    assert (list(curve.x), list(curve.y)) == ([0.001, 0.004], [2.0, 1.5])
    assert (list(best.x), list(best.y), best.name) == ([0.004], [1.5], "best: 0.004, 1.5000")
    assert [(rule.at, rule.name, rule.upright) for rule in panel.rules] == [(0.016, "0.016 diverged at step 3", True)]
    (axes,) = FOUND.plot().figure().axes
    assert (axes.get_xscale(), axes.get_title("left")) == ("log", "small")
    assert axes.get_xlabel() == "training.optimizer.lr"
    near = replace(FOUND, runs=[RUNS[0], replace(RUNS[1], value=0.002)])
    assert near.plot().panels[0].x.scale == "linear"
    nothing = replace(FOUND, runs=[LOST, replace(LOST, value=0.064)])
    assert len(nothing.plot().figure().axes[0].lines) == 3, "no point, two upright lines"
