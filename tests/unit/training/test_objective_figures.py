from pathlib import Path

import pytest

from linnet.training.metrics import curves
from linnet.training.objective_figures import held_out_rows, is_judged, objective_curve, pairs_text, prompts_text

PAIRS = {"pairs": 1200, "preference_loss": 0.5, "accuracy": 0.75, "margin": -0.5, "chosen": -9.0, "rejected": -8.0}
PROMPTS = {
    "prompts": 3, "answers": 8, "pass@1": {"value": 0.25, "interval": None}, "pass@8": {"value": 0.5, "interval": None},
    "reward": 0.375,
}  # fmt: skip
BEFORE = "held-out prompts before"


def test_figures_of_pairs_and_of_prompts_are_one_line():
    assert pairs_text(PAIRS) == "75.0% of 1,200 with the chosen answer ahead, margin -0.500, loss 0.5000"
    assert prompts_text(PROMPTS) == "pass@1 25.0%, pass@8 50.0%, mean reward 0.375 (3 prompts, 8 answers each)"
    bounded = prompts_text({**PROMPTS, "chance": {"pass@1": 0.125, "pass@8": 0.25}, "ceiling": 1.0})
    assert bounded == (
        "pass@1 25.0%, pass@8 50.0%, by chance 12.5% and 25.0%, reference answers 100.0%, mean reward 0.375"
        " (3 prompts, 8 answers each)"
    )
    unjudged = {name: value for name, value in PROMPTS.items() if not name.startswith("pass@")}
    assert prompts_text(unjudged) == "mean reward 0.375 (3 prompts, 8 answers each)"


@pytest.mark.parametrize(
    ("figures", "names"),
    [
        ({"validation": {"bits_per_byte": 1.0}}, []),
        ({"preferences": None, "rollouts": None}, []),
        ({"preferences": PAIRS}, ["held-out pairs"]),
        ({"rollouts": PROMPTS}, ["held-out prompts"]),
        ({"rollouts": {"before": PROMPTS, "after": None}}, ["held-out prompts before"]),
        (
            {"rollouts": {"before": PROMPTS, "after": {"step": 4, **PROMPTS}}},
            ["held-out prompts before", "held-out prompts after"],
        ),
    ],
    ids=["text", "nothing yet", "pairs", "line of prompts", "prompts before", "prompts before and after"],
)
def test_a_row_for_each_thing_that_was_measured(figures, names):
    assert [name for name, _ in held_out_rows(figures)] == names
    assert is_judged(figures) == bool(names)


def _lines(field, figures, term):
    own = {"bits_per_byte": 2.0, "lr": 1e-3, "gradient_norm": 1.0}
    lines = [{"step": step, **own, "terms": {term: step / 8}} for step in (1, 2, 3)]
    return [*lines, {"step": 4, **own, "terms": {term: 0.5}, field: figures, "validation": {"bits_per_byte": 2.0}}]


def test_the_curves_of_a_run_on_prompts_show_its_rewards():
    lines = _lines("rollouts", PROMPTS, "reward")
    curve = objective_curve(lines)
    assert curve is not None and curve.trained == [0.125, 0.25, 0.375, 0.5]
    assert (curve.held_out_steps, curve.held_out) == ([4], [0.375])
    plot = curves(lines, "mine", causal=True)
    assert [panel.y.title for panel in plot.panels][1] == "mean reward"
    assert plot.panels[1].series[1].name == "held-out prompts: 0.375 at the end"
    assert len(plot.heights or ()) == len(plot.panels) == 4


def test_a_run_that_learned_nothing_has_curves_without_a_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder):
    lines = [{**line, "gradient_norm": 0.0} for line in _lines("rollouts", PROMPTS, "reward")]
    curves(lines, "mine", causal=True).write(tmp_path / "curves.png")
    assert [str(each.message) for each in recwarn] == []


def test_the_curves_of_a_run_on_pairs_show_how_often_the_chosen_answer_is_ahead():
    curve = objective_curve(_lines("preferences", PAIRS, "accuracy"))
    assert curve is not None and curve.title == "chosen answer ahead" and curve.held_out == [0.75]


def test_a_run_on_text_has_no_such_curve():
    lines = _lines("preferences", PAIRS, "z_loss")
    assert objective_curve(lines) is None
    assert len(curves(lines, "mine", causal=True).panels) == 3
