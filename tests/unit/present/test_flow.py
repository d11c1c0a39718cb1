import pytest

from linnet.present.flow import Flow

FLOW = Flow(("documents", "bytes"), (10, 4000), (("c4", (4, 1000)), ("pii", (0, 2000))))


def test_shares_are_what_is_left_after_each_step():
    assert FLOW.shares(0) == pytest.approx([1, 0.6, 0.6])
    assert FLOW.shares(1) == pytest.approx([1, 0.75, 0.25])


def test_figure_names_steps_and_amounts_of_each_quantity():
    documents, size = FLOW.figure().axes
    assert (documents.get_title(loc="left"), size.get_title(loc="left")) == ("documents", "bytes")
    words = [text.get_text() for text in size.texts]
    assert words == ["4,000", "c4\n−1,000", "pii\n−2,000", "25.0%"]


def test_a_step_that_adds_something_takes_nothing_out():
    _, size = Flow(("documents", "bytes"), (10, 4000), (("pii", (0, -400)), ("c4", (4, 400)))).figure().axes
    assert [text.get_text() for text in size.texts][1:3] == ["pii\n+400", "c4\n−400"]
    assert len(size.collections) == 3  # two bands, and what c4 takes out


def test_bands_are_as_wide_as_what_they_carry():
    _, size = FLOW.figure().axes
    kept = [band.get_paths()[0].get_extents().height for band in size.collections[::2]]
    assert kept == pytest.approx([0.75, 0.25])
