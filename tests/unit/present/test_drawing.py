"""Figures as PNG files."""

import struct

from linnet.present.drawing import DOTS_PER_INCH, new_figure, png_of


def test_a_figure_becomes_a_png_of_its_size():
    figure = new_figure(4.0, 2.5)
    figure.subplots().plot([1, 2], [3, 4])
    png = png_of(figure)
    assert png.startswith(b"\x89PNG")
    assert struct.unpack(">II", png[16:24]) == (4 * DOTS_PER_INCH, 2.5 * DOTS_PER_INCH)
