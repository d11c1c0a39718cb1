"""The page of several models in a real browser, on a telephone, on a desk, and in grey."""

import numpy as np
import pytest
from example_models import NAMES, TEN_NAMES, compared

from browser import Shown, shown
from linnet.experiments.report import write_report


@pytest.mark.parametrize(("width", "names"), [(400, TEN_NAMES), (1400, NAMES)])
def test_nothing_is_blank_cut_off_or_logged_to_the_console(width: int, names: tuple[str, ...], tmp_path):
    page = write_report(compared(names), tmp_path, "linnet compare a.yaml --out runs/a")
    assert "<script" not in page.read_text()
    seen = shown(page, width)
    assert (seen.cut, seen.console, seen.requests) == ([], [], [])
    assert seen.blank_share < 0.5 and seen.picture_HWC.shape[1] == width
    assert all(name in seen.text for name in names) and "64.1 MiB" in seen.text
    grey_HW = seen.picture_HWC @ np.array([0.2126, 0.7152, 0.0722])
    assert grey_HW.min() < 60 and np.median(grey_HW) > 200, "dark ink on a light ground, without color too"


def test_a_shadow_at_the_edge_marks_tables_that_scroll(tmp_path):
    page = write_report(compared(), tmp_path, "linnet compare a.yaml --out runs/a")
    wide, light, dark = shown(page, 1400), shown(page, 400), shown(page, 400, dark=True)
    assert all(any(goes_on for *_, goes_on in narrow.tables) for narrow in (light, dark))
    assert not any(goes_on for *_, goes_on in wide.tables)
    for seen in (wide, light, dark):
        assert [_shaded(seen, table) for table in seen.tables] == [bool(goes_on) for *_, goes_on in seen.tables]


def _shaded(seen: Shown, table: tuple[int, int, int, int, int]) -> bool:
    """Whether the ground just within the right edge is darker than that further in: the median of each column."""
    _, top, right, bottom, _ = table
    grey_HW = np.median(seen.picture_HWC[top + 12 : bottom - 12, :right].mean(axis=2), axis=0)
    return bool(grey_HW[-40:-30].mean() - grey_HW[-16:-1].min() > 8)


def test_the_probe_finds_what_is_cut_off(tmp_path):
    page = tmp_path / "cut.html"
    page.write_text(
        '<body style="margin: 0"><p style="padding-left: 380px; white-space: nowrap">too wide for it</p>'
        '<p style="width: 50px; overflow: hidden; white-space: nowrap">hidden behind an edge</p>'
        '<p style="width: 300px; overflow-x: auto; white-space: nowrap">can be scrolled to, all of it, as far as'
        " it goes</p><script>console.error('loud')</script></body>"
    )
    seen = shown(page, 400)
    hidden, text, page_width = seen.cut
    assert hidden.startswith("hidden: ") and text == "text: too wide for it" and page_width.startswith("the page is ")
    assert len(seen.console) == 1 and "loud" in seen.console[0]
