"""Runs for a law, from the folders of `linnet train` and from tables."""

from pathlib import Path

import numpy as np
import pytest
from known_laws import TRUTH, small_model, write_run_folder

from linnet.core.errors import UserError
from linnet.data.prepare import prepare_texts
from linnet.model.cost import model_cost
from linnet.scaling.counts import parameter_counts
from linnet.scaling.study import read_study
from linnet.training.run import train_run
from linnet.training.spec import RunSpec


def test_a_trained_run_tells_its_size_tokens_flops_and_curve(tmp_path: Path):
    train_texts = ["the bird sang to the tree. " * 4] * 20
    prepare_texts(train_texts, ["the tree was glad of it. "] * 6, tmp_path / "data", tokenizer="bytes")
    training = {"steps": 6, "batch_size": 2, "threads": 1, "evaluate": {"every": 2, "tokens": 64}}
    plain = {"model": small_model(8), "data": tmp_path / "data", "training": training}
    result = train_run(RunSpec.parse(plain, "test"), tmp_path / "run")
    study = read_study([tmp_path / "run"])
    (run,) = study.runs
    assert run.parameters["total"] == result.summary["parameters"]
    assert run.tokens_T.tolist() == [2 * 2 * 16, 4 * 2 * 16, 6 * 2 * 16]
    forward = model_cost(small_model(8)).flops_per_token(16, with_head=True)
    assert run.flops_T == pytest.approx(3 * forward * run.tokens_T)
    assert run.loss_T[-1] == result.summary["validation"]["nats_per_token"]
    assert len(set(run.loss_T.tolist())) == 3
    assert study.bytes_per_token == result.summary["validation"]["bytes"] / result.summary["validation"]["tokens"]


def test_a_study_holds_all_runs_and_their_bytes_per_token(tmp_path: Path):
    folders = [write_run_folder(tmp_path / f"{w}", small_model(w), [500, 1000]) for w in (8, 16)]
    study = read_study(folders)
    assert [run.name for run in study.runs] == [str(folder) for folder in folders]
    assert study.bytes_per_token == 2.5
    for run, width in zip(study.runs, (8, 16), strict=True):
        assert run.parameters == parameter_counts(small_model(width)).by_name()
        assert run.loss_T == pytest.approx(TRUTH.loss(run.parameters["total"], np.array([500, 1000])))


def test_a_run_with_experts_counts_what_one_token_uses_and_says_so(tmp_path: Path):
    dense = small_model(8)
    feed_forward = {"kind": "experts", "experts": 4, "top_k": 1, "hidden": 16}
    blocks = [{**block.model_dump(), "feed_forward": feed_forward} for block in dense.blocks]
    folder = write_run_folder(tmp_path / "experts", dense.replace(blocks=blocks), [500, 1000])
    study = read_study([write_run_folder(tmp_path / "dense", dense, [500, 1000]), folder])
    cost = model_cost(dense.replace(blocks=blocks))
    assert study.runs[1].parameters["total"] == cost.active_parameters < cost.parameters
    (line,) = study.partly_used
    assert line.startswith(f"{folder}: ") and line.endswith("parameters are used by one token; these are counted")


def test_a_csv_file_is_a_study_without_bytes(tmp_path: Path):
    path = tmp_path / "points.csv"
    path.write_text("parameters,tokens,loss\n10,20,3\n")
    study = read_study([path])
    assert len(study.runs) == 1 and study.bytes_per_token is None
    with pytest.raises(UserError, match="one CSV file, or folders of runs; not several and not both"):
        read_study([path, path])


def test_what_is_no_finished_run_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"not the folder of a run \(no config.yaml\), nor one with runs/ in it$"):
        read_study([tmp_path])
    folder = write_run_folder(tmp_path / "half", small_model(8), [100], finished=False)
    with pytest.raises(UserError, match=r"half: .*not finished"):
        read_study([folder])
    with pytest.raises(UserError, match=r"^.*nothing.csv: no such file or folder; expected a CSV file, or folders"):
        read_study([folder, tmp_path / "nothing.csv"])


