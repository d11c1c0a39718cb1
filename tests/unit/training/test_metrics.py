"""The picture of a run: every step is in it, each quantity has an axis of its own that can be read."""

import pytest
from matplotlib import image

from linnet.training.metrics import curves, draw_curves


def _lines(count, causal, norm=1.0):
    lines = []
    for step in range(1, count + 1):
        line = {"step": step, "bits_per_byte": 8 / step, "lr": 1e-3 / step, "gradient_norm": norm * step}
        if step % 3 == 0:
            whole = {} if causal else {"whole_sequence_bits_per_byte": 7 / step}
            line["validation"] = {"bits_per_byte": 7.5 / step, **whole}
        lines.append(line)
    return lines


@pytest.mark.parametrize(("count", "causal"), [(1, False), (2, True), (3, False), (30, True)])
def test_a_picture_of_any_number_of_lines(tmp_path, count, causal):
    draw_curves(_lines(count, causal), tmp_path / "curves.png", "a <title> & $more", causal)
    picture = image.imread(tmp_path / "curves.png")
    height, width = picture.shape[:2]
    assert width == 990 and 825 < height < 900, "three panels, and the legend below"
    colors = {tuple(pixel[:3]) for row in picture[::3, ::3] for pixel in row}
    assert len(colors) > 50


def test_the_first_loss_is_within_its_axis():
    lines = _lines(300, causal=True)
    loss = curves(lines, "title", causal=True).figure().axes[0]
    assert loss.get_ylim()[0] <= 8 / 300 and loss.get_ylim()[1] >= 8, "of 8 bits per byte at first"
    assert list(loss.lines[0].get_ydata()) == [line["bits_per_byte"] for line in lines]


@pytest.mark.parametrize("norm", [0.01, 1.0, 3e4])
def test_the_gradient_norm_has_an_axis_with_ticks_that_can_be_read(norm):
    axes = curves(_lines(20, True, norm), "title", causal=True).figure().axes[2]
    low, high = axes.get_ylim()
    ticks = [place for place in axes.get_yticks() if low <= place <= high]
    assert axes.get_ylabel() == "gradient norm" and len(ticks) >= 3
    assert all(axes.yaxis.get_major_formatter()(place, 0) for place in ticks)


@pytest.mark.parametrize("causal", [True, False])
def test_the_legend_names_a_loss_that_sees_the_future(causal):
    figure = curves(_lines(9, causal), "title", causal).figure()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert ("validation, whole sequence" in labels) is not causal
    assert (labels[0] == "training (the pass sees the whole sequence)") is not causal
    assert labels[1] == "validation, causal: 0.833 at the end"
