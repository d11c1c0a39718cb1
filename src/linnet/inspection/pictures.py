"""The pictures of each inspection, with what can be seen in them."""

import math
from collections.abc import Mapping, Sequence

from linnet.inspection.causality import Causality, LogitChanges
from linnet.inspection.invariance import Invariance
from linnet.inspection.operator_figures import OperatorFigures
from linnet.layers.registry import operator_files
from linnet.model.watched import Operators
from linnet.present import numbers
from linnet.present.plot import COLOR_PERCENTILE, Axis, HeatMaps, Panel, Plot, Rule, Series
from linnet.present.result import Picture
from linnet.present.style import INK

SEEN = {
    "A": "Paper: rank one, all rows equal, so it shows vertical stripes and nothing else.",
    "A_LM": "Never negative. Paper: singular.",
    "A_P": "The powers of A_LM: never negative, 1 where the power is 0.",
    "G": "The operator between query and key. The identity, a bare diagonal, would be plain attention.",
}


def operator_pictures(found: OperatorFigures, layers: Operators) -> list[Picture]:
    """A heat map of each deductive output, and the singular values of A_LM."""
    scale = (
        f"A row for each layer, with its own scale; {100 - COLOR_PERCENTILE:g} % of the elements are beyond its end."
    )
    pictures = []
    for name in operator_files().names:
        having = {n: layer[name].double().cpu().numpy() for n, layer in enumerate(layers) if name in layer}
        if having:
            widths = " and ".join(f"{width} x {width}" for width in sorted({x.shape[1] for x in having.values()}))
            title = f"{name} of every head, {widths}"
            pictures.append(Picture(name, title, HeatMaps(having), f"{SEEN[name]} {scale}"))
    for one in found.outputs:
        if one.name == "A_LM":
            curves = singular_values({layer.layer: layer.singular_HK for layer in one.layers})
            caption = (
                "A line for each head. A matrix is singular where its line ends in a cliff: the last values are"
                " nothing but rounding."
            )
            pictures.append(Picture("singular_values", "Singular values of A_LM", curves, caption))
    return pictures


def singular_values(singular_LHK: Mapping[int, Sequence[Sequence[float]]]) -> Plot:
    """Singular values `[H, K]`, descending, of each layer by its number: a panel for a layer, a line for a head."""
    x, y = Axis("singular value, largest first"), Axis("", "log", numbers.scientific)
    panels = [
        Panel(x, y, [_positive(range(1, len(values) + 1), values, head) for head, values in enumerate(heads)], title)
        for title, heads in ((f"layer {number}", heads) for number, heads in singular_LHK.items())
    ]
    return Plot(panels, (4.4, 3.2), columns=min(3, len(panels)), shared="y")


def causality_pictures(found: Causality) -> list[Picture]:
    """The moves over the position."""
    caption = (
        "How far a change of the text to come moves earlier logits. Solid: the pass over the whole sequence, as in"
        " training. Dotted: with a frozen operator. A causal model's lines lie on 0. The first token attends to itself"
        " alone, so no operator moves its logits."
    )
    plot = moved_logits(_by_cut(found.whole_sequence), _by_cut(found.frozen))
    return [Picture("moved_logits", "Moved logits over the position", plot, caption)]


def moved_logits(whole: Mapping[int, Sequence[float]], frozen: Mapping[int, Sequence[float]]) -> Plot:
    """LogitChanges over the position, by the cut from which the text was changed."""
    drawn, cuts = [], []
    for number, (cut, moves) in enumerate(whole.items()):
        drawn.append(Series(range(len(moves)), moves, f"changed from token {cut} on", color=number))
        drawn.append(Series(range(cut), frozen[cut], style=":", color=number))
        cuts.append(Rule(cut, style=":", color=number, upright=True))
    drawn.append(Series([], [], "the same with a frozen operator", ":", INK))
    x = Axis("position in the window, tokens", low=0)
    return Plot([Panel(x, Axis("RMS move of the logits, standard deviations", low=0), drawn, rules=cuts)])


def invariance_pictures(found: Invariance) -> list[Picture]:
    """The variation of each output in each layer."""
    variation = {one.name: {layer: of.rms for layer, of in one.layers.items()} for one in found.outputs}
    caption = (
        "RMS over the prompts, in terms of the mean's size; logarithmic. The lower, the less the operator depends"
        " on the text. No point: it does not vary at all."
    )
    return [Picture("variation", "Variation of each layer", variation_points(variation), caption)]


def variation_points(variation: Mapping[str, Mapping[int, float]]) -> Plot:
    """The variation of each deductive output, by name and number of the layer; none where it is 0."""
    layers = sorted({number for by_layer in variation.values() for number in by_layer})
    drawn = [
        _positive(list(by_layer), list(by_layer.values()), number, name, "o-")
        for number, (name, by_layer) in enumerate(variation.items())
    ]
    x = Axis("layer", places={number: str(number) for number in layers})
    y = Axis("variation over the prompts, RMS", "log", numbers.scientific)
    return Plot([Panel(x, y, drawn)], (max(6.0, 0.4 * len(layers) + 3), 4.4))


def _positive(x: Sequence[int], y: Sequence[float], color: int, name: str = "", style: str = "-") -> Series:
    """Without what has no place on a logarithmic axis."""
    return Series(x, [value if value > 0 else math.nan for value in y], name, style, color)


def _by_cut(moves: LogitChanges) -> dict[int, list[float]]:
    return {cut.cut: cut.rms_by_position for cut in moves.cuts}
