"""The page in a real browser, as on a desktop and as on a telephone, light and dark."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from example_figures import figures, models

from linnet.experiments.demo.page import write_page

NARROW, WIDE = 375, 1200
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --allow-file-access-from-files"
)
OUTER = """<!DOCTYPE html><meta charset="utf-8">
<iframe id="narrow" src="report.html" width="%d" height="900"></iframe>
<iframe id="wide" src="report.html" width="%d" height="900"></iframe>
<pre id="found"></pre>
<script>
const texts = (page, where) => [...page.querySelectorAll(where)].map(part => part.innerText);
onload = () => {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, style = getComputedStyle(page.body);
    found[frame.id] = {
      width: page.documentElement.scrollWidth,
      room: page.documentElement.clientWidth,
      values: [...page.querySelectorAll(".figures tbody tr:first-child")].map(
        row => [...row.children].map(cell => cell.firstChild.textContent.trim())),
      stories: texts(page, ".story .text"),
      story_tops: [...page.querySelectorAll(".story")].map(part => part.getBoundingClientRect().top),
      lines: [...page.querySelectorAll("polyline")].map(
        line => [line.points.numberOfItems, line.getBoundingClientRect().width, getComputedStyle(line).stroke]),
      letters: Math.min(...[...page.querySelectorAll("svg text")].map(text => text.getBoundingClientRect().height)),
      colours: [style.color, style.backgroundColor],
      requests: frame.contentWindow.performance.getEntriesByType("resource").map(entry => entry.name),
    };
  }
  document.getElementById("found").textContent = JSON.stringify(found);
};
</script>
"""


@pytest.fixture
def look(tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """What a browser makes of the page in a colour scheme, by frame."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    browser = next((path for path in map(shutil.which, names) if path), None)
    if browser is None:
        pytest.skip(f"none of {', '.join(names)} on the PATH")
    write_page(figures(), tmp_path / "report.html")
    (tmp_path / "outer.html").write_text(OUTER % (NARROW, WIDE), encoding="utf-8")

    def run(scheme: str) -> dict[str, Any]:
        command = [browser, *FLAGS.split(), f"--blink-settings=preferredColorScheme={('dark', 'light').index(scheme)}"]
        command += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"file://{tmp_path}/outer.html"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        (found,) = re.findall(r'<pre id="found">(.+?)</pre>', done.stdout, re.DOTALL)
        return json.loads(unescape(found))

    return run


def test_in_light_colours(look: Callable[[str], dict[str, Any]]):
    seen_in = look("light")
    narrow, wide = seen_in["narrow"], seen_in["wide"]
    for seen in (narrow, wide):
        assert seen["width"] <= seen["room"], "cut off at the side"
        assert seen["requests"] == []
        check_content(seen)
    assert len(set(wide["story_tops"])) == 1, "stories stand side by side where there is room"
    assert narrow["story_tops"] == sorted(set(narrow["story_tops"])), "and below each other where there is none"
    text, background = map(luminance, wide["colours"])
    assert text < 60 and background > 200
    assert all(luminance(stroke) < 130 for _, _, stroke in wide["lines"])


def test_in_dark_colours(look: Callable[[str], dict[str, Any]]):
    seen = look("dark")["wide"]
    text, background = map(luminance, seen["colours"])
    assert text > 200 and background < 60
    assert all(luminance(stroke) > 130 for _, _, stroke in seen["lines"])


def check_content(seen: dict[str, Any]) -> None:
    """Table, stories and curves are there, and large enough to read."""
    assert ["bits per byte", "0.779", "0.803", "0.731"] in seen["values"]
    assert ["decoding, tokens/s", "905", "841", "1,012"] in seen["values"]
    assert ["decode state at 64k tokens", "256 MiB", "256 MiB", "129 MiB"] in seen["values"]
    for story, model in zip(seen["stories"], models(), strict=True):
        assert model.sample.text.replace("\n", " ") in " ".join(story.split())
    trained, held_out, lengths = (
        len(getattr(models()[0], name)) for name in ("training_curve", "validation_curve", "state_bytes")
    )
    points = [count for count, _, _ in seen["lines"]]
    assert points == [trained] * 3 + [held_out] * 3 + [lengths] * 3
    assert all(width > 150 for _, width, _ in seen["lines"])
    assert seen["letters"] > 10


def luminance(colour: str) -> float:
    """0 to 255, of `rgb(1, 2, 3)`."""
    red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
