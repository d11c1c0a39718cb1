"""Runs from tables and from the folders of `linnet train`, and their ends as points."""

from pathlib import Path

import numpy as np
import pytest
from known_laws import TRUTH, small_model, write_run_folder

from linnet.core.errors import UserError
from linnet.data.prepare import prepare_texts
from linnet.model.cost import model_cost
from linnet.scaling.candidate import parameter_counts
from linnet.scaling.runs import Points, Run, check_counting, countings, read_run_table, read_runs, without_highest
from linnet.training.run import train_run
from linnet.training.spec import RunSpec


def run(name: str, loss: float, **parameters: float) -> Run:
    return Run(name, parameters, np.array([1.0, 2.0]), np.array([6.0, 12.0]), np.array([9.0, loss]))


RUNS = [run("a", 3.0, total=10.0), run("b", 5.0, total=20.0, matrices_and_head=15.0), run("c", 4.0, total=30.0)]


def test_points_are_the_ends_of_the_runs():
    points = Points.of(RUNS, "total")
    assert points.parameters.tolist() == [10, 20, 30]
    assert points.tokens.tolist() == [2, 2, 2] and points.flops.tolist() == [12, 12, 12]
    assert points.loss.tolist() == [3, 5, 4]
    assert len(points) == 3
    assert points[np.array([2, 0])].loss.tolist() == [4, 3]


def test_the_highest_losses_are_dropped_and_the_order_stays():
    assert [one.name for one in without_highest(RUNS, 1)] == ["a", "c"]
    assert without_highest(RUNS, 0) == RUNS
    with pytest.raises(UserError, match="drop_highest: 3: must be less than the number of runs, 3"):
        without_highest(RUNS, 3)


def test_only_what_is_known_for_all_runs_can_be_counted():
    assert countings(RUNS) == ["total"]
    assert countings(RUNS[1:2]) == ["total", "matrices_and_head"]
    check_counting(RUNS, "total")
    with pytest.raises(UserError, match=r"counted: matrices_and_head: a does not state .* known for all runs: total"):
        check_counting(RUNS, "matrices_and_head")


def test_a_trained_run_has_its_size_tokens_flops_and_curve(tmp_path: Path):
    train_texts = ["the bird sang to the tree. " * 4] * 20
    prepare_texts(train_texts, ["the tree was glad of it. "] * 6, tmp_path / "data", tokenizer="bytes")
    training = {"steps": 6, "batch_size": 2, "threads": 1, "evaluate": {"every": 2, "tokens": 64}}
    plain = {"model": small_model(8), "data": tmp_path / "data", "training": training}
    result = train_run(RunSpec.parse(plain, "test"), tmp_path / "run")
    study = read_runs([tmp_path / "run"])
    (run,) = study.runs
    assert run.parameters["total"] == result.summary["parameters"]
    assert run.tokens_T.tolist() == [2 * 2 * 16, 4 * 2 * 16, 6 * 2 * 16]
    forward = model_cost(small_model(8)).flops_per_token(16, with_head=True)
    assert run.flops_T == pytest.approx(3 * forward * run.tokens_T)
    assert run.loss_T[-1] == result.summary["validation"]["nats_per_token"]
    assert len(set(run.loss_T.tolist())) == 3
    assert study.bytes_per_token == result.summary["validation"]["bytes"] / result.summary["validation"]["tokens"]


def test_all_runs_are_read_with_their_bytes_per_token(tmp_path: Path):
    folders = [write_run_folder(tmp_path / f"{w}", small_model(w), [500, 1000]) for w in (8, 16)]
    study = read_runs(folders)
    assert [run.name for run in study.runs] == [str(folder) for folder in folders]
    assert study.bytes_per_token == 2.5
    for run, width in zip(study.runs, (8, 16), strict=True):
        assert run.parameters == parameter_counts(small_model(width)).by_name()
        assert run.loss_T == pytest.approx(TRUTH.loss(run.parameters["total"], np.array([500, 1000])))


def test_a_run_with_experts_counts_what_one_token_uses_with_a_note(tmp_path: Path):
    dense = small_model(8)
    feed_forward = {"kind": "experts", "experts": 4, "top_k": 1, "hidden": 16}
    blocks = [{**block.model_dump(), "feed_forward": feed_forward} for block in dense.blocks]
    folder = write_run_folder(tmp_path / "experts", dense.replace(blocks=blocks), [500, 1000])
    study = read_runs([write_run_folder(tmp_path / "dense", dense, [500, 1000]), folder])
    cost = model_cost(dense.replace(blocks=blocks))
    assert study.runs[1].parameters["total"] == cost.active_parameters < cost.parameters
    (line,) = study.partly_used
    assert line.startswith(f"{folder}: ") and line.endswith("parameters are used by one token; these are counted")


