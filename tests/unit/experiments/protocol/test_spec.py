from pathlib import Path

import pytest

from linnet.core.errors import UserError
from linnet.evaluation.tasks.suite import suite_spec
from linnet.experiments.protocol.spec import Protocol

SHIPPED = Path(__file__).parents[4] / "experiments"
SCORES = "scores: {suite: pldr, columns: {A: piqa}}"


def load(path: Path, text: str) -> Protocol:
    path.write_text(f"title: t\nsource: s\n{text}\n")
    return Protocol.load(path)


def test_the_shipped_table_asks_the_whole_suite():
    asked = Protocol.load(SHIPPED / "pldr-table.yaml")
    suite = suite_spec("pldr")
    assert asked.scores is not None and asked.inspections
    assert sorted(asked.scores.columns.values()) == sorted([*(task.name for task in suite.tasks), *suite.averages])
    assert asked.scores.calibrations == ["identity", "random"] and asked.scores.without_kv_cache


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nothing to measure; expected at least one of scores"),
        ("scores: {suite: pldr, columns: {A: pika}}", "scores.columns.A: pika: did you mean piqa?"),
        ("scores: {suite: plrd, columns: {A: piqa}}", "scores.suite: plrd: did you mean pldr?"),
        ("scores: {suite: pldr, columns: {}}", "scores.columns"),
        (f"{SCORES}\ninspections: {{caches: {{tokens: 0}}}}", "inspections.caches: tokens: 0"),
        (f"{SCORES}\ndeduce: {{}}", "deduce: unknown key"),
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
    with pytest.raises(UserError, match="expected a mapping with some of title"):
        Protocol.load(path)
