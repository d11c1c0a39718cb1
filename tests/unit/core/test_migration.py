"""Folders that linnet 0.1 wrote are read; `linnet_0_1` has one of text and one of a run of 8 steps, stopped at none."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import linnet
from linnet.core.checksum import CHECKSUM_MISMATCH
from linnet.core.errors import UserError
from linnet.core.migration import upgrade_model, upgrade_run
from linnet.model.store import load_decoder
from linnet.training.run_folder import RunFolder
from linnet.training.runs import read_summary

FOLDERS = Path(__file__).parent / "linnet_0_1"


@pytest.fixture
def old(tmp_path, monkeypatch) -> Path:
    shutil.copytree(FOLDERS, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def test_the_configuration_has_the_fields_of_today(old: Path):
    run = RunFolder("run").configuration()
    attention, gla = (block.mixer for block in run.model.blocks)
    assert (attention.sink_tokens, attention.window, gla.gate_logit_normalizer) == (2, 8, 8.0)
    assert run.model.initialization.embedding_std == 0.1
    training = run.training
    assert (training.gradient_accumulation, training.document_mask) == (2, True)
    assert (training.optimizer.kind, training.optimizer.low_lr) == ("muon", 1e-4)
    assert (training.guard.max_consecutive, training.guard.action) == (3, "skip")


def test_a_model_computes_what_it_computed(old: Path):
    """The loss on held-out text is the one that 0.1 wrote down."""
    found = linnet.evaluate("run", data="data", limit_tokens=256)
    expected = json.loads((old / "run/model/run.json").read_text())["validation"]["bits_per_byte"]
    assert read_summary(Path("run"))["orthogonalizing_share"] > 0
    assert found.to_dict()["bits_per_byte"] == pytest.approx(expected, abs=1e-5)


def test_a_run_is_resumed_where_it_was(old: Path):
    """From the checkpoint of step 4 it ends with the weights of step 8 that 0.1 came to."""
    expected = {name: tensor.clone() for name, tensor in _weights(old / "run/model").items()}
    shutil.rmtree("run/model")
    result = linnet.train("run")
    assert result.finished and result.summary["step"] == 8
    for name, tensor in _weights(old / "run/model").items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-5, rtol=1e-4, msg=name)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_decoder(folder).state_dict()


@pytest.mark.parametrize("file", ["run/config.yaml", "run/model/config.json", "data/manifest.json"])
def test_a_changed_file_is_still_found(old: Path, file: str):
    path = old / file
    path.write_text(path.read_text().replace("257", "258", 1))
    with pytest.raises(UserError, match=CHECKSUM_MISMATCH):
        RunFolder("run").configuration()
        linnet.evaluate("run", data="data")


def test_values_of_another_type_are_left_to_the_schema():
    assert upgrade_model(["no", "model"], "x") == ["no", "model"]
    assert upgrade_run({"training": 3}, "x") == {"training": 3}
    named = {"blocks": [{"mixer": {"kind": "gla", "temperature": 2}}], "initialisation": None}
    expected = {"blocks": [{"mixer": {"kind": "gla", "gate_logit_normalizer": 2}}], "initialization": None}
    assert upgrade_model(named, "config.json") == expected
