"""The picture of a plan: what each law expects of other sizes for the same FLOPs."""

import numpy as np

from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Series
from linnet.present.report import Picture
from linnet.present.style import INK
from linnet.scaling.law import FLOPS_FACTOR
from linnet.scaling.plan import Plan

FACTOR, SIZES = 30.0, 121
"""How far the sizes reach to both sides of the plan's, and how many are drawn."""


def plan_pictures(plan: Plan) -> list[Picture]:
    """The loss over the size, at the plan's FLOPs."""
    drawn, flops = [], plan.allocation.flops
    for number, one in enumerate(plan.predictions):
        here = plan.counts.by_name()[one.law.counted]
        sizes = np.geomspace(here / FACTOR, here * FACTOR, SIZES)
        losses = one.law.loss(sizes, flops / (FLOPS_FACTOR * sizes))
        best = one.law.loss(one.best.parameters, one.best.tokens)
        name = f"{one.law.name}, {one.law.counted.replace('_', ' ')}"
        drawn += [
            Series(sizes, losses, name, colour=number),
            Series([here], [one.loss], style="o", colour=number),
            Series([one.best.parameters], [best], style="x", colour=number, large=True),
        ]
    drawn += [Series([], [], "the plan", "o", INK), Series([], [], "the law's own best size", "x", INK, large=True)]
    x = Axis("parameters, as the law counts them", "log", numbers.metric)
    caption = (
        f"The loss that each law gives for {numbers.scientific(flops)} training FLOPs, spent on models of other sizes."
        " The flatter the valley, the less the size matters. Heights are not comparable between laws: their tokenizers"
        " differ. kaplan's best size is not the lowest point of its curve: the two are separate fits."
    )
    plot = Plot([Panel(x, Axis("loss, nats per token of the law's text"), drawn)])
    return [Picture("plan", "Other sizes for the same FLOPs", plot, caption)]
