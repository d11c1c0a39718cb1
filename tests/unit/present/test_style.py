"""Figures as files and on pages: their size, and ink that can be read on white and on black."""

import os
import struct
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from linnet.present.style import DARK_INK, INK, PALETTE, STYLE, color_map, drawing, new_figure, png_of, svg_of


def figure():
    with drawing():
        drawn = new_figure(4.0, 2.5)
        drawn.subplots().plot([1, 2], [3, 4], color=PALETTE[0])
    return drawn


def luminance(color: str) -> float:
    """Of `#rrggbb`, from 0 to 255."""
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_figure_becomes_a_png_of_its_size():
    png = png_of(figure())
    assert png.startswith(b"\x89PNG")
    assert struct.unpack(">II", png[16:24]) == (4 * STYLE["figure.dpi"], 2.5 * STYLE["figure.dpi"])


def test_the_ink_of_a_page_follows_its_theme():
    svg = svg_of(figure())
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg") and root.attrib["width"] == "288pt"
    assert svg.count(INK) == 1 and svg.count("currentColor") > 5 and PALETTE[0] in svg
    assert f"(prefers-color-scheme:dark){{svg{{color:{DARK_INK}}}}}" in svg
    assert "#ffffff" not in svg, "no ground of its own"


def test_the_same_figure_is_the_same_file():
    assert svg_of(figure()) == svg_of(figure()) and png_of(figure()) == png_of(figure())


def test_colors_can_be_read_on_white_and_on_black():
    assert all(60 < luminance(color) < 180 for color in PALETTE)
    assert len(set(PALETTE)) == len(PALETTE)
    assert luminance(INK) < 80 and luminance(DARK_INK) > 180
    dark, light = (sum(color_map()(share)[:3]) / 3 for share in (0.0, 1.0))
    assert 0.25 < dark < light < 0.8


def test_bytes_that_are_not_text_are_escaped():
    drawn = figure()
    drawn.axes[0].set_title("runs/\udcff − ä")
    assert png_of(drawn).startswith(b"\x89PNG")
    assert drawn.axes[0].get_title() == "runs/\\udcff − ä"
    svg_of(drawn)


OTHER_BACKENDS = ("inline", "ipympl", "no such")


@pytest.mark.parametrize(
    "backend",
    [
        "module://matplotlib_inline.backend_inline",
        *(pytest.param(name, marks=pytest.mark.slow) for name in OTHER_BACKENDS),
    ],
)
def test_a_backend_in_the_environment_has_no_effect(backend: str, tmp_path: Path):
    """A notebook hands `MPLBACKEND` on to its processes; a file `matplotlibrc` may lie where they run."""
    (tmp_path / "matplotlibrc").write_text("axes.facecolor: red\n")
    code = (
        "from linnet.present.style import drawing, new_figure, png_of, text_width_inches\n"
        "assert text_width_inches('text') > 0\n"
        "with drawing():\n"
        "    figure = new_figure(4.0, 2.5)\n"
        "    figure.subplots().plot([1, 2], [3, 4])\n"
        "import os, sys\n"
        "assert os.environ['MPLBACKEND'] == sys.argv[1]\n"
        "sys.stdout.buffer.write(png_of(figure))\n"
    )
    run = [sys.executable, "-c", code, backend]
    found = subprocess.run(run, env=os.environ | {"MPLBACKEND": backend}, cwd=tmp_path, capture_output=True, check=True)
    (tmp_path / "matplotlibrc").unlink()
    plain = os.environ | {"MPLBACKEND": "agg"}
    run = [sys.executable, "-c", code, "agg"]
    assert found.stdout == subprocess.run(run, env=plain, cwd=tmp_path, capture_output=True, check=True).stdout
