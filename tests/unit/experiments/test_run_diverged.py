"""A run that diverges does not end a comparison: it is recorded, told apart, and not trained again by itself."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from linnet.cli.main import main
from linnet.core.checksum import read_checked_json
from linnet.experiments import jobs
from linnet.experiments.recorded import recorded
from linnet.training.objectives import Loss
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.run import train_run

TOO_FAST = {"training.optimizer.lr": 1e38, "training.schedule.warmup_steps": 0}
MODEL = {
    "vocab_size": 257,
    "d_model": 16,
    "context_length": 32,
    "blocks": [{"mixer": {"kind": "plga", "heads": 2, "metric_hidden": 8, "residual_units": 1, "start": "identity"}}],
    "head": {"norm": {"kind": "rms"}},
}
PLAIN = {
    "text": {"stories": 40, "parts": 2},
    "tokenizer": {"kind": "bytes"},
    "model": MODEL,
    "training": {"steps": 4, "batch_size": 2, "context_length": 32, "evaluate": {"every": 2, "tokens": 300}},
    "seeds": [0, 1],
    "runs": [
        {"name": "first half", "shown": False},
        {"name": "too fast", "part": 2, "set": TOO_FAST},
        {"name": "transferred", "part": 2, "calibration_of": "first half"},
        {"name": "again", "part": 2, "calibration_of": "transferred"},
    ],
}


def breaking_at(step: int) -> Any:
    """The objective, not finite from a step on."""
    calls = 0

    def objective(decoder, batch):
        nonlocal calls
        calls += 1
        loss = next_token_loss(decoder, batch)
        return Loss(loss.total * math.nan, loss.nats) if calls >= step else loss

    return objective


def unlucky(run, out, reporter, command):
    """The first half diverges with seed 1 alone, at step 3."""
    broken = "first-half-seed-1" in str(out)
    return train_run(run, out, reporter, breaking_at(3) if broken else next_token_loss, command)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diverging")
    (folder / "c.yaml").write_text(yaml.safe_dump(PLAIN))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jobs, "train_run", unlucky)
        assert main(["compare", str(folder / "c.yaml"), "--out", str(folder / "out")]) == 1
    return folder


def again(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, list[str]]:
    code = main(["compare", str(folder / "c.yaml"), "--out", str(folder / "out"), *options])
    out, err = capsys.readouterr()
    return code, out, err.splitlines()


def test_other_runs_continue_and_means_are_over_the_trained_seeds(compared: Path):
    found = recorded([compared / "out"]).to_dict()
    seeds = {run["name"]: [each["seed"] for each in run["seeds"]] for run in found["runs"]}
    assert seeds == {"too fast": [], "transferred": [0], "again": [0]}
    by_name = {run["name"]: run for run in found["runs"]}
    assert by_name["transferred"]["bits_per_byte"]["mean"] == by_name["transferred"]["seeds"][0]["bits_per_byte"]
    assert by_name["transferred"]["bits_per_byte"]["deviation"] is None
    assert all(by_name["too fast"][name] is None for name in ("parameters", "tokens", "bits_per_byte", "leak"))
    assert (compared / "out" / "curves.png").stat().st_size > 5000


def test_the_step_and_the_reason_are_recorded(compared: Path):
    found = recorded([compared / "out"]).to_dict()["failures"]
    lost = {(each["run"], each["seed"]): each for each in found}
    assert {key: each["outcome"] for key, each in lost.items()} == {
        ("too fast", 0): "diverged",
        ("too fast", 1): "diverged",
        ("first half", 1): "diverged",
        ("transferred", 1): "not trained",
        ("again", 1): "not trained",
    }
    first = lost["first half", 1]
    assert first["step"] == 3 and first["reason"].startswith("loss nan, learning rate ")
    assert lost["transferred", 1]["step"] is None
    assert lost["transferred", 1]["reason"] == "the calibration of first half is missing: it diverged"
    assert lost["again", 1]["reason"] == "the calibration of transferred is missing: it was not trained"
    record = read_checked_json(compared / "out" / "runs" / "first-half-seed-1" / "diverged.json")
    assert record == {"step": 3, "reason": first["reason"]}


def test_a_second_call_trains_nothing_and_reports_it(compared: Path, capsys: pytest.CaptureFixture[str]):
    kept = sorted((compared / "out" / "runs").rglob("metrics.jsonl"))
    before = [path.stat().st_mtime_ns for path in kept]
    code, out, err = again(compared, capsys)
    assert code == 1 and [path.stat().st_mtime_ns for path in kept] == before
    left = [line for line in err if "not trained again (remove " in line]
    assert len(left) == 3 and f"remove {compared / 'out' / 'runs' / 'first-half-seed-1'} to" in left[1]
    assert left[1].startswith("first half, seed 1: diverged at step 3: loss nan, learning rate ")
    assert err[-1].startswith("error: 5 of 8 trainings have no result: diverged: too fast (seed 0, step ")
    assert err[-1].endswith("not trained because their calibration is missing: transferred (seed 1), again (seed 1)")
    rows = {line[:12].strip(): line[12:].split() for line in out.splitlines()}
    assert rows["too fast"] == ["0", "of", "2", "diverged", *["–"] * 6]
    assert rows["transferred"][:3] == ["1", "of", "2"]
    assert "first half, seed 1: diverged at step 3: loss nan" in out
    assert "over the seeds that were trained to the end" in out
    code, out, err = again(compared, capsys, "--json")
    found = json.loads(out)
    assert code == 1 and len(found["failures"]) == 5 and found["folder"] == str(compared / "out")


def test_without_its_folder_a_run_is_trained_again(compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    shutil.copytree(compared, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "out" / "runs" / "first-half-seed-1")
    code, _, err = again(tmp_path, capsys)
    assert code == 1 and err[-1].startswith("error: 2 of 8 trainings have no result: diverged: too fast (seed 0, ")
    found = recorded([tmp_path / "out"]).to_dict()
    assert [each["seed"] for each in found["runs"][1]["seeds"]] == [0, 1]


def test_a_run_finished_by_another_verb_is_accepted(compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`linnet train` went on from the last checkpoint, and this time the loss stayed finite."""
    shutil.copytree(compared, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "out" / "runs" / "first-half-seed-1"
    data = tmp_path / "out" / "data" / "part-1"
    assert main(["train", "--config", str(folder / "config.yaml"), "--data", str(data), "--out", str(folder)]) == 0
    capsys.readouterr()
    assert again(tmp_path, capsys)[2][-1].startswith("error: 2 of 8 trainings have no result")


def test_another_configuration_is_refused_in_the_same_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(MODEL))
    changes = {"model": str(tmp_path / "model.yaml"), "seeds": [0], "runs": [{"name": "one", "set": TOO_FAST}]}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(PLAIN | changes))
    assert again(tmp_path, capsys)[0] == 1
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(MODEL | {"name": "another"}))
    code, _, err = again(tmp_path, capsys)
    assert code == 2 and "holds a suite with model.name: None, not 'another'; choose another --out" in err[-1]
