"""Finished runs, as their folders tell them."""

import json
from pathlib import Path

import pytest
from known_laws import small_model, write_run_folder

from linnet.core.errors import UserError
from linnet.training.runs import (
    NotARunError,
    read_run_folder,
    read_run_folders,
    runs_of,
    training_flops_per_token,
)


def test_run_json_contains_data_seed_and_cost(tmp_path: Path):
    found = read_run_folder(write_run_folder(tmp_path / "run", small_model(8), [500, 1000]))
    assert (found.tokens, found.seed, found.tokenizer, found.data) == (1000, 0, "t" * 64, "d" * 64)
    assert [line["tokens"] for line in found.lines] == [500, 1000]
    assert found.bytes_per_token == 2.5
    assert found.training_flops == pytest.approx(1000 * training_flops_per_token(small_model(8), None))


def test_a_run_that_does_not_name_its_data_is_refused(tmp_path: Path):
    for name, data in (("none", None), ("half", {"manifest_sha256": "d"})):
        folder = write_run_folder(tmp_path / name, small_model(8), [100], data=data)
        with pytest.raises(UserError, match=r"run.json: does not name its data and its tokens; expected a run's$"):
            read_run_folder(folder)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tokens": "100"}, "tokens: '100': must be a whole number"),
        ({"validation": {"bytes": None}}, "validation.bytes: None: must be a whole number"),
        ({"validation": 7}, "validation: 7: must be a mapping"),
    ],
)
def test_an_edited_run_json_is_checked_against_its_schema(tmp_path: Path, changed: dict, said: str):
    told = write_run_folder(tmp_path / "run", small_model(8), [100]) / "model" / "run.json"
    told.write_text(json.dumps(json.loads(told.read_text()) | changed))
    with pytest.raises(UserError) as refused:
        read_run_folder(tmp_path / "run")
    assert str(refused.value) == f"{told}: {said}"


def test_folders_that_are_not_finished_runs_are_reported(tmp_path: Path):
    whole = write_run_folder(tmp_path / "runs" / "whole", small_model(8), [100])
    half = write_run_folder(tmp_path / "runs" / "half", small_model(8), [100], finished=False)
    assert runs_of(tmp_path) == [half, whole]
    found, left_out = read_run_folders(runs_of(tmp_path))
    assert [run.path for run in found] == [whole]
    (line,) = left_out
    assert line.startswith(f"{half}: the run is not finished; ")
    with pytest.raises(NotARunError, match="not finished"):
        read_run_folder(half)
