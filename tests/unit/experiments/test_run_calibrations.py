"""Operators that runs are given are read and held against their models before anything is trained."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from linnet.cli.main import main
from linnet.core.errors import UserError
from linnet.core.files import write_json
from linnet.experiments.run import check_calibrations
from linnet.experiments.suite import Suite
from linnet.layers.mixers.plga.files import save_operators

ABLATION = Path(__file__).parents[3] / "experiments" / "ablations" / "pldr.yaml"
FIT = torch.eye(32).expand(4, 32, 32)


def write(folder: Path, runs: list[dict[str, Any]], **changes: Any) -> Path:
    plain = {"text": {"stories": 40}, "model": "tiny-pldr", "training": {"steps": 2}, "seeds": [3, 4], "runs": runs}
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump(plain | changes))
    return path


def given(source: object) -> dict[str, Any]:
    return {"name": "given", "set": {"model.calibration": str(source)}}


def check(path: Path) -> None:
    check_calibrations(Suite.load(path), path.parent / "out", str(path))


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as refused:
        check(path)
    line = str(refused.value)
    assert line.startswith(f"{path}: runs: ") and "\n" not in line
    return line.removeprefix(f"{path}: runs: ")


def test_fitting_calibrations_are_accepted(tmp_path: Path):
    save_operators([{"G": FIT}] * 2, tmp_path / "G.safetensors")
    for source in (tmp_path / "G.safetensors", "identity", "random", "text"):
        check(write(tmp_path, [given(source)]))
    check_calibrations(Suite.load(ABLATION), tmp_path / "out", "pldr.yaml")


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (None, "{file}: no such file; expected operators as .safetensors or .npz"),
        ([], "{file}: holds no operator"),
        ([FIT], "{file}: operators of 1 layers: the model has 2 plga layers"),
        ([FIT, FIT[:2]], "{file}: layer1.G: shape [2, 32, 32]: the model's is [4, 32, 32]"),
    ],
)
def test_an_invalid_or_unfitting_file_is_named(tmp_path: Path, layers, message: str):
    file = tmp_path / "G.safetensors"
    if layers is not None:
        save_operators([{"G": layer} for layer in layers], file)
    path = write(tmp_path, [{"name": "learned"}, given(file)])
    assert refusal(path).startswith(f"given: set: model.calibration: {message.format(file=file)}")


def test_damaged_files_and_unknown_names_are_refused(tmp_path: Path):
    (tmp_path / "G.npz").write_bytes(b"half a fil")
    assert "set: model.calibration: " in refusal(write(tmp_path, [given(tmp_path / "G.npz")]))
    line = refusal(write(tmp_path, [given("idenity")]))
    assert line.startswith("given: set: model.calibration: idenity: expected identity, random, or a file of operators")


def test_operators_in_the_model_of_all_runs(tmp_path: Path):
    block = {"mixer": {"kind": "plga", "heads": 4}}
    model = {"vocab_size": 9, "d_model": 128, "context_length": 16, "blocks": [block], "calibration": "no.npz"}
    line = refusal(write(tmp_path, [{"name": "one"}], model=model))
    assert line.startswith("one: model.initialization.calibration: no.npz: no such file")


def test_nothing_is_written_before_the_files_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = write(tmp_path, [{"name": "learned"}, given(tmp_path / "no.npz")])
    assert main(["compare", str(path), "--out", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {path}: runs: given: set: model.calibration: {tmp_path / 'no.npz'}: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_files_that_an_earlier_run_makes_may_be_missing(tmp_path: Path):
    teacher, student = {"name": "first"}, {"name": "second", "calibration_of": "first"}
    spec = Suite.load(write(tmp_path, [teacher, student]))
    made = given(spec.calibration_file(tmp_path / "out", spec.run("first"), seed=3))
    check(write(tmp_path, [teacher, student, made]))
    assert "no such file" in refusal(write(tmp_path, [teacher, made, student])), "it is made only later"
    made = given(spec.calibration_file(tmp_path / "out", spec.run("first"), seed=4))
    assert "no such file" in refusal(write(tmp_path, [teacher, student, made])), "so is that of the second seed"


def test_files_that_are_no_longer_needed_may_be_missing(tmp_path: Path):
    path = write(tmp_path, [given(tmp_path / "gone.npz")])
    spec = Suite.load(path)
    folders = [spec.run_folder(tmp_path / "out", spec.runs[0], seed) for seed in (3, 4)]
    (folders[0] / "checkpoints" / "step-00000001").mkdir(parents=True)
    assert "no such file" in refusal(path), "the second seed has not begun"
    write_json(folders[1] / "model" / "run.json", {"finished": True})
    check(path)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (
            [{"name": "a"}, {"name": "b", "set": {"model.blocks.0.repeat": 3}, "calibration_of": "a"}],
            "b: calibration_of: a: it calibrates 2 layers: the model has 3 that store it",
        ),
        (
            [{"name": "a", "set": {"model.blocks.0.mixer.heads": 2}}, {"name": "b", "calibration_of": "a"}],
            "b: calibration_of: a: layer 0: G: shape [2, 64, 64]: the model's is [4, 32, 32]",
        ),
        (
            [{"name": "a"}, {"name": "b", "set": {"model.blocks.0.mixer": {"kind": "ted"}}, "calibration_of": "a"}],
            "b: calibration_of: a: ",
        ),
    ],
)
def test_operators_of_another_run_are_checked(tmp_path: Path, runs: list[dict[str, Any]], message: str):
    assert refusal(write(tmp_path, runs)).startswith(message)
