"""What a comparison's folder takes for the same comparison."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from linnet.core.errors import UserError
from linnet.experiments.run import claim
from linnet.experiments.suite import CALIBRATIONS, SUITE, Suite
from linnet.layers.mixers.plga.files import save_operators


def save(path: Path, value: float = 1.0) -> str:
    save_operators([{"G": torch.full((4, 32, 32), value)}] * 2, path)
    return str(path)


def spec(folder: Path, operator: str, **changes: Any) -> Suite:
    plain = {
        "text": {"stories": 40},
        "model": "tiny-pldr",
        "training": {"steps": 5},
        "runs": [{"name": "given", "set": {"model.calibration": operator}}, {"name": "learned"}],
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(plain | changes))
    return Suite.load(folder / "c.yaml")


def test_operators_are_compared_by_content_and_not_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    claim(spec(tmp_path, save(tmp_path / "G.safetensors")), tmp_path / "out")
    claim(spec(tmp_path, "G.safetensors"), tmp_path / "out")
    (tmp_path / "moved").mkdir()
    Path("G.safetensors").rename("moved/H.safetensors")
    claim(spec(tmp_path, "moved/H.safetensors"), tmp_path / "out")


def test_other_operators_under_the_same_name_are_another_run(tmp_path: Path):
    path = save(tmp_path / "G.safetensors")
    claim(spec(tmp_path, path), tmp_path / "out")
    save(tmp_path / "G.safetensors", 2.0)
    with pytest.raises(UserError, match=r"another run 'given' with set\.model\.calibration: 'a file .*; rename it"):
        claim(spec(tmp_path, path), tmp_path / "out")


def test_operators_in_the_model_of_all_runs(tmp_path: Path):
    path, same = save(tmp_path / "G.safetensors"), save(tmp_path / "same.safetensors")
    other = save(tmp_path / "other.safetensors", 2.0)
    block = {"mixer": {"kind": "plga", "heads": 4}, "repeat": 2}
    model = {"vocab_size": 9, "d_model": 128, "context_length": 16, "blocks": [block]}
    runs = [{"name": "given"}]
    claim(spec(tmp_path, path, model=model | {"calibration": path}, runs=runs), tmp_path / "out")
    claim(spec(tmp_path, path, model=model | {"calibration": same}, runs=runs), tmp_path / "out")
    with pytest.raises(UserError, match="holds a suite with model"):
        claim(spec(tmp_path, path, model=model | {"calibration": other}, runs=runs), tmp_path / "out")


def test_a_removed_file_keeps_its_recorded_content(tmp_path: Path):
    path = save(tmp_path / "G.safetensors")
    claim(spec(tmp_path, path), tmp_path / "out")
    Path(path).unlink()
    claim(spec(tmp_path, path), tmp_path / "out")
    save(tmp_path / "G.safetensors", 2.0)
    with pytest.raises(UserError, match="holds another run 'given'"):
        claim(spec(tmp_path, path), tmp_path / "out")


def test_files_that_the_suite_makes_are_compared_by_name(tmp_path: Path):
    made = tmp_path / "out" / CALIBRATIONS / "first-seed-0.safetensors"
    claim(spec(tmp_path, str(made)), tmp_path / "out")
    made.parent.mkdir()
    save(made)
    claim(spec(tmp_path, str(made)), tmp_path / "out")


@pytest.mark.parametrize("field", ["runs", "model"])
def test_an_incomplete_description_is_refused(tmp_path: Path, field: str):
    of = spec(tmp_path, save(tmp_path / "G.safetensors"))
    claim(of, tmp_path / "out")
    kept = tmp_path / "out" / SUITE
    plain = json.loads(kept.read_text())
    del plain["checksum"], plain[field]
    kept.write_text(json.dumps(plain))
    with pytest.raises(UserError, match=f"suite.json: {field}: missing"):
        claim(of, tmp_path / "out")


def test_operators_are_not_written_through_a_link(tmp_path: Path):
    of = spec(tmp_path, save(tmp_path / "G.safetensors"))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / CALIBRATIONS).symlink_to(tmp_path / "foreign")
    with pytest.raises(UserError, match="out/calibrations: is a link"):
        claim(of, tmp_path / "out")
