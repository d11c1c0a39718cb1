from pathlib import Path

import pytest

from linnet.core.errors import UserError
from linnet.evaluation.tasks.suite import suite_spec
from linnet.experiments.suite import Suite

SHIPPED = Path(__file__).parents[3] / "experiments"
SCORES = "scores: {suite: pldr, columns: {A: piqa}}"


def load(path: Path, text: str) -> Suite:
    path.write_text(f"name: t\nsource: s\nmeasures: {{{text}}}\n")
    suite = Suite.load(path)
    suite.measures.check(f"{path}: measures")
    return suite


def test_the_shipped_table_asks_the_whole_suite():
    asked = Suite.load(SHIPPED / "pldr-table.yaml").measures
    suite = suite_spec("pldr")
    assert asked.scores is not None and asked.inspections
    assert sorted(asked.scores.columns.values()) == sorted([*(task.name for task in suite.tasks), *suite.averages])
    assert asked.scores.calibrations == ["identity", "random"] and asked.scores.without_kv_cache


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "runs: missing; expected runs to train, or measures of finished models (scores"),
        ("scores: {suite: pldr, columns: {A: pika}}", "scores.columns.A: pika: did you mean piqa?"),
        ("scores: {suite: plrd, columns: {A: piqa}}", "scores.suite: plrd: did you mean pldr?"),
        ("scores: {suite: pldr, columns: {}}", "scores.columns"),
        (f"{SCORES}, inspections: {{caches: {{tokens: 0}}}}", "inspections.caches: tokens: 0"),
        (f"{SCORES}, deduce: {{}}", "deduce: unknown key"),
    ],
)
def test_a_mistake_is_one_line(text, message, tmp_path):
    path = tmp_path / "p.yaml"
    with pytest.raises(UserError, match="^" + str(path)) as caught:
        load(path, text)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_of_something_else(tmp_path):
    path = tmp_path / "list.yaml"
    path.write_text("[1]")
    with pytest.raises(UserError, match="expected a mapping with text, model, runs"):
        Suite.load(path)