def test_a_csv_file_has_no_bytes_per_token(tmp_path: Path):
    path = tmp_path / "points.csv"
    path.write_text("parameters,tokens,loss\n10,20,3\n")
    study = read_runs([path])
    assert len(study.runs) == 1 and study.bytes_per_token is None
    with pytest.raises(UserError, match="one CSV file, or folders of runs; not several and not both"):
        read_runs([path, path])


def test_a_folder_without_a_finished_run_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"not the folder of a run \(no config.yaml\), nor one with runs/ in it$"):
        read_runs([tmp_path])
    folder = write_run_folder(tmp_path / "half", small_model(8), [100], finished=False)
    with pytest.raises(UserError, match=r"half: .*not finished"):
        read_runs([folder])
    with pytest.raises(UserError, match=r"^.*nothing.csv: no such file or folder; expected a CSV file, or folders"):
        read_runs([folder, tmp_path / "nothing.csv"])


def test_each_finished_run_of_a_comparison_is_read_once(tmp_path: Path):
    inner = [
        write_run_folder(tmp_path / "pldr" / "runs" / f"{name}-seed-0", small_model(width), [100])
        for name, width in (("a", 8), ("b", 16))
    ]
    alone = write_run_folder(tmp_path / "alone", small_model(24), [100])
    study = read_runs([alone, tmp_path / "pldr", inner[1]])
    assert [run.name for run in study.runs] == [str(path) for path in (alone, *inner)]
    assert study.left_out == []
    assert [run.name for run in read_runs([tmp_path / "pldr"]).runs] == [str(path) for path in inner]


def test_among_several_paths_those_without_a_finished_run_are_left_out_with_the_reason(tmp_path: Path):
    runs = tmp_path / "pldr" / "runs"
    whole = write_run_folder(runs / "whole-seed-0", small_model(8), [100])
    half = write_run_folder(tmp_path / "half", small_model(8), [100], finished=False)
    lost = write_run_folder(runs / "lost-seed-0", small_model(8), [100], finished=False)
    (lost / "diverged.json").write_text('{"step": 3, "reason": "loss is nan"}')
    blind = write_run_folder(tmp_path / "blind", small_model(8), [100], validation=None)
    (tmp_path / "report").mkdir()
    (tmp_path / "law.json").write_text("{}")
    study = read_runs([blind, half, tmp_path / "law.json", tmp_path / "pldr", tmp_path / "report"])
    assert [run.name for run in study.runs] == [str(whole)]
    reasons = dict(line.split(": ", 1) for line in study.left_out)
    assert list(reasons) == [str(p) for p in (blind, half, tmp_path / "law.json", lost, tmp_path / "report")]
    assert "never evaluated" in reasons[str(blind)] and "not finished" in reasons[str(half)]
    assert "diverged" in reasons[str(lost)]
    assert "not the folder of a run" in reasons[str(tmp_path / "report")] and reasons[str(tmp_path / "law.json")]


def test_an_error_names_the_folder_if_no_run_remains(tmp_path: Path):
    for name in ("a", "b"):
        write_run_folder(tmp_path / "pldr" / "runs" / name, small_model(8), [100], finished=False)
    message = r"pldr: no finished run among 2 paths; the first: .*a: the run is not finished"
    with pytest.raises(UserError, match=message):
        read_runs([tmp_path / "pldr"])
    (tmp_path / "empty" / "runs").mkdir(parents=True)
    with pytest.raises(UserError, match=r"empty: no run in it$"):
        read_runs([tmp_path / "empty"])
    with pytest.raises(UserError, match=r"points.csv: one CSV file, or folders of runs; not several and not both"):
        (tmp_path / "points.csv").write_text("parameters,tokens,loss\n10,20,3\n")
        read_runs([tmp_path / "pldr", tmp_path / "points.csv"])


@pytest.mark.parametrize(("field", "what"), [("tokenizer_hash", "tokenizer"), ("manifest_sha256", "data folder")])
def test_runs_on_other_text_are_not_comparable(tmp_path: Path, field: str, what: str):
    data = {"path": "data", "manifest_sha256": "d" * 64, "tokenizer_hash": "t" * 64}
    first = write_run_folder(tmp_path / "first", small_model(8), [100])
    other = write_run_folder(tmp_path / "other", small_model(8), [100], data={**data, field: "x"})
    with pytest.raises(UserError, match=f"other: another {what} than .*first: their losses are not comparable"):
        read_runs([first, other])
    (tmp_path / "pldr" / "runs").mkdir(parents=True)
    other.rename(tmp_path / "pldr" / "runs" / "x-seed-0")
    with pytest.raises(UserError, match=f"pldr/runs/x-seed-0: another {what} than .*first: "):
        read_runs([first, tmp_path / "pldr"])


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


def test_flops_and_tokens_of_a_table_are_both_used(table):
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
