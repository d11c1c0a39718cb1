"""The figures of an inspection as rows of text, with what to look for: the same in a terminal and on a page."""

import math
from collections.abc import Callable, Iterable, Sequence

from linnet.inspection.caches import CacheComparison, CacheRun
from linnet.inspection.causality import Causality, CutChange, LogitChanges
from linnet.inspection.invariance import Invariance, Variation
from linnet.inspection.matrices import power_of_ten
from linnet.inspection.operator_figures import OperatorFigures, OutputFigures
from linnet.present import numbers
from linnet.present.table import Table

DIGITS, ALL_DIGITS = 6, 15


def number(value: float | None, missing: str = "none", digits: int = DIGITS) -> str:
    """So many significant digits; `missing` for what there is not, words for what is not finite."""
    if value is None:
        return missing
    return f"{value:.{digits}g}" if math.isfinite(value) else "not finite" if math.isnan(value) else "infinite"


def determinant(log10: float, digits: int = DIGITS) -> str:
    """A |det| by its logarithm: a number where it is one, else the power of ten that it over- or underflows as."""
    if math.isnan(log10):
        return "not finite"
    value = power_of_ten(log10)
    if value is None:
        return f"overflow, 10^{log10:.{digits}g}"
    return f"{value:.{digits}g}" if value > 0 or log10 == -math.inf else f"underflow, 10^{log10:.{digits}g}"


def operator_tables(found: OperatorFigures) -> list[Table]:
    """All outputs together; then A, the singular values of A_LM, where there are these."""
    outputs = {one.name: one for one in found.outputs}
    tables = [_outputs_table(found)]
    if "A" in outputs:
        tables.append(_rank_one_table(outputs["A"]))
    if "A_LM" in outputs:
        tables.append(_singular_table(outputs["A_LM"]))
    return tables


def _outputs_table(found: OperatorFigures) -> Table:
    rows: list[Sequence[str]] = []
    for one in found.outputs:
        ranks = [rank for layer in one.layers for rank in layer.ranks]
        rows.append((one.name, number(one.rmse, "one head"), determinant(one.determinant.log10), _span(ranks)))
        for layer in one.layers:
            rmse, log10 = layer.between_heads.rmse, layer.determinant.log10
            rows.append((f"  layer {layer.layer}", number(rmse, "one head"), determinant(log10), _span(layer.ranks)))
    return Table(
        "Deductive outputs",
        ("", "RMSE between heads", "largest |det|", "rank"),
        rows,
        "RMSE: how much the heads of a layer differ. Determinants in float64. Rank: singular values above"
        f" {found.rank_tolerance:.2g} of the largest, over the heads. Paper: A is rank one, A_LM is singular.",
    )


def _rank_one_table(a: OutputFigures) -> Table:
    rows = []
    for layer in a.layers:
        assert layer.eigen is not None
        radii = layer.eigen.radii
        head = max(range(len(radii)), key=lambda i: -math.inf if math.isnan(radii[i]) else radii[i])
        value = layer.eigen.eigenvalues[head]
        said = number(value.real) if value.imag == 0 else f"{number(value.real)} ± {number(abs(value.imag))}i"
        sums = number(layer.eigen.row_sums[head]), number(layer.eigen.between_rows.rmse)
        rows.append((f"layer {layer.layer}, head {head}", number(radii[head]), said, *sums))
    return Table(
        "A: is it rank one?",
        ("", "spectral radius", "largest eigenvalue", "mean row sum", "RMSE between rows, all heads"),
        rows,
        "The head of largest spectral radius in each layer. Paper: all rows of A are equal up to about 1e-9, so its"
        " one eigenvalue that is not zero is close to its row sum.",
    )


def _singular_table(a_lm: OutputFigures) -> Table:
    rows = [(f"layer {layer.layer}", *map(number, layer.singular_ends)) for layer in a_lm.layers]
    return Table(
        "A_LM: singular values",
        ("", "largest", "smallest", "condition number"),
        rows,
        "Over the heads of a layer; the condition number is the worst head's. Paper: A_LM is singular. The JSON has all"
        " of them.",
    )


