"""Runs from the folders of `linnet train`."""

from pathlib import Path

import numpy as np
import pytest
from known_laws import TRUTH, small_model, write_run_folder

from linnet.data.prepare import prepare_texts
from linnet.errors import UserError
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.scaling.counts import parameter_counts
from linnet.scaling.run_folders import read_run_folder
from linnet.scaling.study import read_study
from linnet.training.loop import train
from linnet.training.spec import RunSpec


def test_a_trained_run_tells_its_size_tokens_flops_and_curve(tmp_path: Path):
    train_texts = ["the bird sang to the tree. " * 4] * 20
    prepare_texts(train_texts, ["the tree was glad of it. "] * 6, tmp_path / "data", tokenizer="bytes")
    training = {"steps": 6, "batch_size": 2, "threads": 1, "evaluate": {"every": 2, "tokens": 64}}
    plain = {"model": small_model(8), "data": tmp_path / "data", "training": training}
    result = train(RunSpec.parse(plain, "test"), tmp_path / "run")
    found = read_run_folder(tmp_path / "run")
    model = Decoder(small_model(8)).spec
    assert found.run.parameters["total"] == result.summary["parameters"]
    assert found.run.tokens_T.tolist() == [2 * 2 * 16, 4 * 2 * 16, 6 * 2 * 16]
    forward = model_cost(model).flops_per_token(16, with_head=True)
    assert found.run.flops_T == pytest.approx(3 * forward * found.run.tokens_T)
    assert found.run.loss_T[-1] == result.summary["validation"]["nats_per_token"]
    assert len(set(found.run.loss_T.tolist())) == 3
    assert found.bytes_per_token == result.summary["validation"]["bytes"] / result.summary["validation"]["tokens"]


def test_a_study_holds_all_runs_and_their_bytes_per_token(tmp_path: Path):
    folders = [write_run_folder(tmp_path / f"{w}", small_model(w), [500, 1000]) for w in (8, 16)]
    study = read_study(folders)
    assert [run.name for run in study.runs] == [str(folder) for folder in folders]
    assert study.bytes_per_token == 2.5
    for run, width in zip(study.runs, (8, 16), strict=True):
        assert run.parameters == parameter_counts(small_model(width)).by_name()
        assert run.loss_T == pytest.approx(TRUTH.loss(run.parameters["total"], np.array([500, 1000])))


def test_a_csv_file_is_a_study_without_bytes(tmp_path: Path):
    path = tmp_path / "points.csv"
    path.write_text("parameters,tokens,loss\n10,20,3\n")
    study = read_study([path])
    assert len(study.runs) == 1 and study.bytes_per_token is None
    with pytest.raises(UserError, match="one CSV file, or folders of runs; not several and not both"):
        read_study([path, path])


def test_what_is_no_finished_run_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="neither a CSV file nor the folder of a run"):
        read_study([tmp_path])
    folder = write_run_folder(tmp_path / "half", small_model(8), [100], finished=False)
    with pytest.raises(UserError, match=r"half: .*not finished"):
        read_study([folder])


@pytest.mark.parametrize(("field", "what"), [("tokenizer_hash", "tokenizer"), ("manifest_sha256", "data folder")])
def test_runs_on_other_text_are_not_comparable(tmp_path: Path, field: str, what: str):
    data = {"path": "data", "manifest_sha256": "d" * 64, "tokenizer_hash": "t" * 64}
    first = write_run_folder(tmp_path / "first", small_model(8), [100])
    other = write_run_folder(tmp_path / "other", small_model(8), [100], data={**data, field: "x"})
    with pytest.raises(UserError, match=f"other: another {what} than .*first: losses per token are not comparable"):
        read_study([first, other])
