"""The demo's report: every figure is in it, and every command line is one that linnet takes."""

import re
import shlex
from dataclasses import replace

import pytest
from example_figures import figures, models
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.cli.main import load_verb
from linnet.experiments.demo_report import DemoFigures, commands, smooth
from linnet.experiments.measures import WrittenText
from linnet.present.page import write_page
from linnet.present.result import Passage, Picture
from linnet.present.show import parts_lines

unhurried = settings(deadline=None)
curves = st.lists(st.tuples(st.floats(0, 1e6), st.floats(0.1, 10)), min_size=1, max_size=40)


def with_sample(sample: WrittenText) -> DemoFigures:
    return figures(models=[replace(model, sample=sample) for model in models()])


def pictures(found: DemoFigures) -> dict[str, Picture]:
    return {part.name: part for part in found.page() if isinstance(part, Picture)}


def test_the_page_has_stories_times_machine_and_origin(tmp_path):
    text = re.sub(
        r"</?b>", "", write_page(figures(), tmp_path, "linnet demo", figures().made).read_text(encoding="utf-8")
    )
    for model in models():
        assert model.sample.text.split("\n")[0].split('"')[0] in text and model.idea in text
    for fact in ("57 s for 819,200 tokens", "An Example CPU @ 2.00GHz", "2 min 57 s altogether", "5.3 s", "3.46 MB"):
        assert fact in text
    assert "Made by <code>linnet demo</code>, 2026-01-02 03:04 UTC." in text
    assert text.count("Cut at 256 tokens") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "learning.png", "state.png"}


def test_stories_come_first_then_pictures_then_the_table():
    kinds = [type(part).__name__ for part in figures().page()]
    assert kinds.index("Passage") < kinds.index("Picture") < kinds.index("Table")


def test_each_chart_has_a_line_for_every_curve():
    found = pictures(figures())
    (learning,), (state,) = (found[name].drawing.panels for name in ("learning", "state"))
    assert [(one.name, one.style, one.color) for one in learning.series] == [
        (name, style, number)
        for number, title in enumerate(("attention", "PLDR-LLM", "TED"))
        for name, style in (("", "-"), (title, "o-"))
    ]
    for held_out, model in zip(learning.series[1::2], models(), strict=True):
        assert list(zip(held_out.x, held_out.y, strict=True)) == model.validation_curve
    drawn = {line.name: dict(zip(line.x, line.y, strict=True)) for line in state.series}
    full = {model.title: model.memory.state_bytes for model in models()}
    assert drawn == full | {"TED, bank": models()[2].memory.policy_state_bytes["bank"]}


def test_curves_of_a_single_point_are_drawn(tmp_path):
    short = [replace(model, training_curve=[(2048, 2.5)], validation_curve=[(2048, 2.6)]) for model in models()]
    write_page(figures(models=short), tmp_path, "linnet demo")


def test_a_cut_story_ends_in_dots_and_has_a_note():
    samples = (WrittenText(prompt="Max", text=" ran.", complete=done) for done in (True, False))
    whole, cut = (with_sample(sample).tables()[1] for sample in samples)
    assert isinstance(whole, Passage) and isinstance(cut, Passage)
    assert (whole.prompt, whole.text, whole.note) == ("Max", " ran.", "")
    assert cut.text == " ran. …" and cut.note.startswith("Cut at 256 tokens")


def test_without_a_prompt_each_model_begins_a_story(tmp_path):
    found = with_sample(WrittenText(prompt="", text="Max ran.", complete=True))
    assert "Each model begins a story, sampled" in write_page(found, tmp_path, "linnet demo").read_text()


def test_the_terminal_gets_the_table_and_every_story_whole_under_its_models_name():
    text = "\n".join(parts_lines(figures().tables(), 60))
    assert max(map(len, text.splitlines())) <= 60
    for model in models():
        _, _, rest = text.partition(f"\n{model.title} ─")
        story = rest.split("\n", 1)[1].split("\n\n")[0]
        end = "" if model.sample.complete else " …"
        assert " ".join(story.split()) == " ".join((model.sample.prompt + model.sample.text + end).split())


@unhurried
@given(curves, st.integers(1, 9))
def test_smoothing_keeps_the_places_and_stays_within_the_values(points: list[tuple[float, float]], width: int):
    smoothed = smooth(points, width)
    assert [x for x, _ in smoothed] == [x for x, _ in points]
    values = [y for _, y in points]
    assert all(min(values) - 1e-9 <= y <= max(values) + 1e-9 for _, y in smoothed)


def test_smoothing_does_not_bend_a_straight_line_and_averages_its_neighbors():
    straight = [(float(n), 3.0 * n) for n in range(10)]
    assert [y for _, y in smooth(straight, 5)] == pytest.approx([y for _, y in straight])
    assert smooth([(0, 0.0), (1, 3.0), (2, 0.0)], 3) == [(0, 0.0), (1, 1.0), (2, 0.0)]


def test_every_suggested_command_is_valid():
    found = figures(command="'my tools/linnet'")
    lines = [line for lines in commands(found).values() for line in lines]
    assert len(lines) >= 8
    for line in lines:
        linnet, verb, *arguments = shlex.split(line)
        assert linnet == "my tools/linnet"
        with load_verb(verb).make_context(verb, arguments):
            pass
    assert ["linnet", "generate", "demo/ted"] in [
        shlex.split(line)[:3] for lines in commands(figures(command="linnet")).values() for line in lines
    ]
