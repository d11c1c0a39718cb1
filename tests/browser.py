"""Pages in a real browser, headless: what it shows, what it says on its console, and what of the text is cut off.

The page stands in frames of given widths, since a headless window is never narrower than 500 pixels.
"""

import io
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --allow-file-access-from-files "
    "--hide-scrollbars --enable-logging=stderr"
)
PROBE = """
const visible = (page, element) => {  // texts that can be scrolled to, in a box of their own, are not cut off
  for (let box = element; box && box !== page.body; box = box.parentElement)
    if (["auto", "scroll"].includes(getComputedStyle(box).overflowX)) return box;
  return null;
};
const beyond = (rect, left, right) => rect.width > 0 && (rect.left < left - 1 || rect.right > right + 1);
const cut = page => {
  const found = [], width = page.documentElement.clientWidth;
  for (const element of page.body.querySelectorAll("*")) {
    const style = getComputedStyle(element);
    if (["hidden", "clip"].includes(style.overflowX) && element.scrollWidth > element.clientWidth + 1)
      found.push("hidden: " + element.outerHTML.slice(0, 80));
  }
  const walk = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const range = page.createRange(), box = visible(page, walk.currentNode.parentElement);
    range.selectNodeContents(walk.currentNode);
    if (!walk.currentNode.textContent.trim()) continue;
    const part = box ? box.getBoundingClientRect() : null;
    for (const rect of range.getClientRects())
      if (part ? beyond(part, 0, width) || rect.right > part.left + box.scrollWidth + 1 : beyond(rect, 0, width)) {
        found.push("text: " + walk.currentNode.textContent.slice(0, 60)); break;
      }
  }
  return found;
};
const cutInPictures = page => [...page.images].filter(one => one.src.startsWith("data:image/svg")).flatMap(one => {
  const room = document.createElement("div");
  room.innerHTML = new TextDecoder().decode(Uint8Array.from(atob(one.src.split(",")[1]), c => c.charCodeAt(0)));
  document.body.append(room);
  const svg = room.querySelector("svg"), edge = svg.getBoundingClientRect();
  const found = [...svg.querySelectorAll("text")].filter(text => {
    const rect = text.getBoundingClientRect();
    return beyond(rect, edge.left, edge.right) || rect.top < edge.top - 1 || rect.bottom > edge.bottom + 1;
  }).map(text => "picture " + one.alt + ": " + text.textContent);
  room.remove();
  return found;
});
"""
OUTER = """<!DOCTYPE html><meta charset="utf-8"><body style="margin: 0">
<iframe src="%(page)s" width="%(width)d" height="%(height)d" style="border: 0; display: block"></iframe>
<pre id="found" style="display: none"></pre>
<script>%(probe)s
onload = () => {
  const frame = document.querySelector("iframe"), page = frame.contentDocument;
  document.getElementById("found").textContent = JSON.stringify({
    height: page.documentElement.scrollHeight,
    width: page.documentElement.scrollWidth,
    text: page.body.innerText,
    cut: [...cut(page), ...cutInPictures(page)],
    tables: [...page.querySelectorAll(".table")].map(one => [one, one.getBoundingClientRect()]).map(([one, box]) =>
      [box.left, box.top, box.right, box.bottom, one.scrollWidth > one.clientWidth].map(Math.round)),
    requests: frame.contentWindow.performance.getEntriesByType("resource").map(entry => entry.name),
  });
};
</script>
"""


@dataclass(frozen=True)
class Shown:
    """A page at one width in pixels. cut: texts that are not wholly seen. console: its lines, of errors above all.

    picture_HWC: uint8, the whole page, as long as it is. requests: what it fetched. tables: their left, top, right and
    bottom pixels, and whether there is more of them than is shown.
    """

    width: int
    text: str
    cut: list[str]
    console: list[str]
    requests: list[str]
    picture_HWC: np.ndarray
    tables: list[tuple[int, int, int, int, int]]

    @property
    def blank_share(self) -> float:
        """Of the rows of pixels, so many are of one color alone."""
        grey_HW = self.picture_HWC.mean(axis=2)
        return float((np.ptp(grey_HW, axis=1) < 8).mean())


def the_browser() -> str:
    """Its path; skips the test, and says why, where there is none."""
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.skip(f"none of {', '.join(NAMES)} on the PATH")
    return found


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """The browser with these arguments and a new profile in `folder`."""
    command = [the_browser(), *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)


def dumped(outer: Path, *arguments: str) -> tuple[Any, list[str]]:
    """What the scripts of a page wrote, as JSON, into `<pre id="found">`, and the lines of its console."""
    done = run([*arguments, "--dump-dom", f"file://{outer}"], outer.parent)
    (found,) = re.findall(r'<pre id="found"[^>]*>(.+?)</pre>', done.stdout, re.DOTALL)
    return json.loads(unescape(found)), [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def shown(page: Path, width: int, dark: bool = False, folder: Path | None = None) -> Shown:
    """A page as it is at a width; `folder`: for the browser's files, beside the page if not given."""
    folder = page.parent if folder is None else folder
    outer, scheme = folder / f"outer-{width}.html", f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    told = {"page": page.as_uri(), "width": width, "probe": PROBE}
    outer.write_text(OUTER % {**told, "height": 900}, encoding="utf-8")
    window = f"--window-size={max(500, width)},900"
    found, console = dumped(outer, scheme, window)
    outer.write_text(OUTER % {**told, "height": found["height"]}, encoding="utf-8")
    picture = folder / f"screen-{width}.png"
    run(
        [scheme, f"--window-size={max(500, width)},{found['height']}", f"--screenshot={picture}", outer.as_uri()],
        folder,
    )
    with Image.open(io.BytesIO(picture.read_bytes())) as image:
        pixels_HWC = np.asarray(image.convert("RGB"))[:, :width]
    cut = found["cut"] + ([f"the page is {found['width']} pixels wide"] if found["width"] > width else [])
    return Shown(width, found["text"], cut, console, found["requests"], pixels_HWC, found["tables"])
