"""`make gpu`, as far as it goes without a GPU: the same code with tiny models on a processor."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gpu_kernels
import gpu_rows
from gpu import ResultRecord, main, measure_rows, plan
from gpu_contracts import outcomes
from gpu_kernels import kernel_rows, measure_kernels, why_none
from gpu_models import SIZES, TINY, kinds, model
from gpu_rows import Row, measure
from gpu_worker import Worker, figures_of
from linnet.layers.registry import MIXERS
from linnet.model.cost import model_cost

CPU = torch.device("cpu")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


def test_without_a_gpu_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    out = tmp_path / "gpu.json"
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(out)])
    with pytest.raises(SystemExit, match=r"^gpu: .+needs a GPU.+$"):
        main()
    assert not out.exists()


@pytest.mark.parametrize("size", SIZES)
def test_models_have_about_the_parameters_that_the_table_says(size: str):
    assert kinds().keys() == MIXERS.keys()
    for kind in kinds():
        assert model_cost(model(kind, SIZES[size])).parameters == pytest.approx(SIZES[size].parameters, rel=0.03), kind


def test_every_kind_is_in_both_tables_compiled_and_not():
    rows = list(plan(tiny=False))
    assert len(set(rows)) == len(rows)
    for kind in MIXERS:
        for size in SIZES:
            assert Row("training", kind, size, "bfloat16", "compiled") in rows
            for form in ("fused", "graph"):
                assert {Row("decode", kind, size, "bfloat16", form, streams) for streams in (1, 32)} <= set(rows)
            assert {row.streams for row in rows if (row.kind, row.size, row.table) == (kind, size, "decode")} == {1, 32}


@pytest.mark.parametrize(
    "kind", [kind if kind in ("attention", "ted") else pytest.param(kind, marks=pytest.mark.slow) for kind in MIXERS]
)
def test_training_and_decoding_are_checked_and_timed(kind: str):
    training = measure(Row("training", kind, "tiny", "bfloat16"), CPU)
    assert "gradients by" in training["correct"]
    assert training["lowest"] <= training["tokens_per_s"] <= training["highest"]
    assert 0 < training["share_of_peak"] < 1.5 and training["steps"] >= 3
    decoding = measure(Row("decode", kind, "tiny", "float32", streams=2), CPU)
    assert decoding["tokens_per_s"] > 0 and decoding["state_bytes_per_step"] > 0
    recorded = measure(Row("decode", kind, "tiny", "float32", "graph", streams=2), CPU)
    assert "logits off" in recorded["correct"] and recorded["share_of_weight_read"] > 0


def test_a_step_that_is_not_recorded_is_not_timed(monkeypatch: pytest.MonkeyPatch):
    def refuse(function: object, beside: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(gpu_rows, "rerun", refuse)
    found = measure(Row("decode", "attention", "tiny", "float32", "graph", streams=1), CPU)
    assert "not recorded, so not timed: operation not permitted" in found["error"]


def test_without_a_gpu_no_kernels_are_timed():
    assert "linnet[triton]" in (why_none(CPU) or "")
    assert {(row.kind, row.precision) for row in kernel_rows(SIZES)} == {
        ("ted", "bfloat16"),
        ("ted", "float32"),
        ("gated_delta", "float32"),
    }


@pytest.mark.parametrize("row", list(kernel_rows(TINY)), ids=str)
def test_kernels_are_checked_and_timed_against_plain_pytorch(row: Row, monkeypatch: pytest.MonkeyPatch):
    """On a processor both are the plain form; a form that is not the same is not timed."""
    found = measure_kernels(row, CPU)
    assert found["lowest"] <= found["times_as_fast"] <= found["highest"] and "at most 0.0" in found["correct"]
    monkeypatch.setattr(gpu_kernels, "GRADIENT_ERROR", {row.precision: -1.0})
    assert "not correct, so not timed" in figures_of(row, CPU)["error"]


def test_what_is_not_correct_is_not_timed(monkeypatch: pytest.MonkeyPatch):
    row = Row("training", "attention", "tiny", "bfloat16")
    monkeypatch.setitem(gpu_rows.LOSS_ERROR, "bfloat16", 0.0)
    found = measure(row, CPU)
    assert "not correct, so not timed" in found["error"] and "tokens_per_s" not in found


def test_with_too_little_memory_a_step_has_fewer_sequences(monkeypatch: pytest.MonkeyPatch):
    steps = gpu_rows._steps

    def at_most_one(row: Row, spec: object, device: torch.device, sequences: int) -> dict:
        if sequences > 1:
            raise torch.OutOfMemoryError("out of memory")
        return steps(row, spec, device, sequences)

    monkeypatch.setattr(gpu_rows, "_steps", at_most_one)
    assert measure(Row("training", "attention", "tiny", "float32"), CPU)["shape"].startswith("1 x")


@pytest.mark.slow
def test_a_row_that_takes_too_long_is_ended_and_the_next_one_measured(tmp_path: Path):
    worker = Worker(CPU)
    row = Row("decode", "attention", "tiny", "float32", streams=1)
    try:
        assert worker.start(100) is None
        assert worker.measure(row, 0.001) == {"error": "took longer than 0 s"}
        assert worker.start(100) is None
        assert worker.measure(row, 100)["tokens_per_s"] > 0
        assert worker.machine is not None and worker.machine["plain_read_gb_per_s"] > 0
    finally:
        worker.stop()


def test_what_no_time_is_left_for_is_listed(tmp_path: Path):
    record, rows = ResultRecord(tmp_path / "gpu.json", 1.0), list(plan(tiny=True))
    measure_rows(record, Worker(CPU), rows, end_s=0.0)
    record.write()
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert {str(row) for row in rows} <= written["left_out"].keys()
    assert not written["finished"] and written["training"] == written["decode"] == []


def test_outcomes_are_counted_even_of_tests_that_were_ended():
    text = """tests/contracts/test_a.py::test_x[attention-0] PASSED                [  1%]
