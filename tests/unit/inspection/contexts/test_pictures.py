"""Pictures of contexts: they show every number, also where there is little to show."""

import math

import pytest

from linnet.inspection.contexts.measure import CachePolicyComparison, CachePolicyOutcome, LayerContext
from linnet.inspection.contexts.pictures import contexts_pictures, layers_plot, quality_plot
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.mixers.ted import BankCache, EvictionCache
from linnet.present.style import png_of


def policies(top_k: list[int], thresholds: tuple[float, ...] = (-1.0,)) -> list[CachePolicy]:
    return [FULL, BankCache(), *(EvictionCache(k, x) for k in top_k for x in thresholds)]


def comparison(compared: list[CachePolicy], layers: int = 2, worse: float = 0.01, error: float | None = 0.001):
    outcomes = [
        CachePolicyOutcome(
            context,
            2.0 + worse * (context != FULL),
            worse * (context != FULL),
            error,
            1e5 / (1 + number),
            [LayerContext(2 * layer, 100 / (1 + number), 120) for layer in range(layers)],
        )
        for number, context in enumerate(compared)
    ]
    return CachePolicyComparison(8, 1000, 900, 128, 0.1, outcomes)


def test_quality_has_a_point_for_every_context_in_both_panels():
    found = comparison(policies([8, 16], (0.1,)))
    (quality, layers) = contexts_pictures(found)
    assert [picture.name for picture in (quality, layers)] == ["quality_against_memory", "contexts_of_layers"]
    bits, loss = quality.drawing.panels
    sizes = sorted(one.state_bytes for one in found.outcomes)
    assert sorted(size for series in bits.series for size in series.x) == sizes
    assert {y for series in bits.series for y in series.y} == {2.0, 2.01}
    assert [rule.at for rule in (*bits.rules, *loss.rules)] == [2.0, 0.1]
    bars = [one for one in loss.series if one.low is not None]
    assert len(bars) == len(found.outcomes) - 1 and bars[0].low[0] == pytest.approx(0.45)
    assert [label for one in bits.series for label in one.labels] == ["0.1", "0.1"]


def test_a_panel_for_each_line_of_a_grid_with_full_and_bank_in_all():
    for numbers_k, panels in (([1, 2], 2), ([1, 2, 3, 4], 4)):
        plot = layers_plot(comparison(policies(numbers_k, (0.1, 1.0))))
        assert len(plot.panels) == panels and plot.names == "ends"
        always = [[(one.name, one.style) for one in panel.series[:2]] for panel in plot.panels]
        assert always == [[("full", "o:"), ("bank", "o--")]] * panels


@pytest.mark.parametrize("layers", [1, 32])
@pytest.mark.parametrize("compared", [[FULL], policies([8]), policies([8], (0.1,))])
def test_any_number_of_settings_and_layers(compared, layers):
    for picture in contexts_pictures(comparison(compared, layers, error=None)):
        assert png_of(picture.drawing.figure()).startswith(b"\x89PNG") and picture.caption


@pytest.mark.parametrize(("worse", "shown"), [(0.01, 0.5), (-0.5, 1e-3), (math.nan, math.nan)])
def test_what_is_worse_better_or_not_a_number_has_its_place(worse: float, shown: float):
    plot = quality_plot(comparison(policies([8, 16]), worse=worse))
    line = next(one for one in plot.panels[1].series if one.labels)
    assert list(line.y) == pytest.approx([shown] * 2, nan_ok=True)
    assert png_of(plot.figure()).startswith(b"\x89PNG")
