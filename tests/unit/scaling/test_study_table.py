"""Runs from CSV files, and what is said of wrong ones."""

from pathlib import Path

import pytest

from linnet.core.errors import UserError
from linnet.scaling.study import read_run_table


@pytest.fixture
def table(tmp_path: Path):
    def make(text: str) -> Path:
        path = tmp_path / "points.csv"
        path.write_text(text)
        return path

    return make


def test_flops_and_tokens_follow_from_each_other(table):
    (by_flops,) = read_run_table(table("parameters,training_flops,loss\n1e6,6e13,3.5\n"))
    (by_tokens,) = read_run_table(table("loss,tokens,parameters\n3.5,10M,1M\n"))
    for run in (by_flops, by_tokens):
        assert run.parameters == {"total": 1e6}
        assert run.tokens_T == pytest.approx([1e7]) and run.flops_T == pytest.approx([6e13])
        assert run.loss_T.tolist() == [3.5]


@pytest.mark.parametrize("header", ["parameters ,tokens\t, loss ", "\ufeffparameters,tokens,loss"])
def test_spaces_and_a_byte_order_mark_are_no_part_of_a_columns_name(table, header: str):
    (run,) = read_run_table(table(f"{header}\n1e6,1e7,3.5\n"))
    assert run.parameters == {"total": 1e6} and run.loss_T.tolist() == [3.5]


def test_both_are_taken_as_they_are(table):
    (run,) = read_run_table(table("parameters,training_flops,tokens,loss\n1e6,9e13,1e7,3.5\n"))
    assert run.flops_T.tolist() == [9e13] and run.tokens_T.tolist() == [1e7]


def test_other_ways_of_counting_and_other_columns(table):
    text = "name, parameters,parameters_without_embedding,parameters_matrices_and_head,tokens,loss\nx,100,80,90,7,2\n"
    (run,) = read_run_table(table(text))
    assert run.parameters == {"total": 100, "without_embedding": 80, "matrices_and_head": 90}


def test_rows_of_one_run_are_its_curve_by_ascending_tokens(table):
    text = "run,parameters,tokens,loss\na,10,200,3\nb,20,100,5\na,10,100,4\n"
    first, second = read_run_table(table(text))
    assert (first.name, second.name) == ("a", "b")
    assert first.tokens_T.tolist() == [100, 200] and first.loss_T.tolist() == [4, 3]
    assert first.flops_T == pytest.approx([6000, 12000])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "column parameters is missing; found nothing"),
        ("parameters,tokens\n1,2\n", "column loss is missing; found parameters, tokens"),
        ("parameters,loss\n1,2\n", "column training_flops or tokens is missing; found parameters, loss"),
        ("parameters,tokens,loss\n", "has no rows; expected one for each run"),
        ("parameters,tokens,loss\n1,2,3\n1,2,high\n", "line 3: loss: high: expected a positive number"),
        ("parameters,tokens,loss\n1,2\n", "line 2: loss: : expected a positive number"),
        ("parameters,tokens,loss\n1,-2,3\n", "line 2: tokens: -2: expected a positive number"),
        ("run,parameters,tokens,loss\na,1,2,3\na,2,3,3\n", "run a: parameters: 2 different values, expected one"),
    ],
)
def test_a_mistake_names_line_column_and_value(text: str, message: str, table):
    path = table(text)
    with pytest.raises(UserError) as caught:
        read_run_table(path)
    assert str(caught.value).startswith(str(path)) and message in str(caught.value)