[gw1] [ 40%] PASSED tests/contracts/test_a.py::test_x[glu-1]
[gw0] [ 60%] FAILED tests/contracts/test_b.py::test_y
tests/contracts/test_a.py::test_z SKIPPED (one form only)           [ 99%]
SKIPPED [3] tests/contracts/test_a.py:12: one form only
SKIPPED [1] tests/contracts/test_b.py:12: one form only
"""
    found = outcomes(text, None)
    assert (found["passed"], found["failed"], found["skipped"], found["complete"]) == (2, 1, 1, False)
    assert found["not_passed"] == ["tests/contracts/test_b.py::test_y"]
    assert found["skipped_because"] == {"one form only": 4}


@pytest.mark.slow
def test_the_whole_of_it(tmp_path: Path):
    out = tmp_path / "gpu.json"
    command = [sys.executable, SCRIPT, "--device", "cpu", "--tiny", "--seconds", "240", "--out", out]
    command += ["--forms", "graph", "eager", "compiled"]
    assert subprocess.run(command, check=False).returncode == 0
    written = json.loads(out.read_text())
    assert written["finished"] and written["seconds_taken"] < 260
    assert written["contract_tests"]["passed"] > 10 and written["contract_tests"]["failed"] == 0
    timed = [row for row in written["training"] if "tokens_per_s" in row]
    assert {"eager", "compiled"} <= {row["form"] for row in timed}
    assert written["kernels"] == [] and "no GPU" in written["left_out"]["kernels"]
    for form in ("eager", "graph"):
        timed_kinds = {row["kind"] for row in written["decode"] if "tokens_per_s" in row and row["form"] == form}
        assert timed_kinds == kinds().keys()
    assert list(TINY) == list({row["size"]: None for row in written["training"]})


@pytest.mark.slow
def test_steps_that_processes_compile_are_waited_for_and_measured(tmp_path: Path):
    """As many as are there in time; the packages are in a cache of their own."""
    out = tmp_path / "gpu.json"
    command = [sys.executable, SCRIPT, "--device", "cpu", "--tiny", "--seconds", "150", "--out", out]
    command += ["--forms", "fused", "--no-tests"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    written = json.loads(out.read_text())
    timed = [row for row in written["decode"] if "tokens_per_s" in row]
    assert timed and all(row["form"] == "fused" and row["replays"] in ("fused", "graph") for row in timed)
    assert written["contract_tests"] is None and written["training"] == []
