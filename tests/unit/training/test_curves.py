import json

import pytest
from matplotlib import image
from matplotlib.figure import Figure

from linnet.training.curves import draw_curves


def _lines(count, causal):
    lines = []
    for step in range(1, count + 1):
        line = {"step": step, "bits_per_byte": 8 / step, "lr": 1e-3 / step, "gradient_norm": 1.0}
        if step % 3 == 0:
            whole = {} if causal else {"whole_sequence_bits_per_byte": 7 / step}
            line["validation"] = {"bits_per_byte": 7.5 / step, **whole}
        lines.append(line)
    return lines


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 30])
def test_a_picture_of_any_number_of_lines(tmp_path, count, causal):
    draw_curves(json.loads(json.dumps(_lines(count, causal))), tmp_path / "curves.png", "a <title> & $more", causal)
    picture = image.imread(tmp_path / "curves.png")
    assert picture.shape[:2] == (715, 990)
    colours = {tuple(pixel[:3]) for row in picture[::3, ::3] for pixel in row}
    assert len(colours) > 50


@pytest.mark.parametrize("causal", [True, False])
def test_a_loss_that_sees_the_future_is_named_so(tmp_path, monkeypatch, causal):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    draw_curves(_lines(9, causal), tmp_path / "curves.png", "title", causal)
    labels = [text.get_text() for text in drawn[0].axes[0].get_legend().get_texts()]
    assert ("validation, whole sequence" in labels) is not causal
    assert (labels[0] == "training (the pass sees the whole sequence)") is not causal


def test_a_flat_loss_is_drawn(tmp_path):
    lines = [{"step": s, "bits_per_byte": 1.0, "lr": 1e-3, "gradient_norm": 1.0} for s in (1, 2)]
    draw_curves(lines, tmp_path / "curves.png", "flat", causal=True)
    assert (tmp_path / "curves.png").stat().st_size > 0
