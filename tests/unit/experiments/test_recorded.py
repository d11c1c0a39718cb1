"""Runs that exist already, side by side, by what they recorded."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from linnet.core.checksum import read_checked_json, write_checked_json
from linnet.core.errors import UserError
from linnet.data.prepare import prepare_texts
from linnet.experiments.jobs import Runner
from linnet.experiments.recorded import recorded
from linnet.experiments.results import Findings, read_rows, write_rows
from linnet.experiments.run import run_suite
from linnet.experiments.suite import Suite
from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec
from linnet.training.run import train_run
from linnet.training.spec import RunSpec

MODEL = {
    "vocab_size": 257,
    "d_model": 8,
    "context_length": 16,
    "blocks": [{"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 8}}],
}
TRAINING = {"steps": 4, "batch_size": 2, "threads": 1, "evaluate": {"every": 2, "tokens": 64}}
TOO_FAST = {"training.optimizer.lr": 1e38, "training.schedule.warmup_steps": 0}
COMPARED = {
    "name": "wide and narrow",
    "text": {"stories": 40, "parts": 2},
    "tokenizer": {"kind": "bytes"},
    "model": MODEL,
    "training": TRAINING,
    "seeds": [0, 1],
    "runs": [
        {"name": "hidden", "shown": False},
        {"name": "narrow"},
        {"name": "wide", "part": 2, "set": {"model.d_model": 12}},
        {"name": "too fast", "set": TOO_FAST},
    ],
}


def made(folder: Path, data: Path, seed: int = 0, width: int = 8) -> Path:
    plain = {"model": MODEL | {"d_model": width}, "data": str(data), "training": TRAINING | {"seed": seed}}
    train_run(RunSpec.parse(plain, "test"), folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "data"
    prepare_texts(["the bird sang to the tree. " * 4] * 20, ["the tree was glad. "] * 9, folder, tokenizer="bytes")
    return folder


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        made(folder / f"narrow-seed-{seed}", data, seed)
    made(folder / "wide", data, width=12)
    return folder


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Findings]:
    folder = tmp_path_factory.mktemp("compared") / "out"
    return folder, run_suite(Suite.parse(COMPARED, "test"), folder, Runner(lambda line: None))


def refusal(*sources: Path) -> str:
    with pytest.raises(UserError) as refused:
        recorded(sources)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "model" / "run.json").read_text())


def test_runs_that_differ_only_in_their_seed_are_one_row_with_a_spread(runs: Path):
    narrow, wide = recorded([runs / "narrow-seed-0", runs / "wide", runs / "narrow-seed-1"]).runs
    assert (narrow.name, narrow.seeds, wide.name, wide.seeds) == ("narrow", "2", "wide", "1")
    each = [summary(runs / f"narrow-seed-{seed}") for seed in (0, 1)]
    assert [one.seed for one in narrow.results] == [0, 1]
    assert [o.bits_per_byte for o in narrow.results] == [one["validation"]["bits_per_byte"] for one in each]
    assert narrow.spread("bits_per_byte").deviation > 0 and wide.spread("bits_per_byte").deviation is None
    assert narrow.spread("tokens_per_s").mean == pytest.approx(sum(one["tokens_per_s"] for one in each) / 2)
    assert [step for step, *_ in narrow.curve] == [2, 4]


def test_the_cost_of_a_run_is_exact(runs: Path):
    wide = recorded([runs / "wide"]).runs[0]
    cost = model_cost(ModelSpec.parse(MODEL | {"d_model": 12}, "test"))
    assert (wide.parameters, wide.tokens) == (cost.parameters, 4 * 2 * 16)
    assert wide.training_flops == pytest.approx(3 * cost.flops_per_token(16, with_head=True) * wide.tokens)


def test_each_run_counts_once_and_its_model_folder_represents_it(runs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(runs)
    found = recorded([Path("wide"), Path("wide/model"), Path("../") / runs.name / "wide"])
    assert [(run.name, run.seeds) for run in found.runs] == [("wide", "1")]


def test_a_folder_of_runs_represents_its_runs(runs: Path, tmp_path: Path):
    shutil.copytree(runs, tmp_path / "study" / "runs")
    assert [(run.name, run.seeds) for run in recorded([tmp_path / "study"]).runs] == [("narrow", "2"), ("wide", "1")]


def test_runs_of_one_seed_are_separate_rows(runs: Path, tmp_path: Path):
    again = tmp_path / "again" / "wide"
    shutil.copytree(runs / "wide", again)
    found = recorded([runs / "wide", again])
    assert [run.name for run in found.runs] == [str(runs / "wide"), str(again)]


def test_a_model_with_another_initial_file_is_another_run(runs: Path, tmp_path: Path):
    for seed in (0, 1):
        shutil.copytree(runs / f"narrow-seed-{seed}", tmp_path / f"narrow-seed-{seed}")
        (tmp_path / f"narrow-seed-{seed}" / "files.json").write_text(json.dumps({"G": str(seed)}))
    found = recorded(sorted(tmp_path.iterdir()))
    assert [(run.name, run.seeds) for run in found.runs] == [("narrow-seed-0", "1"), ("narrow-seed-1", "1")]


def test_a_curve_uses_the_lines_that_remain(runs: Path, tmp_path: Path):
    for seed in (0, 1):
        shutil.copytree(runs / f"narrow-seed-{seed}", tmp_path / f"narrow-seed-{seed}")
    (tmp_path / "narrow-seed-1" / "metrics.jsonl").unlink()
    narrow = recorded(sorted(tmp_path.iterdir())).runs[0]
    assert [(step, bits.deviation > 0) for step, bits in narrow.curve] == [(4, True)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("a-0", "a-1"), ["a"]),
        (("a seed 7", "a seed 8"), ["a"]),
        (("first", "second"), ["first"]),
        (("0", "1"), ["0"]),
    ],
)
def test_the_common_part_of_seed_folders_is_their_name(runs: Path, tmp_path: Path, names: tuple[str, str], expected):
    for seed, name in enumerate(names):
        shutil.copytree(runs / f"narrow-seed-{seed}", tmp_path / name)
    assert [run.name for run in recorded([tmp_path / name for name in names]).runs] == expected


def test_incomparable_runs_are_refused(runs: Path, data: Path, tmp_path: Path):
    wide = runs / "wide"
    assert refusal(wide, tmp_path / "no") == (
        f"{tmp_path / 'no'}: no such folder; expected the folder of a run or of a comparison"
    )
    assert refusal(wide, data).startswith(f"{data}: not the folder of a run")
    (tmp_path / "empty" / "runs").mkdir(parents=True)
    assert refusal(tmp_path / "empty") == f"{tmp_path / 'empty'}: no run in it"
    half = tmp_path / "half"
    shutil.copytree(wide, half)
    (half / "model" / "manifest.json").unlink()
    (half / "model" / "run.json").write_text(json.dumps(summary(wide) | {"finished": False}))
    assert refusal(wide, half).startswith(f"{half}: the run is not finished; the command that began it")
    for field, what in (("manifest_sha256", "data folder"), ("tokenizer_hash", "tokenizer")):
        other = summary(wide)
        other["data"][field] = "x"
        (half / "model" / "run.json").write_text(json.dumps(other))
        assert refusal(wide, half).startswith(f"{half}: another {what} than {wide}: their losses are not comparable")


def test_a_comparison_is_shown_again_from_its_rows(compared: tuple[Path, Findings]):
    folder, findings = compared
    again = recorded([folder])
    assert again == findings
    assert [run.name for run in again.runs] == ["narrow", "wide", "too fast"] and len(again.failures) == 2


def test_the_curve_of_a_diverged_run_is_shown_again(compared: tuple[Path, Findings], tmp_path: Path):
    folder = tmp_path / "out"
    shutil.copytree(compared[0], folder)
    rows = read_rows(folder / "results.jsonl")
    index = [row.key[1:3] for row in rows].index(("too fast", 1))
    values = rows[index].values | {"curve": [[1, 9.0]]}
    rows[index] = rows[index].model_copy(update={"values": values})
    write_rows(folder / "results.jsonl", rows)
    lost = recorded([folder]).runs[2].failures
    assert [len(one.curve) for one in lost] == [0, 1] and lost[1].curve[0].bits_per_byte == 9.0


def test_next_to_a_single_run_a_comparison_uses_the_last_evaluation(compared: tuple[Path, Findings], tmp_path: Path):
    folder, findings = compared
    alone = made(tmp_path / "narrow", folder / "data" / "part-1", seed=5)
    found = recorded([alone, folder])
    assert [run.name for run in found.runs] == [f"{folder}: narrow", "wide", "too fast", str(alone)]
    assert {o.evaluation["tokens"] for run in found.runs for o in run.results} != {
        o.evaluation["tokens"] for run in findings.runs for o in run.results
    }
    run = folder / "runs" / "narrow-seed-1"
    assert found.runs[0].results[1].bits_per_byte == summary(run)["validation"]["bits_per_byte"]
    assert (recorded([folder]).name, found.name) == ("wide and narrow", "runs compared")


def test_an_unfinished_comparison_is_refused(compared: tuple[Path, Findings], tmp_path: Path):
    folder = tmp_path / "out"
    shutil.copytree(compared[0], folder)
    described = read_checked_json(folder / "suite.json")
    write_checked_json(folder / "suite.json", described | {"seeds": [0, 1, 2]})
    unfinished = f"{folder}: the suite is not finished (narrow, seed 2); go on with it by the same command"
    assert refusal(folder).startswith(unfinished)
    (folder / "results.jsonl").unlink()
    assert refusal(folder).startswith(unfinished.replace("seed 2", "seed 0"))
