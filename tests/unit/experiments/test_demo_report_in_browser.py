"""The page in a real browser, as on a desktop and as on a telephone, light and dark."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_figures import figures, models

from browser import dumped
from linnet.experiments.measures import WrittenText
from linnet.present.page import write_page

NARROW, WIDE = 375, 1200
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
      values: [...page.querySelectorAll(".figures tbody tr:not(.note)")].map(
        row => [...row.children].map(cell => cell.firstChild.textContent.trim())),
      stories: texts(page, ".passage .text"),
      story_tops: [...page.querySelectorAll(".passage")].map(part => part.getBoundingClientRect().top),
      beyond: [...page.querySelectorAll(".card, .card *, .note, pre")].filter(part => {
        const card = (part.closest(".card") ?? page.querySelector("main")).getBoundingClientRect();
        return part.getBoundingClientRect().right > card.right + 1 || part.scrollWidth > part.clientWidth + 1
          && getComputedStyle(part).display != "inline";
      }).map(part => part.outerHTML.slice(0, 80)),
      pictures: [...page.images].map(one => [one.alt, one.naturalWidth, one.getBoundingClientRect().width]),
      pixels: [...page.images].map(one => {
        const canvas = document.createElement("canvas");
        canvas.width = one.naturalWidth; canvas.height = one.naturalHeight;
        const context = canvas.getContext("2d");
        context.drawImage(one, 0, 0);
        const data = context.getImageData(0, 0, canvas.width, canvas.height).data, found = [];
        for (let at = 0; at < data.length; at += 4)
          if (data[at + 3] > 250) found.push(0.2126 * data[at] + 0.7152 * data[at + 1] + 0.0722 * data[at + 2]);
        return [Math.min(...found), Math.max(...found), found.length / (canvas.width * canvas.height)];
      }),
      colors: [style.color, style.backgroundColor],
      requests: frame.contentWindow.performance.getEntriesByType("resource").map(entry => entry.name),
    };
  }
  document.getElementById("found").textContent = JSON.stringify(found);
};
</script>
"""


@pytest.fixture
def look(tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """What a browser makes of the page in a color scheme, by frame."""
    long = WrittenText(prompt="Once", text=" upon" + "o" * 500, complete=True)
    told = [replace(models()[0], sample=long), *models()[1:]]
    write_page(figures(models=told), tmp_path, "linnet demo")
    (tmp_path / "outer.html").write_text(OUTER % (NARROW, WIDE), encoding="utf-8")

    def run(scheme: str) -> dict[str, Any]:
        scheme_flag = f"--blink-settings=preferredColorScheme={('dark', 'light').index(scheme)}"
        return dumped(tmp_path / "outer.html", scheme_flag)[0]

    return run


def test_in_light_colors(look: Callable[[str], dict[str, Any]]):
    seen_in = look("light")
    narrow, wide = seen_in["narrow"], seen_in["wide"]
    for seen in (narrow, wide):
        assert seen["width"] <= seen["room"], "cut off at the side"
        assert seen["requests"] == []
        check_content(seen)
    assert len(set(wide["story_tops"])) == 1, "stories stand side by side where there is room"
    assert narrow["story_tops"] == sorted(set(narrow["story_tops"])), "and below each other where there is none"
    text, background = map(luminance, wide["colors"])
    assert text < 60 and background > 200
    assert all(darkest < 80 for darkest, _, _ in wide["pixels"]), "ink is dark on white"


def test_in_dark_colors(look: Callable[[str], dict[str, Any]]):
    seen = look("dark")["wide"]
    text, background = map(luminance, seen["colors"])
    assert text > 200 and background < 60
    assert all(lightest > 180 and filled < 0.3 for _, lightest, filled in seen["pixels"]), "ink is light, no ground"


def check_content(seen: dict[str, Any]) -> None:
    """Table, stories and curves are there, and large enough to read."""
    assert ["bits per byte", "0.779", "0.803", "0.731"] in seen["values"]
    assert ["decoding, tokens/s", "905", "841", "1,012"] in seen["values"]
    assert ["state at 64k tokens", "256 MiB", "256 MiB", "129 MiB"] in seen["values"]
    for story, model in zip(seen["stories"][1:], models()[1:], strict=True):
        assert model.sample.text.replace("\n", " ") in " ".join(story.split())
    assert seen["beyond"] == [], "a long line leaves its card"
    assert [name for name, *_ in seen["pictures"]] == ["Learning curves", "Decode state"]
    assert all(natural > 450 and shown > 300 for _, natural, shown in seen["pictures"])


def luminance(color: str) -> float:
    """0 to 255, of `rgb(1, 2, 3)`."""
    red, green, blue = map(int, re.findall(r"\d+", color)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
