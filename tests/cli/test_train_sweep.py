"""`linnet train --sweep` as its help says it."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from linnet.cli.main import main
from linnet.core.checksum import read_checked_json
from linnet.data.prepare import prepare_texts
from several import SLOWED

pytestmark = pytest.mark.usefixtures("warm_python")

Capture = pytest.CaptureFixture[str]

MODEL = {
    "vocab_size": 257,
    "d_model": 16,
    "context_length": 16,
    "blocks": [
        {"repeat": 2, "mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 24}}
    ],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train_sweep") / "data"
    train = [f"the bird {n} sang to the tree {n % 7} and the tree was glad. " * 3 for n in range(40)]
    prepare_texts(train, [f"the tree {n} was glad of the bird. " for n in range(9)], folder, tokenizer="bytes")
    return folder


def command(data: Path, folder: Path, *words: str, **training: Any) -> list[str]:
    """`linnet train` of a moment, into `folder/out`."""
    described = {"batch_size": 2, "steps": 8, "threads": 1, "evaluate": {"every": 4, "tokens": 64}, **training}
    config = folder / "run.yaml"
    config.write_text(yaml.safe_dump({"model": MODEL, "data": str(data), "training": described}))
    return ["train", "--config", str(config), "--out", str(folder / "out"), *words]


def test_the_table_the_files_and_flags_that_train_the_same_again(data: Path, tmp_path: Path, capsys: Capture):
    words = command(data, tmp_path, "--sweep", "lr")
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "lr-0.004" in err and out.startswith("Sweep: training.optimizer.lr, 5 values, all steps\n")
    rows = [line.split() for line in out.splitlines() if line.startswith("0.00")]
    assert [row[0] for row in rows] == ["0.00025", "0.0005", "0.001", "0.002", "0.004"]
    assert [row[2] for row in rows].count("best") == 1 and rows[4][2] == "best"
    assert "note: 0.004 is the highest value, so a better one may lie above it: --sweep lr=0.004,0.008,0.016" in out
    assert main([*words, "--json"]) == 0
    printed, said = capsys.readouterr()
    found = json.loads(printed)
    assert {"folder": str(tmp_path / "out"), **read_checked_json(tmp_path / "out" / "sweep.json")} == found
    assert said.count("finished at step 8, nothing to do") == 5
    assert (tmp_path / "out" / "sweep.png").is_file()
    assert f"to train with the best lr, 0.004: {' '.join(found['flags'])}" in out
    again = [*words[:3], "--out", str(tmp_path / "again"), *found["flags"], "--json"]
    assert main(again) == 0
    assert json.loads(capsys.readouterr().out)["validation"]["bits_per_byte"] == found["runs"][4]["bits_per_byte"]
    best = Path(found["runs"][4]["folder"])
    weights = [folder / "model" / "model.safetensors" for folder in (best, tmp_path / "again")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_value_that_diverges_is_told_and_the_rest_counts(data: Path, tmp_path: Path, capsys: Capture):
    words = command(data, tmp_path, "--sweep", "lr=1e-3,2e-3,1e38", schedule={"warmup_steps": 0})
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "lr-1e+38: diverged at step" in err and "1e+38" in out and "diverged at step" in out
    assert "to train with the best lr, 0.002" in out and "note:" not in out, "what is above it diverged"
    assert main(words) == 0
    assert "not trained again (remove" in capsys.readouterr().err


def test_where_all_diverge_that_is_an_error(data: Path, tmp_path: Path, capsys: Capture):
    words = command(data, tmp_path, "--sweep", "lr=1e37,1e38", "--json", schedule={"warmup_steps": 0})
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["best"] is None
    assert err.splitlines()[-1] == "error: every value diverged; lower values, or a longer warm-up, may not"


def _steps_logged(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGINT, signal.SIGTERM))],
)
def test_a_stop_in_the_midst_and_the_same_command_end_as_without(
    data: Path, tmp_path: Path, capsys: Capture, number: signal.Signals
):
    long = {"steps": 60, "log": {"every": 2}, "checkpoint": {"every": 15}, "evaluate": {"every": 30, "tokens": 64}}
    (tmp_path / "straight").mkdir()
    assert main(command(data, tmp_path / "straight", "--sweep", "lr=1e-3,2e-3", "--json", **long)) == 0
    straight = json.loads(capsys.readouterr().out)
    words = command(data, tmp_path, "--sweep", "lr=1e-3,2e-3", "--json", **long)
    slowed = [sys.executable, SLOWED, str(60 + 24), "0.05", *words]
    process = subprocess.Popen(slowed, stderr=subprocess.PIPE, text=True)
    while _steps_logged(tmp_path / "out" / "lr-0.002") < 12:
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.005)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert " of 60 of lr-0.002; the same command continues" in said.splitlines()[-1]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "lr-0.001: finished at step 60, nothing to do" in err and "resuming from step" in err
    losses = [[run["bits_per_byte"] for run in found["runs"]] for found in (straight, json.loads(out))]
    assert losses[0] == losses[1]


def test_a_share_of_the_steps(data: Path, tmp_path: Path, capsys: Capture):
    assert main(command(data, tmp_path, "--sweep", "batch_size=1,2", "--sweep-steps", "4")) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Sweep: training.batch_size, 2 values, {4 * 2 * 16} tokens each\n")
    assert "trained with it" not in out
    rows = {row[0]: row for row in (line.split() for line in out.splitlines()) if row and row[0] in ("1", "2")}
    assert (rows["1"][3], rows["2"][3]) == ("8", "4")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sweep", "lrr"], "--sweep lrr: did you mean lr?"),
        (["--sweep", "lr=0,1"], "--sweep training.optimizer.lr: 0: must be greater than 0"),
        (["--sweep", "lr", "--sweep-steps", "9"], "--sweep-steps 9: expected at most the 8 steps of the run"),
        (["--sweep-steps", "9"], "--sweep-steps: belongs to --sweep"),
        (["--workers", "2"], "--executor, --workers, --slurm-option: belong to --sweep; torchrun starts"),
        (["--sweep", "lr", "--verify-resume"], "--sweep: does not go with --verify-resume; give one of the two"),
        (["--sweep", "lr", "--set", "training.stepz=4"], "--set training.stepz: unknown key"),
    ],
)
def test_a_mistake_is_one_line(data: Path, tmp_path: Path, capsys: Capture, words: list[str], message: str):
    assert main(command(data, tmp_path, *words)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {message}") and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_folder_of_a_run_is_refused_and_one_process_is_enough(
    data: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    assert main(command(data, tmp_path)) == 0
    capsys.readouterr()
    assert main(command(data, tmp_path, "--sweep", "lr")) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: --out {tmp_path / 'out'}: holds a run;") and err.count("\n") == 1
    assert "choose another --out" in err
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert main(command(data, tmp_path, "--sweep", "lr")) == 2
    assert capsys.readouterr().err.startswith("error: --sweep: runs in one process, not in 2")


def test_every_value_begins_with_the_same_word_vectors_and_none_needs_them_again(
    data: Path, tmp_path: Path, capsys: Capture
):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("".join(f"{letter}{' 1 -2' * 8}\n" for letter in "etaoin"))
    words = command(data, tmp_path, "--sweep", "lr=0.001,0.002", "--json", embedding_from=str(vectors))
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    for label in ("lr-0.001", "lr-0.002"):
        told = json.loads((tmp_path / "out" / label / "model" / "run.json").read_text())["embedding_from"]
        assert told["tokens_found"] == 12
    vectors.unlink()
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert main([*words[:-3], "--sweep", "embedding_from=a,b"]) == 2