def test_the_finished_runs_of_a_comparison_are_taken_each_once(tmp_path: Path):
    inner = [
        write_run_folder(tmp_path / "pldr" / "runs" / f"{name}-seed-0", small_model(width), [100])
        for name, width in (("a", 8), ("b", 16))
    ]
    alone = write_run_folder(tmp_path / "alone", small_model(24), [100])
    study = read_study([alone, tmp_path / "pldr", inner[1]])
    assert [run.name for run in study.runs] == [str(path) for path in (alone, *inner)]
    assert study.left_out == []
    assert [run.name for run in read_study([tmp_path / "pldr"]).runs] == [str(path) for path in inner]


def test_among_several_paths_what_is_no_finished_run_is_left_out_with_the_reason(tmp_path: Path):
    runs = tmp_path / "pldr" / "runs"
    whole = write_run_folder(runs / "whole-seed-0", small_model(8), [100])
    half = write_run_folder(tmp_path / "half", small_model(8), [100], finished=False)
    lost = write_run_folder(runs / "lost-seed-0", small_model(8), [100], finished=False)
    (lost / "diverged.json").write_text('{"step": 3, "reason": "loss is nan"}')
    blind = write_run_folder(tmp_path / "blind", small_model(8), [100], validation=None)
    (tmp_path / "report").mkdir()
    (tmp_path / "law.json").write_text("{}")
    study = read_study([blind, half, tmp_path / "law.json", tmp_path / "pldr", tmp_path / "report"])
    assert [run.name for run in study.runs] == [str(whole)]
    said = dict(line.split(": ", 1) for line in study.left_out)
    assert list(said) == [str(p) for p in (blind, half, tmp_path / "law.json", lost, tmp_path / "report")]
    assert "never evaluated" in said[str(blind)] and "not finished" in said[str(half)]
    assert "diverged" in said[str(lost)]
    assert "not the folder of a run" in said[str(tmp_path / "report")] and said[str(tmp_path / "law.json")]


def test_where_nothing_remains_the_folder_is_named(tmp_path: Path):
    for name in ("a", "b"):
        write_run_folder(tmp_path / "pldr" / "runs" / name, small_model(8), [100], finished=False)
    said = r"pldr: no finished run among 2 paths; the first: .*a: the run is not finished"
    with pytest.raises(UserError, match=said):
        read_study([tmp_path / "pldr"])
    (tmp_path / "empty" / "runs").mkdir(parents=True)
    with pytest.raises(UserError, match=r"empty: no run in it$"):
        read_study([tmp_path / "empty"])
    with pytest.raises(UserError, match=r"points.csv: one CSV file, or folders of runs; not several and not both"):
        (tmp_path / "points.csv").write_text("parameters,tokens,loss\n10,20,3\n")
        read_study([tmp_path / "pldr", tmp_path / "points.csv"])


@pytest.mark.parametrize(("field", "what"), [("tokenizer_hash", "tokenizer"), ("manifest_sha256", "data folder")])
def test_runs_on_other_text_are_not_comparable(tmp_path: Path, field: str, what: str):
    data = {"path": "data", "manifest_sha256": "d" * 64, "tokenizer_hash": "t" * 64}
    first = write_run_folder(tmp_path / "first", small_model(8), [100])
    other = write_run_folder(tmp_path / "other", small_model(8), [100], data={**data, field: "x"})
    with pytest.raises(UserError, match=f"other: another {what} than .*first: their losses are not comparable"):
        read_study([first, other])
    (tmp_path / "pldr" / "runs").mkdir(parents=True)
    other.rename(tmp_path / "pldr" / "runs" / "x-seed-0")
    with pytest.raises(UserError, match=f"pldr/runs/x-seed-0: another {what} than .*first: "):
        read_study([first, tmp_path / "pldr"])
