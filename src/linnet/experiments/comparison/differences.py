"""By how much runs differ from the first, seed by seed: what the seeds have in common cancels."""

from linnet.evaluation.statistics import SIGNIFICANT, Estimate, holm_correction, paired_difference
from linnet.experiments.comparison.figures import ComparedFigures, Findings
from linnet.present import numbers
from linnet.present.table import MISSING, Table


def difference_table(findings: Findings) -> list[Table]:
    """Of each run the mean difference from the first, over the seeds that both have; none where no two are common.

    The interval is Student's; probabilities are corrected for the number of runs (Holm).
    """
    runs = [run for run in findings.runs if run.outcomes]
    found = {run.name: _difference(runs[0], run) for run in runs[1:]}
    known = {name: one for name, one in found.items() if one is not None and one.standard_error is not None}
    if not known:
        return []
    corrected = dict(zip(known, holm_correction([one.p_value() for one in known.values()]), strict=True))
    columns = [_cells(known.get(run.name), corrected.get(run.name)) for run in runs[1:]]
    labels = (f"less {runs[0].name}", "95 % interval")
    rows = [[label, *cells] for label, *cells in zip(labels, *columns, strict=True)]
    meaning = (
        f"Bits per byte less those of {runs[0].name} with the same seed (first weights, order of the text): mean ±"
        " standard error over the seeds, and the interval that holds 95 % of such experiments' truths (Student's)."
        " Few seeds make it wide. Told apart: with 5 % of any mistake among these runs (Holm)."
    )
    return [Table(f"Against {runs[0].name}", ("", *(run.name for run in runs[1:])), rows, meaning)]


def _difference(first: ComparedFigures, second: ComparedFigures) -> Estimate | None:
    broadcast_from_rank0 = {outcome.seed: outcome.bits_per_byte for outcome in first.outcomes}
    pairs = [
        (broadcast_from_rank0[one.seed], one.bits_per_byte)
        for one in second.outcomes
        if one.seed in broadcast_from_rank0
    ]
    return paired_difference(*zip(*pairs, strict=True)) if pairs else None


def _cells(one: Estimate | None, p_value: float | None) -> list[str]:
    if one is None:
        return [MISSING, MISSING]
    interval = one.interval()
    said = MISSING if interval is None else " to ".join(numbers.signed(end, 4) for end in interval)
    return [f"{numbers.signed(one.value, 4)} ± {one.standard_error:.4f}\n{_verdict(one, p_value)}", said]


def _verdict(one: Estimate, p_value: float | None) -> str:
    if p_value is None:
        return "not known"
    if p_value >= SIGNIFICANT:
        return f"not told apart, p = {p_value:.2g}"
    return f"{'better' if one.value < 0 else 'worse'}, p = {p_value:.2g}"
