"""The terminal's table and stories."""

import io
from dataclasses import replace

from example_figures import figures, models
from rich.console import Console

from linnet.experiments.demo.figures import DemoFigures, Sample
from linnet.experiments.demo.table import print_figures


def printed(found: DemoFigures, width: int = 80) -> str:
    out = io.StringIO()
    print_figures(found, Console(file=out, width=width, highlight=False, markup=False))
    return out.getvalue()


def test_80_columns_hold_every_figure():
    lines = [line.split() for line in printed(figures()).splitlines()]
    assert lines[2:5] == [
        ["attention", "1.08", "M", "0.779", "none", "14,322", "905", "4", "MiB", "256", "MiB"],
        ["PLDR-LLM", "1.21", "M", "0.803", "+0.031", "11,538", "841", "4.06", "MiB", "256", "MiB"],
        ["TED", "1.07", "M", "0.731", "none", "16,820", "1,012", "2.02", "MiB", "129", "MiB"],
    ]
    assert "…" not in printed(figures()).split("attention ─")[0]


def test_every_story_is_printed_whole_under_its_models_name():
    text = printed(figures(), width=2000)
    for model in models():
        _, _, rest = text.partition(f"\n{model.title} ─")
        story = [line.strip() for line in rest.splitlines()[1:]]
        expected = model.sample.text.split("\n")
        expected[-1] += "" if model.sample.complete else " …"
        assert story[: len(expected)] == expected


def test_markup_and_control_characters_of_a_story_are_not_obeyed():
    hostile = replace(models()[0], sample=Sample("[red]a", "\x1b[2Jb\ac", complete=True))
    assert "[red]a�[2Jb�c" in printed(figures(models=[hostile]))