def causality_tables(found: Causality) -> list[Table]:
    """The moves at each cut and over all, and the leak."""
    whole, frozen = found.whole_sequence, found.frozen
    rows = [
        (f"changed from token {one.cut} on", *_move(one), *_move(other))
        for one, other in zip(whole.cuts, frozen.cuts, strict=True)
    ]
    rows.append(("all", *_move(whole), *_move(frozen)))
    moved = Table(
        "Moved logits",
        ("text", "whole sequence: largest", "RMS", "frozen: largest", "RMS"),
        rows,
        f"How far the logits before the change move, in their own standard deviations, over {found.windows} windows of"
        f" {numbers.grouped(found.tokens)} tokens. 0 for a causal model; for any model with a frozen operator.",
    )
    return [moved, _leak_table(found)]


def _leak_table(found: Causality) -> Table:
    evaluation = found.evaluation
    rows = [("causal", f"{evaluation.causal.bits_per_byte:.4f}")]
    if evaluation.whole_sequence is not None:
        rows.append(("whole sequence, sees the future", f"{evaluation.whole_sequence.bits_per_byte:.4f}"))
    rows.append(("leak", "none" if evaluation.leak is None else numbers.signed(evaluation.leak, 4)))
    return Table(
        "Leak",
        ("", "bits per byte"),
        rows,
        f"What seeing the future gains, on {numbers.grouped(evaluation.causal.tokens)} tokens; see `linnet evaluate`.",
    )


def invariance_tables(found: Invariance) -> list[Table]:
    """The variation of each output over all layers, and of each layer."""
    rows: list[Sequence[str]] = []
    for one in found.outputs:
        rows.append((one.name, *_variation(one.overall)))
        rows += [(f"  layer {layer}", *_variation(variation)) for layer, variation in one.layers.items()]
    return [
        Table(
            "Variation over prompts",
            ("", "RMS", "largest"),
            rows,
            f"||X - mean|| / ||mean|| over {found.prompts} prompts of {found.tokens} tokens (Frobenius norms). Paper:"
            " the operator of a trained model hardly depends on the text. 0: not at all.",
        )
    ]


def caches_tables(found: CacheComparison) -> list[Table]:
    """The text of each setting, and the deductive outputs that it ended with, a column for each."""
    return [
        _texts_table(found),
        _outputs_by_setting(
            found,
            "RMSE between heads",
            lambda run, one: number(one.rmse, "one head", ALL_DIGITS),
            "Of the outputs as last deduced: from the text but its last token without any cache, else from the prompt."
            " Paper: the same to about 15 digits.",
        ),
        _outputs_by_setting(
            found,
            "Largest |det|",
            lambda run, one: determinant(one.determinant.log10),
            "In float64. Of a matrix that is nearly singular the determinant is rounding, and not to be compared.",
        ),
        _outputs_by_setting(
            found,
            "Distance",
            lambda run, one: number(run.distances[one.name]),
            "From the outputs with both caches, in terms of their size: how much the operator would change with the"
            " text that has been written.",
        ),
    ]


def _outputs_by_setting(
    found: CacheComparison, title: str, cell: Callable[[CacheRun, OutputFigures], str], meaning: str
) -> Table:
    names = [one.name for one in found.runs[0].outputs]
    rows = [(run.caches.label, *(cell(run, one) for one in run.outputs)) for run in found.runs]
    return Table(title, ("caches", *names), rows, meaning)


def _texts_table(found: CacheComparison) -> Table:
    rows = [
        (
            run.caches.label,
            numbers.grouped(len(run.ids)),
            "the same" if run.first_difference is None else f"another from token {run.first_difference + 1} on",
        )
        for run in found.runs
    ]
    return Table(
        "Text",
        ("caches", "tokens", "text"),
        rows,
        f"The prompt, {found.prompt_tokens} token{'s' * (found.prompt_tokens > 1)} with the end token before it, is"
        f" continued by the likeliest token, at most {found.max_tokens} times. Compared with both caches.",
    )


def _variation(variation: Variation) -> tuple[str, str]:
    return number(variation.rms), number(variation.largest)


def _move(moves: LogitChanges | CutChange) -> tuple[str, str]:
    return f"{moves.largest:.3g}", f"{moves.rms:.3g}"


def _span(ranks: Iterable[int | None]) -> str:
    known = [rank for rank in ranks if rank is not None]
    if not known:
        return "not finite"
    return str(min(known)) if min(known) == max(known) else f"{min(known)} to {max(known)}"
