"""`linnet evaluate --protocol`, with the protocols that are shipped."""

import json
import sys
from pathlib import Path

import pytest
import yaml
from protocol_models import save_models, save_questions

from linnet.cli.main import main

SHIPPED = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("protocol")
    save_models(folder)
    save_questions(folder / "tasks")
    shipped = (SHIPPED / "pldr-table.yaml").read_text()
    (folder / "table.yaml").write_text(shipped.replace("tokens: 100", "tokens: 3"))
    return folder


def test_the_shipped_tables(workspace, monkeypatch, capsys):
    monkeypatch.chdir(workspace)
    asked = ["evaluate", "plga", "--protocol", "table.yaml", "--files", "tasks", "--limit", "1"]
    assert main([*asked, "--report", "page"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Zero-shot scores") and "  identity" in out and "plga: RMSE between heads" in out
    page_text = (workspace / "page" / "report.md").read_text()
    heads = "ARC-c | ARC-e | HellaSwag | OBQA | PIQA | SIQA | WinoGrande | Avg-1 | TruthfulQA | Avg-2"
    assert f"| model | {heads} |" in page_text and "arXiv 2502.13502" in page_text
    assert "plga: Largest |det|" in (workspace / "page" / "report.html").read_text()
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (model,) = found["scores"]["models"]
    assert [one["model"] for one in model["calibrations"]] == ["plga, identity", "plga, random"]
    assert model["kv_cache_effect"] < 1e-5 and found["inspections"]["plga"]["caches"]["settings"][0]["tokens"] <= 3


def test_the_shipped_times(workspace, monkeypatch, capsys):
    pytest.importorskip("transformers")
    monkeypatch.chdir(workspace)
    shipped = yaml.safe_load((SHIPPED / "caches.yaml").read_text())
    times = shipped["measures"]["cache_times"]
    times |= {"tokens": 3, "runs": 1}
    times["against"][0]["config"] |= {"hidden_size": 24, "vocab_size": 99}
    Path("times.yaml").write_text(yaml.safe_dump(shipped))
    assert main(["evaluate", "plga", "--protocol", "times.yaml", "--report", "timed"]) == 0
    assert capsys.readouterr().out.startswith("Time with and without caches")
    assert "| none / all | GPT-Neo-125M / model |" in (workspace / "timed" / "report.md").read_text()
    assert main(["evaluate", "plga", "--protocol", "times.yaml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["cache_times"]["models"]
    assert [len(one["settings"]) for one in found.values()] == [4, 2]
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["evaluate", "plga", "--protocol", "times.yaml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert "needs transformers: pip install 'linnet[transformers]'" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--files", "none"], "--files none: no arc_challenge.jsonl"),
        ([], "--suite pldr: --files is missing"),
        (["--files", "tasks", "--suite", "pldr"], "--suite pldr: the protocol defines how models are measured"),
        (["--files", "tasks", "--precision", "int8"], "--precision int8: the protocol defines how models are measured"),
        (["--files", "tasks", "--report", "table.yaml"], "--report table.yaml: table.yaml is a file"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments, message, workspace, monkeypatch, capsys):
    monkeypatch.chdir(workspace)
    assert main(["evaluate", "plga", "--protocol", "table.yaml", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert message in line
