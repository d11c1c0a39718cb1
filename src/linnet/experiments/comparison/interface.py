"""`linnet.compare`: several models on the same text with several seeds, from Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnet.experiments.comparison.figures import Findings
from linnet.experiments.comparison.page import published_for, side_by_side
from linnet.experiments.comparison.run import compare as carry_out
from linnet.experiments.comparison.spec import ComparisonSpec
from linnet.experiments.runner import Runner, Say
from linnet.experiments.side_by_side.report import write_report


def compare(
    comparison: str | Path | Mapping[str, Any],
    out: str | Path,
    say: Say | None = None,
    against: str | Path | None = None,
) -> Findings:
    """Train every run with every seed, and evaluate all alike, causally; `.to_dict()` of the result are the figures.

    comparison: a YAML file, or its plain data: text, tokenizer, model, training, seeds, runs (docs/comparison.md).
    out: the folder to make or to go on with; it gets the page (report.html), the Markdown table (report.md),
    comparison.json, curves.png, the prepared text and every run. say: hears of what begins. against: a JSON file with a
    paper's table, beside which own numbers stand on the page. Raises `UserError` that names the field that is wrong.
    """
    if isinstance(comparison, Mapping):
        spec, origin = ComparisonSpec.parse(dict(comparison), "comparison"), "comparison"
    else:
        spec, origin = ComparisonSpec.load(comparison), str(comparison)
    published = published_for(against, spec.evaluate)
    findings = carry_out(spec, out, Runner(say or (lambda line: None)), origin)
    write_report(side_by_side(findings, published), Path(out), "linnet.compare")
    return findings
