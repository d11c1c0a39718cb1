"""`linnet.compare`: several models on the same text with several seeds, from Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnet.experiments.comparison.figures import Findings
from linnet.experiments.comparison.run import compare as carry_out
from linnet.experiments.comparison.spec import ComparisonSpec
from linnet.experiments.runner import Runner, Say


def compare(comparison: str | Path | Mapping[str, Any], out: str | Path, say: Say | None = None) -> Findings:
    """Train every run with every seed, and evaluate all alike, causally; `.plain()` of the result are the figures.

    comparison: a YAML file, or its plain data: text, tokenizer, model, training, seeds, runs (docs/comparison.md).
    out: the folder to make or to go on with; it gets comparison.json, curves.png, the prepared text and every run.
    say: hears of what begins. Raises `UserError` that names the field that is wrong.
    """
    if isinstance(comparison, Mapping):
        spec, origin = ComparisonSpec.parse(dict(comparison), "comparison"), "comparison"
    else:
        spec, origin = ComparisonSpec.load(comparison), str(comparison)
    return carry_out(spec, out, Runner(say or (lambda line: None)), origin)
