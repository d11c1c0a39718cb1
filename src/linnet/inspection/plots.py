"""The pictures of each inspection, with what can be seen in them."""

from linnet.inspection.causality import Causality, Moves
from linnet.inspection.invariance import Invariance
from linnet.inspection.operator_figures import OperatorFigures
from linnet.inspection.pictures import (
    SHOWN_PERCENTILE,
    heat_maps,
    moved_logits,
    singular_value_curves,
    variation_points,
)
from linnet.layers.registry import operator_files
from linnet.model.watched import Operators
from linnet.present.report import Picture

SEEN = {
    "A": "Paper: rank one, all rows equal, so it shows vertical stripes and nothing else.",
    "A_LM": "Never negative. Paper: singular.",
    "A_P": "The powers of A_LM: never negative, 1 where the power is 0.",
    "G": "The operator between query and key. The identity, a bare diagonal, would be plain attention.",
}


def operator_pictures(found: OperatorFigures, layers: Operators) -> list[Picture]:
    """A heat map of each deductive output, and the singular values of A_LM."""
    scale = (
        f"A row for each layer, with its own scale; {100 - SHOWN_PERCENTILE:g} % of the elements are beyond its end."
    )
    pictures = []
    for name in operator_files().names:
        having = {n: layer[name].double().cpu().numpy() for n, layer in enumerate(layers) if name in layer}
        if having:
            pictures.append(Picture(name, name, heat_maps(name, having), f"{SEEN[name]} {scale}"))
    for one in found.outputs:
        if one.name == "A_LM":
            curves = singular_value_curves({layer.layer: layer.singular_HK for layer in one.layers})
            caption = "A matrix is singular where its line ends in a cliff: the last values are nothing but rounding."
            pictures.append(Picture("singular_values", "Singular values of A_LM", curves, caption))
    return pictures


def causality_pictures(found: Causality) -> list[Picture]:
    """The moves over the position."""
    png = moved_logits(_by_cut(found.whole_sequence), _by_cut(found.frozen))
    caption = (
        "Solid: the pass over the whole sequence, as in training. Dotted: with a frozen operator. A causal model's"
        " lines lie on 0. The first token attends to itself alone, so no operator moves its logits."
    )
    return [Picture("moved_logits", "Moved logits over the position", png, caption)]


def invariance_pictures(found: Invariance) -> list[Picture]:
    """The variation of each output in each layer."""
    variation = {one.name: {layer: of.rms for layer, of in one.layers.items()} for one in found.outputs}
    caption = (
        "RMS over the prompts, in terms of the mean's size; logarithmic. The lower, the less the operator depends"
        " on the text. No point: it does not vary at all."
    )
    return [Picture("variation", "Variation of each layer", variation_points(variation), caption)]


def _by_cut(moves: Moves) -> dict[int, list[float]]:
    return {cut.cut: cut.rms_by_position for cut in moves.cuts}
