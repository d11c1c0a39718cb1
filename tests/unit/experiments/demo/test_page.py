"""The page as a file: every figure is in it, nothing is fetched, no text is obeyed."""

import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from example_figures import figures, models

from linnet.cli.main import load_verb
from linnet.experiments.demo.figures import DemoFigures, Sample
from linnet.experiments.demo.page import commands, page, write_page

EMPTY = ("meta", "link", "br", "line", "circle")
HOSTILE = "<script src='http://example.com/x.js'></script>\"&\x1b"


class Reader(HTMLParser):
    """Elements in order, their attributes, and the text below each tag name; fails on tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in EMPTY:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        if tag not in EMPTY:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data):
        for tag in set(self.open):
            self.texts[tag][-1] += data


def with_sample(sample: Sample) -> DemoFigures:
    return figures(models=[replace(model, sample=sample) for model in models()])


def test_the_table_holds_every_figure_with_its_ratio_to_the_first_model():
    rows = [re.split(r"\s*\n\s*", row.strip()) for row in Reader(page(figures())).texts["tbody"]]
    flat = [" ".join(row) for row in rows]
    assert flat[0].startswith("parameters 1.08 M 1.21 M 1.07 M Numbers that training sets")
    assert flat[1].startswith("bits per byte 0.779 0.803 0.731 How many bits")
    assert flat[2].startswith("leak none +0.031 none By how many")
    assert flat[3].startswith("training, tokens/s 14,322 11,538 0.81 × attention 16,820 1.2 × attention Tokens that")
    assert flat[4].startswith("decoding, tokens/s 905 841 0.93 × attention 1,012 1.1 × attention Tokens that")
    assert flat[5] == "decode state at 1k tokens 4 MiB 4.06 MiB 1.0 × attention 2.02 MiB 0.50 × attention"
    assert flat[6].startswith(
        "decode state at 64k tokens 256 MiB 256 MiB 1.0 × attention 129 MiB 0.50 × attention What"
    )
    assert "median of 5 runs of 200 sampled tokens" in flat[4]
    assert "needs 1.877 here" in flat[1] and "all 300 held-out stories" in flat[1]


def test_stories_time_machine_and_origin_are_told():
    reader = Reader(page(figures()))
    text = reader.texts["body"][0]
    for model in models():
        for line in model.sample.text.split("\n"):
            assert line in text
        assert model.idea in text
    for fact in ("57 s for 819,200 tokens", "An Example CPU @ 2.00GHz", "2 min 57 s altogether", "5.3 s"):
        assert fact in text
    assert "Made by linnet demo, 2026-01-02 03:04 UTC." in text
    assert text.count("Cut at 256 tokens") == 1


def test_each_chart_has_a_line_for_every_curve():
    found = figures()
    learning, state = page(found).split("<svg ")[1:]
    assert learning.count("<polyline") == 6 and state.split("</svg>")[0].count("<polyline") == 3
    dots = sum(len(model.validation_curve) for model in found.models)
    assert learning.count("<circle") == dots


def test_nothing_is_fetched():
    text = page(figures())
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|@import|<script|<iframe|<img", text)
    fetched = [value for name, value in Reader(text).attributes if name in ("src", "href", "srcset", "action", "data")]
    assert fetched == ["data:,"]
    assert "url(" not in text


def test_no_text_is_obeyed():
    found = with_sample(Sample(HOSTILE, f"\n{HOSTILE}", complete=True))
    hostile = replace(found.models[0], title=HOSTILE, idea=HOSTILE, folder=HOSTILE)
    found = replace(found, models=[hostile, *found.models[1:]], machine={HOSTILE: HOSTILE}, invocation=HOSTILE)
    text = page(found)
    assert "<script" not in text and "\x1b" not in text
    body = Reader(text).texts["body"][0]
    assert body.count("<script") >= 10


@pytest.mark.parametrize("complete", [True, False])
def test_the_prompt_is_bold_across_lines_and_a_cut_story_ends_in_dots(complete: bool):
    text = page(with_sample(Sample("Max ran.\nMax", " fell.\n\nThe end.", complete)))
    story = text.split('<div class="text">')[1].split("</div>")[0]
    end = "" if complete else " …"
    assert story.strip() == f"<p><b>Max ran.</b></p>\n<p><b>Max</b> fell.</p>\n<p>The end.{end}</p>"


def test_without_a_prompt_a_story_of_its_own_begins():
    text = page(with_sample(Sample("", "Max ran.", complete=True)))
    assert "Each model begins a story of its own, sampled" in text
    assert '<div class="text">\n<p>Max ran.</p>\n</div>' in text


def test_curves_of_a_single_point_are_drawn():
    short = [replace(model, training_curve=[(2048, 2.5)], validation_curve=[(2048, 2.6)]) for model in models()]
    assert page(figures(models=short)).count("<polyline") == 9


def test_every_command_line_is_one_that_linnet_takes():
    found = figures(command="'my tools/linnet'")
    lines = [line for _, lines in commands(found) for line in lines]
    assert len(lines) >= 8
    for line in lines:
        linnet, verb, *arguments = shlex.split(line)
        assert linnet == "my tools/linnet"
        with load_verb(verb).make_context(verb, arguments):
            pass
    assert ["linnet", "generate", "demo/ted"] in [
        shlex.split(line)[:3] for _, lines in commands(figures(command="linnet")) for line in lines
    ]


def test_the_page_is_written_whole(tmp_path):
    write_page(figures(), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page(figures())
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
