"""A sweep as a table, words and a picture."""

from dataclasses import replace
from pathlib import Path

from matplotlib import image

from linnet.core.checksum import read_checked_json
from linnet.experiments.runner import Diverged
from linnet.experiments.sweep.asked import Sweep
from linnet.experiments.sweep.findings import SweepFindings, SweptRun
from linnet.experiments.sweep.output import conclusion, edge_said, sweep_plot, sweep_table, write_findings
from linnet.training.spec import RunSpec

MODEL = {
    "name": "small",
    "vocab_size": 257,
    "d_model": 8,
    "context_length": 16,
    "blocks": [{"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 8}}],
}
RUN = RunSpec.parse({"model": MODEL, "data": "data", "training": {"steps": 60}}, "test")
LOST = SweptRun(0.016, Path("out/lr-0.016"), diverged=Diverged(step=3, reason="loss nan"))
RUNS = [
    SweptRun(0.001, Path("out/lr-0.001"), 2.0, 65.0, 60, 7680, "float32"),
    SweptRun(0.004, Path("out/lr-0.004"), 1.5, 66.0, 60, 7680, "float32"),
    LOST,
]
FOUND = SweepFindings(Sweep("optimizer.lr", (0.001, 0.004, 0.016)), RUN, RUNS)


def test_the_table_marks_the_best_and_tells_what_diverged():
    table = sweep_table(FOUND)
    assert table.columns[0] == "lr"
    assert table.rows == [
        ["0.001", "2.0000", "+0.5000", "60", "1 min 05 s", "finished"],
        ["0.004", "1.5000", "best", "60", "1 min 06 s", "finished"],
        ["0.016", "–", "–", "–", "–", "diverged at step 3"],
    ]
    assert "precision" not in table.meaning
    other = replace(FOUND, runs=[RUNS[0], replace(RUNS[1], precision="bfloat16")])
    assert "--set training.precision=float32 makes them alike" in sweep_table(other).meaning


def test_what_follows():
    assert conclusion(FOUND, Path("out")).split("\n") == [
        "picture: out/sweep.png",
        "to train with the best lr, 0.004: --set training.optimizer.lr=0.004",
        "trained with it already: out/lr-0.004/model",
    ]
    edge = replace(FOUND, runs=RUNS[:2], steps=10)
    assert conclusion(edge, Path("out")).split("\n")[1:] == [
        "to train with the best lr, 0.004: --set training.optimizer.lr=0.004",
        "note: 0.004 is the highest value, so a better one may lie above it: --sweep lr=0.004,0.016,0.064",
    ]
    nothing = replace(FOUND, runs=[LOST, replace(LOST, value=0.064)])
    assert conclusion(nothing, Path("out")) == "picture: out/sweep.png" and edge_said(nothing) == []


def test_the_picture_has_the_best_and_a_line_where_one_diverged():
    (panel,) = sweep_plot(FOUND).panels
    curve, best = panel.series
    assert (list(curve.x), list(curve.y)) == ([0.001, 0.004], [2.0, 1.5])
    assert (list(best.x), list(best.y), best.name) == ([0.004], [1.5], "best: 0.004, 1.5000")
    assert [(rule.at, rule.name, rule.upright) for rule in panel.rules] == [(0.016, "0.016 diverged at step 3", True)]
    (axes,) = sweep_plot(FOUND).figure().axes
    assert (axes.get_xscale(), axes.get_title("left")) == ("log", "small")
    assert axes.get_xlabel() == "training.optimizer.lr"
    near = replace(FOUND, runs=[RUNS[0], replace(RUNS[1], value=0.002)])
    assert sweep_plot(near).panels[0].x.scale == "linear"
    nothing = replace(FOUND, runs=[LOST, replace(LOST, value=0.064)])
    assert len(sweep_plot(nothing).figure().axes[0].lines) == 3, "no point, two upright lines"


def test_the_files(tmp_path: Path):
    write_findings(FOUND, tmp_path)
    assert read_checked_json(tmp_path / "sweep.json") == FOUND.to_dict()
    assert image.imread(tmp_path / "sweep.png").ndim == 3
