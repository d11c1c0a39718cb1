"""`linnet plan`, `plan fit` and `plan task`: tables, JSON, files, errors, and the printed commands."""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from known_laws import TRUTH, small_model, write_run_folder

from linnet.cli.main import main
from linnet.core.checksum import read_checked_json
from linnet.data.prepare import prepare_texts
from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec
from linnet.scaling import fit as fit_module
from linnet.scaling import parametric
from linnet.scaling import plan as plan_module
from linnet.scaling.law import read_law
from linnet.scaling.plan_report import PURPOSES

GIVEN = ["--throughput", "1e12"]
SMALL = ["--vocab-size", "257", "--context-length", "16", "--batch-size", "2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan") / "data"
    prepare_texts(
        ["the bird sang to the tree. " * 6] * 30, ["the tree was glad of it. "] * 8, folder, tokenizer="bytes"
    )
    return folder


@pytest.fixture
def few_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use every 150th start of the grid: these tests are about the code around the fit."""
    some = parametric.grid()[::150]
    monkeypatch.setattr(fit_module, "grid", lambda: some)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """36 points of a known law."""
    rows = [(n, n * ratio) for n in np.geomspace(1e6, 1e8, 9) for ratio in (5, 15, 40, 100)]
    lines = [f"{n},{d},{TRUTH.loss(n, d)}" for n, d in rows]
    path = tmp_path / "points.csv"
    path.write_text("\n".join(["parameters,tokens,loss", *lines]))
    return path


def figures(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    """Return the output of a command with --json, which must be JSON and nothing else."""
    assert main(["plan", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_budget_of_flops_as_tables(capsys: pytest.CaptureFixture[str]):
    assert main(["plan", "--flops", "1e18", "--law", "chinchilla", *GIVEN]) == 0
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert out.startswith("Plan by the law: chinchilla, Hoffmann et al. 2022")
    by_law = 0.5986950904970205 * 1e18 ** (0.28 / 0.62)
    assert f"by the law {by_law:,.0f} chinchilla, all parameters" in lines
    assert "training FLOPs 1e18 6 N D, as the laws count" in lines
    assert any(line.startswith("kaplan ") for line in lines) and any(line.startswith("replication ") for line in lines)
    search, train = (lines[lines.index(purpose) + 1] for purpose in (PURPOSES["search"], PURPOSES["train_found"]))
    assert search.startswith("linnet design --space planned-space.yaml --max-flops ")
    assert train.startswith("linnet train --model designed.yaml --data DIR ")


def test_without_data_the_vocabulary_suits_the_size_and_is_printed(capsys: pytest.CaptureFixture[str]):
    assert main(["plan", "--flops", "1e15", *GIVEN, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["model"]["vocab_size"] == 2048
    assert "vocabulary: 2,048 tokens suit this size (Tao et al. 2024" in err
    assert main(["plan", "--flops", "1e15", *GIVEN, "--vocab-size", "32000"]) == 0
    err = capsys.readouterr().err
    assert "tokens suit" not in err and "warning: this budget buys nothing useful: 1 layer of width 64, and 98%" in err


def test_amounts_are_read_with_letters(capsys: pytest.CaptureFixture[str]):
    found = figures(capsys, "--parameters", "50M", "--tokens", "2B", *GIVEN)
    assert found["parameters"]["by_law"] == 5e7 and found["tokens"] == 2_000_000_000
    assert found["training_flops"]["6ND"] == pytest.approx(6e17)
    assert found["wall_s"] == pytest.approx(found["training_flops"]["exact"] / 1e12)
    assert found["throughput"] == {"flops_per_s": 1e12, "parameters": None, "device": None}


def test_the_speed_is_measured_unless_it_is_given(capsys: pytest.CaptureFixture[str]):
    found = figures(capsys, "--parameters", "30k", "--tokens", "1M", "--device", "cpu", *SMALL)
    assert found["throughput"]["device"] == "cpu"
    assert found["throughput"]["parameters"] == found["parameters"]["total"]
    assert 1e6 < found["throughput"]["flops_per_s"] < 1e14
    assert found["steps"] == 1_000_000 // 32


def test_the_printed_commands_train_the_planned_model(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    arguments = [
        "--parameters",
        "20k",
        "--tokens",
        "3000",
        "--data",
        data,
        "--context-length",
        "16",
        "--batch-size",
        "4",
    ]
    found = figures(capsys, *arguments, *GIVEN, "--out", "my plan.yaml")
    command = shlex.split(found["commands"]["train"])
    assert command[:2] == ["linnet", "train"]
    assert main(command[1:]) == 0
    run = json.loads((tmp_path / "runs" / "my plan" / "model" / "run.json").read_text())
    assert run["parameters"] == found["parameters"]["total"]
    assert run["steps"] == found["steps"] == 47
    assert run["tokens"] >= 3000


def test_the_printed_search_finds_a_shape_for_the_same_data_that_trains(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    wanted = ["--parameters", "60k", "--tokens", "200", "--data", data, "--context-length", "16", "--batch-size", "4"]
    found = figures(capsys, *wanted, *GIVEN)
    assert main(shlex.split(found["commands"]["describe"])[1:]) == 0
    assert model_cost(ModelSpec.load("planned.yaml")).parameters == found["parameters"]["total"]
    assert main(shlex.split(found["commands"]["search"])[1:]) == 0
    plain, better = (ModelSpec.load(name) for name in ("planned.yaml", "designed.yaml"))
    assert (better.vocab_size, better.context_length) == (plain.vocab_size, plain.context_length)
    assert model_cost(better).parameters <= model_cost(plain).parameters
    assert main(shlex.split(found["commands"]["train_found"])[1:]) == 0
    run = json.loads((tmp_path / "runs" / "designed" / "model" / "run.json").read_text())
    assert run["parameters"] == model_cost(better).parameters


def test_a_folder_at_the_path_of_the_search_space_is_an_error_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def measured(*arguments: object) -> None:
        raise AssertionError("measured already")

    monkeypatch.setattr(plan_module, "measure", measured)
    (tmp_path / "x-space.yaml").mkdir()
    assert main(["plan", "--flops", "1e15", "--out", str(tmp_path / "x.yaml")]) == 2
    message = f"the search space beside it, {tmp_path / 'x-space.yaml'}: is a folder; a file is expected\n"
    assert capsys.readouterr().err == f"error: --out {tmp_path / 'x.yaml'}: {message}"


def test_the_training_text_is_counted_with_a_warning_about_repeating_it(data: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["plan", "--parameters", "1M", "--tokens", "1M", "--data", str(data), *GIVEN]
    assert main([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["data"]["epochs"] == pytest.approx(1e6 / found["data"]["tokens"])
    assert found["laws"]["chinchilla"]["bits_per_byte"] > 0
    assert "Muennighoff et al. 2023" in err
    assert err.count("\n") == len(found["warnings"])


def test_files_that_are_replaced_are_named(
    table: Path, tmp_path: Path, few_starts: None, capsys: pytest.CaptureFixture[str]
):
    plain, space, law = (tmp_path / name for name in ("x.yaml", "x-space.yaml", "law.json"))
    planned = ["--flops", "1e15", *GIVEN, "--out", str(plain)]
    fitted = ["fit", str(table), "--bootstrap", "20", "--out", str(law)]
    for arguments, files in ((planned, (plain, space)), (fitted, (law,))):
        for notes in ([], [f"replaced: {file}" for file in files]):
            assert main(["plan", *arguments]) == 0
            assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("replaced")] == notes


def test_a_report_has_pictures_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", "--flops", "1e17", *GIVEN, "--report", str(tmp_path / "report")]) == 0
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["plan.png", "report.html"]
    assert "linnet train --model planned.yaml" in (tmp_path / "report" / "report.html").read_text()


def test_a_law_is_fitted_stored_and_used_for_a_plan(
    table: Path, tmp_path: Path, few_starts: None, capsys: pytest.CaptureFixture[str]
):
    law = tmp_path / "law.json"
    found = figures(capsys, "fit", table, "--out", law, "--bootstrap", "20", "--report", tmp_path / "report")
    for name in ("E", "A", "B", "alpha", "beta"):
        assert found[name] == pytest.approx(getattr(TRUTH, name), rel=0.01)
        assert found["intervals"][name][0] <= found[name] <= found["intervals"][name][1]
    assert found == read_checked_json(law)
    assert {"law.png", "frontier.png", "report.html"} <= {path.name for path in (tmp_path / "report").iterdir()}
    planned = figures(capsys, "--flops", "1e16", "--law", law, *GIVEN)
    assert list(planned["laws"]) == [str(law), "chinchilla", "kaplan", "replication"]
    assert planned["parameters"]["by_law"] == pytest.approx(TRUTH.best(flops=1e16).parameters, rel=0.02)
    assert planned["laws"][str(law)]["loss"] == pytest.approx(
        TRUTH.loss(planned["parameters"]["total"], planned["tokens"]), rel=1e-3
    )


def test_warnings_about_a_law_are_printed_stored_and_repeated_by_a_plan(
    table: Path, tmp_path: Path, few_starts: None, capsys: pytest.CaptureFixture[str]
):
    table.write_text("\n".join(table.read_text().splitlines()[:1] + table.read_text().splitlines()[1::5]))
    law = tmp_path / "law.json"
    assert main(["plan", "fit", str(table), "--out", str(law), "--bootstrap", "20", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["warnings"] and found["warnings"][0].startswith("8 runs for five unknowns")
    assert [line for line in err.splitlines() if line.startswith("warning: ")] == [
        f"warning: {line}" for line in found["warnings"]
    ]
    assert main(["plan", "fit", str(table), "--out", str(law), "--bootstrap", "20"]) == 0
    out, err = capsys.readouterr()
    printed = " ".join((out + err).split())
    assert all(printed.count(line.replace("  ", " ")) == 1 for line in found["warnings"]), "once, below the table"
    assert main(["plan", "--flops", "1e16", "--law", str(law), *GIVEN, "--json"]) == 0
    out, err = capsys.readouterr()
    again = [f"{law}: {line}" for line in found["warnings"]]
    assert json.loads(out)["warnings"][: len(again)] == again
    assert err.startswith("".join(f"warning: {line}\n" for line in again))


def test_larger_runs_are_predicted_from_run_folders(
    tmp_path: Path, few_starts: None, capsys: pytest.CaptureFixture[str]
):
    folders = [
        write_run_folder(tmp_path / f"{width}-{tokens}", small_model(width), [tokens // 2, tokens])
        for width in (8, 16, 24, 32)
        for tokens in (30_000, 60_000, 100_000, 300_000)
    ]
    folders.append(write_run_folder(tmp_path / "going", small_model(8), [1000], finished=False))
    law = tmp_path / "half.json"
    arguments = ["plan", "fit", *map(str, folders), "--out", str(law), "--hold-out", "0.25", "--bootstrap", "20"]
    assert main([*arguments, "--report", str(tmp_path / "report")]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Scaling law: 12 of 16 runs")
    assert "Prediction\n" in out and "Ways of counting\n" in out
    assert "law: " in err and "report: " in err
    assert err.startswith(f"left out: {folders[-1]}: the run is not finished; ")
    assert (tmp_path / "report" / "held_out.png").read_bytes().startswith(b"\x89PNG")
    kept = read_law(law)
    held = json.loads(law.read_text())["fit"]["held_out"]
    assert held["runs_held_out"] == 4 and held["rms_error"] < 0.01
    assert held["runs"][-1]["predicted"] == pytest.approx(
        kept.loss(held["runs"][-1]["parameters"], held["runs"][-1]["tokens"])
    )
    assert json.loads(law.read_text())["bytes_per_token"] == 2.5


def test_the_highest_losses_are_dropped_and_the_counting_is_chosen(
    table: Path, tmp_path: Path, few_starts: None, capsys: pytest.CaptureFixture[str]
):
    table.write_text(table.read_text() + "\n1e7,1e8,99\n2e7,1e8,98")
    found = figures(capsys, "fit", table, "--out", tmp_path / "l.json", "--bootstrap", "20", "--drop-highest", "2")
    assert found["fit"]["runs"] == 36 and found["alpha"] == pytest.approx(TRUTH.alpha, rel=0.01)
    assert found["fit"]["approaches"]["1"]["reason"].startswith("needs the loss along the training")
    wrong = ["plan", "fit", str(table), "--out", str(tmp_path / "l.json"), "--counted", "without_embedding"]
    assert main(wrong) == 2
    assert "does not state its parameters without token and position embeddings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "error: nothing to plan with; give one of --flops, --hours, --parameters, --tokens\n"),
        (["--flops", "much"], "error: --flops much: expected FLOPs from 1e6 to 1e30, as in 1e18\n"),
        (["--flops", "1e18", "--hours", "2"], "error: --flops, --hours: too many; expected one of --flops, --hours,"),
        (["--flops", "1e18", "--law", "gopher"], "error: --law gopher: no such file, and no law of that name; laws: "),
        (["--flops", "1e18", "--data", "nowhere"], "error: nowhere: no such file or folder; `linnet prepare` makes"),
        (["--flops", "1e18", "--throughput", "0"], "error: --throughput 0: expected FLOPs per second from 1e3 to"),
        (["--flops", "1e9", "--throughput", "1k"], "error: a model of "),
        (["--tokens", "1e300"], "error: --tokens 1e300: expected tokens from 1 to 1e16, as in 2B\n"),
        (["--tokens", "1e-300"], "error: --tokens 1e-300: expected tokens from 1 to 1e16, as in 2B\n"),
        (["--hours", "0"], "error: --hours 0: expected hours from 0.000001 to 10,000,000, as in 0.5 or 24\n"),
        (["--hours", "1e300"], "error: --hours 1e300: expected hours from 0.000001 to 10,000,000, as in 0.5 or 24\n"),
        (["--flops", "1e300"], "error: --flops 1e300: expected FLOPs from 1e6 to 1e30, as in 1e18\n"),
        (["--parameters", "1e300"], "error: --parameters 1e300: expected parameters from 1 to 1e15, as in 50M\n"),
        (
            ["--flops", "1e18", "--throughput", "1e-300"],
            "error: --throughput 1e-300: expected FLOPs per second from 1e3 to",
        ),
        (["--flops", "1e18", "--out", "."], "error: --out .: is a folder; a file is expected\n"),
        (["--flops", "1e18", "--report", __file__], f"error: --report {__file__}: {__file__} is a file; a folder is"),
        (
            ["--parameters", "1e9", "--flops", "1e6"],
            "error: --flops 1e6 --parameters 1e9: comes to 1.67e-4 tokens; expec",
        ),
        (["fit", "nowhere", "--out", "."], "error: --out .: is a folder; a file is expected\n"),
        (["--flops", "1e18", "fit", "x", "--out", "y"], "error: --flops: stands before fit; it belongs to linnet plan"),
        (["--law", "kaplan", "fit", "x", "--out", "y"], "error: --law: stands before fit; it belongs to linnet plan"),
        (["--report", "X", "fit", "x", "--out", "y"], "error: --report: stands before fit; it belongs to linnet plan"),
        (["--json", "fit", "x", "--out", "y"], "error: --json: stands before fit; it belongs to linnet plan itself\n"),
        (["--data", "/no", "fit", "x", "--out", "y"], "error: --data: stands before fit; it belongs to linnet plan"),
        (["fit", "nothing.csv", "--out", "y"], "error: nothing.csv: no such file or folder; expected a CSV file, or"),
        (["fit", "nowhere"], "error: Missing option '--out' (see linnet plan fit --help)\n"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(expected)
    assert err.count("\n") == 1


@pytest.fixture
def task_table(tmp_path: Path) -> Path:
    """Twelve models whose accuracy follows the loss; chance is a tenth."""
    lines = []
    for size in np.geomspace(1e6, 1e8, 4):
        for ratio in (5, 15, 40):
            loss = TRUTH.loss(size, size * ratio)
            right = 0.1 + 0.9 / (1 + np.exp(-3 * (3.0 - loss)))
            lines.append(f"{size},{size * ratio},{loss},{right},1000,0.1")
    path = tmp_path / "task.csv"
    path.write_text("\n".join(["parameters,tokens,loss,right,items,chance", *lines]))
    return path


def test_a_task_is_predicted_from_smaller_models(capsys: pytest.CaptureFixture[str], task_table: Path, tmp_path: Path):
    asked = ["task", task_table, "--hold-out", "0.6", "--bootstrap", "20"]
    found = figures(capsys, *asked, "--report", tmp_path / "report")
    assert (found["runs_fitted"], found["runs_held_out"], found["chance"]) == (5, 7, 0.1)
    assert found["half_way_loss"] == pytest.approx(3.0, rel=1e-3)
    assert found["by_loss"]["mean_absolute_error"] < 1e-3 and found["by_loss"]["inside_interval"] == 7
    assert found["by_size"] == {"reason": "5 runs are too few for a law's five unknowns; expected at least 6"}
    assert (tmp_path / "report" / "task.png").is_file()
    assert main(["plan", *map(str, asked)]) == 0
    out = capsys.readouterr().out
    assert "Predictability of a task" in out and "7 of 7" in out and "mean error of no progress" in out


def test_a_task_without_larger_models_is_refused(capsys: pytest.CaptureFixture[str], task_table: Path):
    assert main(["plan", "task", str(task_table), "--hold-out", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "hold_out" in line.replace("hold-out", "hold_out") and "expected a share between 0 and 1" in line
    assert main(["plan", "--flops", "1e18", "task", str(task_table)]) == 2
    assert main(["plan", "task", str(task_table.with_name("none.csv"))]) == 2
    assert "no such file or folder" in capsys.readouterr().err
