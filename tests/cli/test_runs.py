"""`linnet runs`."""

import json
import shutil
from pathlib import Path

import pytest

from linnet.cli.main import main
from linnet.data.prepare import prepare_texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    prepare_texts(["the bird sang to the tree. " * 9] * 20, ["the tree was glad. "] * 6, folder / "data", "bytes")
    small = ["model.d_model=16", "model.blocks.0.repeat=1", "training.steps=4", "training.batch_size=1",
             "training.context_length=16", "training.threads=1", "training.evaluate.tokens=64", "training.log.every=1",
             "training.evaluate.every=2"]  # fmt: skip
    changes = [part for change in small for part in ("--set", change)]
    for name, seed in (("one", 0), ("other", 7)):
        out = ["--out", str(folder / "runs" / name), "--set", f"training.seed={seed}"]
        assert main(["train", "--model", "tiny-ted", "--data", str(folder / "data"), *changes, *out]) == 0
    return folder


def answer(capsys, *words):
    assert main(["runs", *map(str, words)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("verb", [[], ["list"]])
def test_all_runs_below_a_folder_stand_in_a_table(folder, capsys, verb, monkeypatch):
    monkeypatch.chdir(folder)
    capsys.readouterr()
    head, *rows = answer(capsys, *verb, "runs").splitlines()
    assert head.split() == ["run", "model", "parameters", "steps", "tokens", "bits/byte", "time", "state"]
    assert [row.split()[:2] for row in rows] == [["one", "tiny-ted"], ["other", "tiny-ted"]]
    assert all(row.endswith("finished") for row in rows)
    assert answer(capsys, *verb).count("finished") == 2
    found = json.loads(answer(capsys, *verb, "runs", "--json"))
    assert [run["path"] for run in found] == ["runs/one", "runs/other"]
    assert {run["tokens"] for run in found} == {64}
    assert answer(capsys, *verb, "data") == "data: no runs\n"


def test_two_runs_side_by_side(folder, capsys):
    one, other = folder / "runs" / "one", folder / "runs" / "other"
    told = answer(capsys, "diff", one, other)
    assert "training.seed" in told and "bits per byte" in told and "training.steps" not in told
    found = json.loads(answer(capsys, "diff", one, other, "--json"))
    assert found["fields"] == {"training.seed": [0, 7]}
    assert found["figures"][0]["steps"] == 4
    assert answer(capsys, "diff", one, one).startswith("The same in every field.\n")


def test_a_run_and_its_curves(folder, capsys):
    told = answer(capsys, "show", folder / "runs" / "one")
    for part in ("tiny-ted", "finished", "loss, bits per byte: training, held out, causal", "learning rate", "└1"):
        assert part in told
    assert any("\u2801" <= character <= "\u28ff" for character in told)
    found = json.loads(answer(capsys, "show", folder / "runs" / "one", "--json"))
    assert [line["step"] for line in found["lines"]] == [1, 2, 3, 4] and found["state"] == "finished"


@pytest.mark.parametrize(
    ("damaged", "damage"),
    [
        ("model/config.json", lambda path: path.write_text(path.read_text().replace("tiny", "tinY"))),
        ("model/run.json", lambda path: path.unlink()),
        ("model/run.json", lambda path: (path.unlink(), path.mkdir())),
        ("model/run.json", lambda path: (path.unlink(), path.symlink_to("nothing"))),
        ("model/manifest.json", lambda path: path.write_text("null")),
        ("config.yaml", lambda path: path.unlink()),
        ("config.yaml", lambda path: shutil.copy(path.parents[2] / "runs" / "other" / "config.yaml", path)),
    ],
)
@pytest.mark.parametrize("words", [["damaged"], ["list", "damaged", "--json"], ["show", "damaged/one"],
                                   ["diff", "damaged/one", "runs/other", "--json"]])  # fmt: skip
def test_what_is_damaged_is_named_and_the_rest_is_told(folder, capsys, monkeypatch, words, damaged, damage):
    monkeypatch.chdir(folder)
    shutil.rmtree("damaged", ignore_errors=True)
    shutil.copytree("runs/one", "damaged/one")
    damage(folder / "damaged" / "one" / damaged)
    capsys.readouterr()
    main(["runs", *words])
    err = capsys.readouterr().err
    assert "damaged/one" in err and Path(damaged).name in err


def test_a_run_without_lines_has_no_curves(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    shutil.rmtree("damaged", ignore_errors=True)
    shutil.copytree("runs/one", "damaged/one")
    for name in ("model", "checkpoints"):
        shutil.rmtree(folder / "damaged" / "one" / name)
    (folder / "damaged" / "one" / "metrics.jsonl").write_text("")
    told = answer(capsys, "show", "damaged/one")
    assert told.endswith("no lines of figures: nothing to draw yet\n") and "learning rate" not in told


def test_lost_lines_of_figures_are_told(folder, caplog, monkeypatch):
    monkeypatch.chdir(folder)
    shutil.rmtree("damaged", ignore_errors=True)
    shutil.copytree("runs/one", "damaged/one")
    metrics = folder / "damaged" / "one" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join([lines[0], *lines[2:]]))
    assert main(["runs", "show", "damaged/one"]) == 0
    assert "damaged/one/metrics.jsonl: no line of step 2: lost" in caplog.text


@pytest.mark.parametrize("words", [["nothing"], ["show", "nothing"], ["diff", "nothing", "nothing"]])
def test_mistakes_are_one_line(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["runs", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: nothing: ") and err.count("\n") == 1


def test_show_has_what_a_run_read_of_each_source_of_a_mixture(capsys, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("<|endoftext|>".join(f"{name} sang {n} times " * 5 for n in range(20)))
    mixture = tmp_path / "mixture.yaml"
    mixture.write_text(json.dumps({"sources": {n: {"inputs": str(tmp_path / f"{n}.txt"), "weight": 1} for n in "ab"}}))
    data, out = str(tmp_path / "data"), str(tmp_path / "run")
    assert main(["prepare", "--mixture", str(mixture), "--out", data, "--tokenizer", "bytes"]) == 0
    settings = [f"training.mixture={mixture}", "model.d_model=16", "model.blocks.0.repeat=1"]
    settings += [f"training.{one}" for one in ("steps=2", "batch_size=2", "context_length=16", "precision=float32")]
    changes = [part for change in settings for part in ("--set", change)]
    assert main(["train", "--model", "tiny-ted", "--data", data, "--out", out, *changes]) == 0
    capsys.readouterr()
    told = " ".join(answer(capsys, "show", out).split())
    assert "source a 50.0% of the tokens, 50.0% of the bytes" in told and "source b 50.0% of the tokens" in told
    sources = json.loads(answer(capsys, "show", out, "--json"))["sources"]
    assert [(one["source"], one["tokens"]) for one in sources] == [("a", 32), ("b", 32)]
