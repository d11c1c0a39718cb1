"""`linnet compare` as its help and its documentation say it."""

import itertools
import re
import shlex
from pathlib import Path

import pytest

from linnet.cli.compare import compare
from linnet.experiments.comparison.spec import ComparisonSpec

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = re.findall(r"Example: linnet compare (.+)", compare.__doc__ or "")


@pytest.mark.parametrize("example", [example for example in EXAMPLES if ".yaml" in example])
def test_the_examples_of_its_help_describe_comparisons(example: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(REPOSITORY)
    file, *options = shlex.split(example)
    changes = [value for option, value in itertools.pairwise(options) if option == "--set"]
    spec = ComparisonSpec.load(file, changes)
    steps = {spec.run_of(run, 0, Path("data")).steps for run in spec.runs}
    assert steps == {100 if changes else 2400}


def test_its_help_has_examples():
    assert sum(".yaml" in example for example in EXAMPLES) == 3
