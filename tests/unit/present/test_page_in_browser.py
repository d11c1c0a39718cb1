"""The report in a real browser: every picture is decoded and shown, nothing is cut off at the side of a wide window."""

import numpy as np
import torch

from browser import dumped
from linnet.layers.mixers.plga.inspect import operator_pictures, operator_tables
from linnet.layers.mixers.plga.matrices import operator_figures
from linnet.present.page import write_page
from parts_result import PartsResult

OUTER = """<!DOCTYPE html><meta charset="utf-8">
<iframe src="report.html" width="1200" height="900"></iframe><pre id="found"></pre>
<script>
onload = () => {
  const frame = document.querySelector("iframe"), page = frame.contentDocument;
  document.getElementById("found").textContent = JSON.stringify({
    width: page.documentElement.scrollWidth,
    room: page.documentElement.clientWidth,
    images: [...page.images].map(i => [i.alt, i.naturalWidth, i.naturalHeight, i.getBoundingClientRect().width]),
    rows: [...page.querySelectorAll("tbody tr")].map(row => [...row.cells].map(cell => cell.innerText.trim())),
    requests: frame.contentWindow.performance.getEntriesByType("resource").map(entry => entry.name),
  });
};
</script>
"""


def test_every_picture_and_row_is_shown(tmp_path):
    random = np.random.default_rng(0)
    layers = [
        {name: torch.from_numpy(random.normal(size=(14, 16, 16))) for name in ("A", "A_LM", "A_P", "G")}
        for _ in range(2)
    ]
    figures = operator_figures(layers)
    pictures, tables = operator_pictures(figures, layers), operator_tables(figures)
    write_page(PartsResult("x", {}, tables, pictures), tmp_path, "linnet inspect operator x")
    (tmp_path / "outer.html").write_text(OUTER, encoding="utf-8")
    seen, _ = dumped(tmp_path / "outer.html")
    assert seen["width"] <= seen["room"]
    assert [name.split()[0] for name, *_ in seen["images"]] == ["A", "A_LM", "A_P", "G", "Singular"]
    for _, width, height, shown in seen["images"]:
        assert width > 300 and height > 200 and 300 < shown <= 1200
    rows = [[cell.strip() for cell in row] for table in tables for row in table.rows]
    assert seen["rows"] == rows
    assert seen["requests"] == []
