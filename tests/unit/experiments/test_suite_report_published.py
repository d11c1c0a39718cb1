"""A paper's table, and own numbers beside it."""

import json
from pathlib import Path
from typing import Any

import pytest

from linnet.core.errors import UserError
from linnet.experiments.suite_report import PublishedTable, published_table

ROOT = Path(__file__).parents[3]
PLAIN: dict[str, Any] = {
    "title": "Two models",
    "source": "Somebody, arXiv 1",
    "columns": [
        {"name": "ARC-e", "metric": "arc_easy"},
        {"name": "size", "metric": "parameters"},
        {"name": "year"},
    ],
    "rows": [
        {"model": "old", "values": {"ARC-e": 31.25, "year": 2020}},
        {"model": "new", "values": {"ARC-e": 40, "size": 1000}},
    ],
}


def load(folder: Path, tasks: tuple[str, ...] = (), **changes: Any) -> PublishedTable:
    path = folder / "p.json"
    path.write_text(json.dumps({**PLAIN, **changes}))
    return PublishedTable.load(path, tasks)


def test_own_numbers_follow_published_ones_with_differences(tmp_path: Path):
    table = published_table(load(tmp_path), {"mine": {"arc_easy": 33.0, "parameters": 900}})
    assert table.columns == ("model", "ARC-e", "size", "year")
    assert [list(row) for row in table.rows] == [
        ["old", "31.25", "–", "2,020"],
        ["new", "40.00", "1,000", "–"],
        ["mine (own)", "33.00\n+1.75", "900\n-100", "–"],
    ]
    assert "Somebody, arXiv 1" in table.meaning and "the first row that has the value" in table.meaning


def test_differences_are_from_the_reference_and_unmeasured_metrics_are_named(tmp_path: Path):
    table = published_table(load(tmp_path, reference="new"), {"mine": {"arc_easy": 33.0}})
    assert table.rows[2][1:3] == ["33.00\n-7.00", "–"] and "Not measured here: parameters." in table.meaning


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": [{"name": "x", "metric": "arc_esay"}], "rows": PLAIN["rows"][:0]}, "rows"),
        ({"columns": [{"name": "ARC-e", "metric": "arc_esay"}, *PLAIN["columns"][1:]]}, "did you mean arc_easy?"),
        ({"columns": [{"name": "ARC-e", "metric": "glee"}, *PLAIN["columns"][1:]]}, "expected one of bits_per_byte, "),
        ({"rows": [{"model": "a", "values": {"ARC-c": 1}}]}, "expected names of columns: ARC-e, size, year"),
        ({"reference": "older"}, "reference: older: expected one of the rows: old, new"),
        ({"columns": [*PLAIN["columns"], {"name": "size"}]}, "expected each name once"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_in_a_line(changes: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(UserError) as refused:
        load(tmp_path, **changes)
    said = str(refused.value)
    assert "p.json" in said and message in said and "\n" not in said


def test_measured_tasks_are_metrics_too(tmp_path: Path):
    columns = [{"name": "ARC-e", "metric": "my_questions"}, *PLAIN["columns"][1:]]
    assert load(tmp_path, ("my_questions",), columns=columns).columns[0].metric == "my_questions"
    with pytest.raises(UserError, match="my_questions"):
        load(tmp_path, columns=columns)


def test_the_shipped_table_can_be_read_and_its_values_are_those_of_the_paper():
    table = PublishedTable.load(ROOT / "experiments" / "ablations" / "pldr-published.json")
    values = {row.model: row.values for row in table.rows}
    assert values["v51 104M, with caches"] == {"parameters": 104_237_120, "100 tokens, ms": 579}
    assert [values[name]["zero-shot average, %"] for name in ("learned operator", "identity")] == [38.36, 38.26]
