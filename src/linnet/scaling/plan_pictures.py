"""The picture of a plan: what each law expects of other sizes for the same FLOPs."""

from linnet.present.drawing import new_figure, png_of
from linnet.present.report import Picture
from linnet.scaling.law import FLOPS_FACTOR
from linnet.scaling.plan import Plan

FACTOR, SIZES = 30.0, 121
"""How far the sizes reach to both sides of the plan's, and how many are drawn."""


def plan_pictures(plan: Plan) -> list[Picture]:
    """The loss over the size, at the plan's FLOPs."""
    import numpy as np

    figure = new_figure(8.0, 5.0)
    axes = figure.subplots()
    flops = plan.allocation.flops
    for number, one in enumerate(plan.predictions):
        here = plan.counts.by_name()[one.law.counted]
        sizes = np.geomspace(here / FACTOR, here * FACTOR, SIZES)
        losses = one.law.loss(sizes, flops / (FLOPS_FACTOR * sizes))
        axes.plot(sizes, losses, color=f"C{number}", label=f"{one.law.name}, {one.law.counted.replace('_', ' ')}")
        axes.plot([here], [one.loss], "o", color=f"C{number}")
        axes.plot([one.best.parameters], [one.law.loss(one.best.parameters, one.best.tokens)], "x", color=f"C{number}")
    axes.plot([], [], "o", color="black", label="the plan")
    axes.plot([], [], "x", color="black", label="the law's own best size")
    axes.set_xscale("log")
    axes.set_xlabel("parameters, as the law counts them")
    axes.set_ylabel("loss, nats per token of the law's text")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    caption = (
        f"The loss that each law gives for {flops:.3g} training FLOPs, spent on models of other sizes. The flatter the"
        " valley, the less the size matters. Heights are not comparable between laws: their tokenizers differ."
        " kaplan's best size is not the lowest point of its curve: the two are separate fits."
    )
    return [Picture("plan", "Other sizes for the same FLOPs", png_of(figure), caption)]
