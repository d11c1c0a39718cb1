"""The usage of experts as a plot."""

import numpy as np

from linnet.inspection.experts.measure import ExpertUsage, LayerExpertUsage
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.present.result import Picture


def experts_pictures(found: ExpertUsage) -> list[Picture]:
    """The load of every expert, a panel for each layer."""
    caption = "How often each expert is used, over what it would be if all were used alike: the line at 1."
    plot = Plot([_panel(layer) for layer in found.layers], (4.4, 2.6), columns=min(3, len(found.layers)), shared="y")
    return [Picture("expert_usage", "Load of each expert", plot, caption)]


def _panel(layer: LayerExpertUsage) -> Panel:
    bars = Series(np.arange(len(layer.loads) + 1) - 0.5, layer.loads, style="bars")
    return Panel(Axis("expert"), Axis("load", low=0.0), [bars], f"layer {layer.layer}", [Rule(1.0)])
