"""The learning curves of a comparison: one axis, in the table's unit."""

from pathlib import Path

from matplotlib import image

from linnet.evaluation.likelihood import Evaluation, Likelihood
from linnet.experiments.results import CurvePoint, Failure, RunSummary, SeedResult
from linnet.experiments.suite_report import curves_plot
from linnet.present.style import png_of


def outcome(seed: int, *bits: float) -> SeedResult:
    """Evaluated at every fifth step."""
    evaluation = Evaluation(Likelihood(1.0, 100, 400, 10), None)
    return SeedResult(seed, evaluation.to_dict(), [CurvePoint(5 * at, value) for at, value in enumerate(bits, start=1)])


def broken(run: str, seed: int, step: int | None = 7) -> Failure:
    curve = [] if step is None else [CurvePoint(5, 3e9)]
    return Failure(run, seed, step, "loss nan" if step else "no calibration", curve)


def test_there_is_one_axis_and_it_has_the_tables_unit(tmp_path: Path):
    figures = [RunSummary(name, 1, 1, [outcome(1, 4.0 * k, 2.0)]) for k, name in enumerate("ab", 1)]
    (axes,) = curves_plot(figures, "title").figure().axes
    assert axes.get_ylabel() == "held-out text, causal, bits per byte" and axes.get_title("left") == "title"
    curves_plot(figures, "title").write(tmp_path / "curves.png")
    height, width = image.imread(tmp_path / "curves.png").shape[:2]
    assert width == 990 and 572 < height < 620, "the panel, and the legend below"


def test_a_run_has_its_mean_over_the_seeds_in_its_color_and_a_band_from_the_lowest_to_the_highest():
    figures = [
        RunSummary(name, 1, 1, [outcome(1, 4.0 * k, 2.0), outcome(2, 6.0, 3.0)]) for k, name in ((1, "a"), (2, "b"))
    ]
    (panel,) = curves_plot(figures, "title").panels
    first, second = panel.series
    assert (list(first.x), list(first.y)) == ([5, 10], [5.0, 2.5])
    assert (list(first.low), list(first.high)) == ([4.0, 2.0], [6.0, 3.0])
    assert (first.name, second.name) == ("a", "b") and first.color != second.color


def test_the_first_evaluation_is_within_the_axis_and_runs_evaluated_once_are_seen():
    once = [
        RunSummary("a", 1, 1, [outcome(1, 6.0), outcome(2, 6.2)]),
        RunSummary("b", 1, 1, [outcome(1, 3.0)]),
    ]
    (axes,) = curves_plot(once, "title").figure().axes
    low, high = axes.get_ylim()
    assert low < 3.0 and high > 6.2 and [line.get_marker() for line in axes.lines] == ["o", "s"]


def test_diverged_runs_are_marked_and_do_not_flatten_the_others():
    figures = [
        RunSummary("a", 1, 1, [outcome(1, 4.0, 2.0)], [broken("a", 2)]),
        RunSummary("b", None, None, [], [broken("b", 1, 6), broken("b", 2, 9)]),
        RunSummary("c", None, None, [], [broken("c", 1, None)]),
        RunSummary("d", 1, 1, [outcome(1, 4.0, 2.0)]),
    ]
    figure = curves_plot(figures, "title").figure()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "a",
        "d",
        "a: diverged with 1 of 2 seeds",
        "b: diverged with 2 of 2 seeds",
        "c: not trained with 1 of 1 seeds",
    ]
    (panel,) = curves_plot(figures, "title").panels
    assert [(rule.at, rule.color, rule.upright) for rule in panel.rules] == [(7, 0, True), (6, 1, True), (9, 1, True)]
    dotted = [(one.color, list(one.y)) for one in panel.series if one.style == ".:"]
    assert dotted == [(0, [3e9]), (1, [3e9]), (1, [3e9]), (2, [])]
    assert figure.axes[0].get_ylim()[1] < 5
    alone = curves_plot(figures[1:3], "title").figure()
    assert alone.axes[0].get_ylim()[0] <= 3e9 <= alone.axes[0].get_ylim()[1]
    png_of(alone)
