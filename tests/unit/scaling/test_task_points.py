"""Where a task's accuracies come from: tables, and what comparisons record."""

import json
from pathlib import Path
from typing import Any

import pytest

from linnet.core.checksum import with_checksum
from linnet.core.errors import UserError
from linnet.scaling.task_points import read_task_points

HEAD = "parameters,tokens,loss,right,items,chance"


def write(path: Path, *rows: str, head: str = HEAD) -> Path:
    path.write_text("\n".join([head, *rows]))
    return path


def test_a_table_has_a_run_in_each_row(tmp_path: Path):
    found = read_task_points([write(tmp_path / "a.csv", "10,20,3.5,0,100,0.25", "30,40,2.5,1,50,0.25")])
    assert found.right_P.tolist() == [0.0, 1.0] and found.items_P.tolist() == [100, 50] and found.chance == 0.25
    assert found.ends.flops.tolist() == [6 * 10 * 20, 6 * 30 * 40] and found.ends.loss.tolist() == [3.5, 2.5]
    flops = write(tmp_path / "b.csv", "10,1200,3,0.5,9,0", head=HEAD.replace("tokens", "training_flops"))
    by_flops = read_task_points([flops])
    assert by_flops.ends.tokens.tolist() == [20] and by_flops.chance == 0


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["10,20,3,1.5,9,0.1"], "a.csv, line 2: right: 1.5: expected a share from 0 to 1"),
        (["10,20,3,0.5,9,0.1", "10,20,3,0.5,9,0.2"], "chance: 0.1, 0.2: expected one, that of a single task"),
        (["10,20,3,none,9,0.1"], "a.csv, line 2: right: none"),
        (["10,20,3,1,9,1"], "chance: 1: expected less"),
        ([], "chance: none: expected one"),
    ],
)
def test_tables_that_are_wrong_are_refused(tmp_path: Path, rows: list[str], said: str):
    with pytest.raises(UserError) as refused:
        read_task_points([write(tmp_path / "a.csv", *rows)])
    assert said in str(refused.value)


def comparison(folder: Path, **ability: Any) -> Path:
    about = {"parameters": 1000, "tokens": 500, "training_flops": 4e6}
    measured = {"ability": {**ability, "items": 200}}
    rows = [
        {"run": "small", "seed": n, "measure": measure, "values": values}
        for n in (0, 1)
        for measure, values in (("training", about), ("likelihood", {"nats_per_token": 1.5 + n}), ("ability", measured))
    ]
    rows.append({"run": "large", "seed": 0, "measure": "training", "status": "diverged", "values": {"step": 3}})
    folder.mkdir()
    (folder / "results.jsonl").write_text("".join(f"{json.dumps(with_checksum(row))}\n" for row in rows))
    return folder


def test_every_seed_of_a_comparison_is_a_point(tmp_path: Path):
    measured = {"right": 0.25, "chance": 0.05, "symbols_right": 0.5, "symbols_chance": 0.2}
    folder = comparison(tmp_path / "a", **measured)
    found = read_task_points([folder])
    assert found.ends.loss.tolist() == [1.5, 2.5] and found.right_P.tolist() == [0.25] * 2 and found.chance == 0.05
    assert (found.ends.parameters[0], found.ends.tokens[0], found.ends.flops[0], found.items_P[0]) == (
        1000, 500, 4e6, 200
    )  # fmt: skip
    assert read_task_points([folder], "symbols").chance == 0.2
    with pytest.raises(UserError, match="small: has no accuracy final; expected one of whole, symbols"):
        read_task_points([folder], "final")
    with pytest.raises(UserError, match="has no accuracy whole; expected a comparison on an ability"):
        read_task_points([comparison(tmp_path / "b")])


def test_what_is_neither_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="no such file or folder; expected a CSV file, or folders of comparisons"):
        read_task_points([tmp_path / "none"])
    with pytest.raises(UserError, match=r"no results.jsonl; expected the folder of a finished `linnet compare`"):
        read_task_points([tmp_path])
    table = write(tmp_path / "a.csv", "10,20,3,0.5,9,0.1")
    with pytest.raises(UserError, match="one CSV file, or folders of comparisons; not several and not both"):
        read_task_points([table, table])
