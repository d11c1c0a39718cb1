"""`linnet demo` as a stranger meets it: interrupted, gone on with, read."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from linnet.cli.main import main
from linnet.experiments import demo
from linnet.experiments.data import validation_stories
from linnet.experiments.demo import Options, demo_suite
from linnet.experiments.run import claim
from several import SLOWED

pytestmark = pytest.mark.usefixtures("warm_python")

STEPS, STORIES = 3, 60
OPTIONS = ["--steps", str(STEPS), "--stories", str(STORIES)]
KEYS = [recipe.key for recipe in demo.RECIPES]

Capture = pytest.CaptureFixture[str]

EVALUATED = 256
QUICK = f"""
import runpy, sys
from linnet.experiments import demo, measures
demo.VALIDATION_TOKENS, measures.DECODE_RUNS = {EVALUATED}, 1
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A demo that evaluates few tokens after each step, and decodes once: most of its time would go there."""


def start(folder: Path, *options: str, slowed_s: float = 0.0) -> subprocess.Popen[str]:
    """`linnet demo` in `folder`, on one core; after the first step each takes `slowed_s` more."""
    command = [sys.executable, "-c", QUICK, SLOWED, "1", str(slowed_s), "demo", *OPTIONS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*command, *options], cwd=folder, env=environment, text=True, **pipes)


def test_a_demo_that_is_interrupted_gone_on_with_and_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
):
    """One test for the whole way: what comes later needs what was trained before."""
    _interrupt_after_the_first_step(tmp_path)
    report = _go_on(tmp_path)
    monkeypatch.chdir(tmp_path)
    _check_table(report)
    _check_against_evaluate_and_generate(report, capfd)
    monkeypatch.setattr("linnet.experiments.measures.DECODE_RUNS", 1)
    monkeypatch.setattr(demo, "VALIDATION_TOKENS", EVALUATED)
    _tell_again_with_another_prompt(tmp_path, capfd)


def _interrupt_after_the_first_step(folder: Path) -> None:
    process = start(folder, slowed_s=0.5)
    assert process.stderr is not None
    errors = ""
    while f"1/{STEPS}" not in errors:
        line = process.stderr.readline()
        assert line, errors
        errors += line
    process.send_signal(signal.SIGINT)
    out, rest = process.communicate(timeout=120)
    assert (process.returncode, out) == (128 + signal.SIGINT, "")
    assert "Traceback" not in rest
    assert re.fullmatch(r"stopped at step [12] of 3 of attention; the same command continues", rest.splitlines()[-1])


def _go_on(folder: Path) -> dict[str, Any]:
    process = start(folder, "--json")
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert f"{STORIES} short stories to train on, {validation_stories(STORIES)} held out, reused (demo/data)" in errors
    assert re.search(r"resuming from step [12] \(demo/attention/checkpoints/", errors)
    for key in KEYS:
        lines = (folder / "demo" / key / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
    return json.loads(out)


def _check_table(report: dict[str, Any]) -> None:
    assert [row["model"] for row in report["models"]] == KEYS
    assert len({row["training_tokens"] for row in report["models"]}) == 1
    for row in report["models"]:
        assert 1 < row["bits_per_byte"] < 5
        assert row["training_tokens_per_s"] == pytest.approx(row["training_tokens"] / row["training_seconds"])
        assert row["decode_tokens_per_s"] > 0
        assert row["name_recall"] is None or 0 <= row["name_recall"] <= 1
        assert row["state_bytes"]["65536"] > row["state_bytes"]["1024"] > 0
        assert set(row["policy_state_bytes"]) == ({"bank"} if row["model"] == "ted" else set())
        assert row["sample"].startswith(demo.PROMPT)
        run = json.loads((Path(row["folder"]) / "model" / "run.json").read_text())
        assert run["parameters"] == row["parameters"]
    leaks = {row["model"]: row["leak"] for row in report["models"]}
    assert leaks["attention"] is leaks["ted"] is None
    pldr = report["models"][KEYS.index("pldr")]
    assert leaks["pldr"] == pytest.approx(pldr["bits_per_byte"] - pldr["whole_sequence_bits_per_byte"])
    assert set(report["seconds"]) == {"training", "corpus", "decode speed", "stories"}


def _check_against_evaluate_and_generate(report: dict[str, Any], capfd: Capture) -> None:
    ted = report["models"][KEYS.index("ted")]
    assert main(["evaluate", ted["folder"], "--data", "demo/data", "--json"]) == 0
    evaluated = json.loads(capfd.readouterr().out)
    assert evaluated["bits_per_byte"] == pytest.approx(ted["bits_per_byte"], rel=1e-5)
    assert evaluated["bytes"] == report["corpus"]["validation_bytes"]
    shape = ["--temperature", str(demo.TEMPERATURE), "--top-p", str(demo.TOP_P), "--seed", "0"]
    assert main(["generate", ted["folder"], "--prompt", demo.PROMPT, *shape, "--max-tokens", "400"]) == 0
    written = capfd.readouterr().out.removesuffix("\n")
    assert written == ted["sample"] if ted["sample_complete"] else written.startswith(ted["sample"].rstrip("\ufffd"))


def _tell_again_with_another_prompt(folder: Path, capfd: Capture) -> None:
    weights = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    assert main(["demo", *OPTIONS, "--prompt", "One day, Tom & <b>Mia"]) == 0
    out, errors = capfd.readouterr()
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == weights
    for key in KEYS:
        assert f"demo/{key}: finished at step 3, nothing to do" in errors
    assert out.splitlines()[1].split() == ["attention", "PLDR-LLM", "TED"]
    assert " ".join(out.split()).count("One day, Tom & <b>Mia") == 3
    assert out.endswith("\nreport: demo/report.html\n")
    page = (folder / "demo" / "report.html").read_text(encoding="utf-8")
    assert page.count("<p><b>One day, Tom &amp; &lt;b&gt;Mia</b>") == 3
    assert "</html>" in page and str(folder) not in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "4"], "demo: holds a suite with training.steps: 3, not 4; choose another --out"),
        (["--seed", "1"], "demo: holds a suite with seeds.0: 0, not 1;"),
        (["--out", "demo/suite.json"], "--out demo/suite.json: demo/suite.json is a file; a folder is expected"),
        (["--out", "."], "--out .: holds other files (no suite.json)"),
        (["--prompt", "word " * 200], " tokens; expected at most "),
        (["--steps", "0"], "Invalid value for '--steps'"),
        (["--stories", "5"], "Invalid value for '--stories'"),
        (["--seed", "-1"], "Invalid value for '--seed'"),
        (["--device", "abacus"], "Invalid value for '--device'"),
    ],
)
def test_a_mistake_is_one_line(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
):
    monkeypatch.chdir(tmp_path)
    claim(demo_suite(Options(Path("demo"), STEPS, stories=STORIES)), Path("demo"))
    assert main(["demo", *OPTIONS, *options]) == 2
    out, errors = capfd.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert errors.startswith("error: ") and message in errors


def test_an_interrupt_outside_training_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("linnet.experiments.demo.prepare_data", interrupt)
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 130
    assert capfd.readouterr() == ("", "interrupted; the same command continues\n")


def test_a_broken_down_training_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture):
    from linnet.training.run_folder import DivergedError

    def break_down(*_: object, **__: object) -> None:
        raise DivergedError(3, "loss nan", None)

    monkeypatch.setattr("linnet.experiments.jobs.train_run", break_down)
    assert main(["demo", *OPTIONS, "--out", str(tmp_path / "demo")]) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == "error: not finite, stopped at step 3: loss nan; last good checkpoint: none yet"
