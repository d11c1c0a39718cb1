"""A whole comparison, tiny: what it trains, leaves, and does not do twice."""

import json
from pathlib import Path

import pytest
import torch
import yaml

from linnet.cli.main import main
from linnet.core.errors import UserError
from linnet.experiments.jobs import Runner
from linnet.experiments.recorded import recorded
from linnet.experiments.run import run_suite
from linnet.experiments.suite import Suite
from linnet.inference.language_model import load
from linnet.layers.mixers.plga.operator import DeductiveOutputs
from linnet.model.store import load_decoder

SMALL = {
    "text": {"stories": 60, "parts": 2},
    "tokenizer": {"kind": "bytes"},
    "model": "tiny-pldr",
    "training": {"steps": 4, "batch_size": 2, "context_length": 32, "evaluate": {"every": 2, "tokens": 500}},
    "seeds": [0, 1],
    "runs": [
        {"name": "first half", "shown": False},
        {"name": "learned", "part": 2},
        {"name": "transferred", "part": 2, "calibration_of": "first half"},
        {"name": "random", "part": 2, "set": {"model.calibration": "random"}},
    ],
}


def deductive_outputs(decoder, tokens_BT) -> list[DeductiveOutputs]:
    return [DeductiveOutputs(*layer.values()) for layer in decoder.auxiliary_outputs(tokens_BT) if len(layer) > 1]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("comparison")
    (folder / "small.yaml").write_text(yaml.safe_dump(SMALL))
    assert main(["compare", str(folder / "small.yaml"), "--out", str(folder / "out")]) == 0
    return folder / "small.yaml", folder / "out"


def test_every_shown_run_has_figures_of_every_seed(compared):
    figures = recorded([compared[1]]).to_dict()
    assert [run["name"] for run in figures["runs"]] == ["learned", "transferred", "random"]
    for run in figures["runs"]:
        assert [each["seed"] for each in run["seeds"]] == [0, 1]
        values = [each["bits_per_byte"] for each in run["seeds"]]
        assert run["bits_per_byte"]["mean"] == pytest.approx(sum(values) / 2)
        assert (run["leak"] is None) == (run["name"] != "learned")
    assert (compared[1] / "curves.png").stat().st_size > 5000


@torch.no_grad()
@pytest.mark.parametrize("seed", [0, 1])
def test_the_transferred_operators_are_those_of_the_first_half(compared, seed: int):
    source = load(compared[1] / "runs" / f"first-half-seed-{seed}")
    inferred = deductive_outputs(source.decoder, torch.tensor([source.prompt_tokens("")]))
    taken = load_decoder(compared[1] / "runs" / f"transferred-seed-{seed}" / "model").state_dict()
    for index, outputs in enumerate(inferred):
        torch.testing.assert_close(taken[f"blocks.0.layers.{index}.mixer.operator.g"], outputs.g[0])


def test_the_second_call_trains_nothing(compared, capsys):
    weights = sorted((compared[1] / "runs").rglob("model.safetensors"))
    before = [path.stat().st_mtime_ns for path in weights]
    assert main(["compare", str(compared[0]), "--out", str(compared[1]), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.count("nothing to do") == 8
    assert json.loads(out)["runs"] == recorded([compared[1]]).to_dict()["runs"]
    assert [path.stat().st_mtime_ns for path in weights] == before


def test_the_folder_may_be_spelled_in_another_way(compared, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(compared[0].parent)
    assert main(["compare", "small.yaml", "--out", "out"]) == 0
    assert capsys.readouterr().err.count("nothing to do") == 8


def test_a_changed_recipe_is_refused_in_the_same_folder(compared, tmp_path: Path, capsys):
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(SMALL | {"training": SMALL["training"] | {"batch_size": 3}}))
    assert main(["compare", str(tmp_path / "other.yaml"), "--out", str(compared[1])]) == 2
    assert "holds a suite with training.batch_size: 2, not 3; choose another --out" in capsys.readouterr().err


def test_fields_set_for_all_runs_are_trained_recorded_and_checked(compared, tmp_path: Path, capsys):
    runs = [{"name": "learned"}, {"name": "random", "set": {"model.calibration": "random"}}]
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(SMALL | {"runs": runs, "seeds": [0]}))
    changes = ["--set", "training.steps=2", "--set", "model.blocks.0.repeat=1"]
    assert main(["compare", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "out"), *changes, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert {each["tokens"] for each in figures["runs"]} == {2 * 2 * 32}
    description = json.loads((tmp_path / "out" / "suite.json").read_text())
    assert description["training"]["steps"] == 2 and description["model"]["blocks"][0]["repeat"] == 1
    assert main(["compare", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "out")]) == 2
    assert "holds a suite with model" in capsys.readouterr().err
    assert main(["compare", str(compared[0]), "--out", str(compared[1]), "--set", "training.steps=2"]) == 2
    assert "holds a suite with training.steps: 4, not 2; choose another --out" in capsys.readouterr().err


def test_a_missing_text_is_reported_with_the_file_that_names_it(tmp_path: Path):
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(SMALL | {"text": {"files": ["mine.txt"], "parts": 2}}))
    with pytest.raises(UserError, match=r"^c\.yaml: text\.files: mine\.txt: no such file"):
        run_suite(Suite.load(tmp_path / "c.yaml"), tmp_path / "out", Runner(print), origin="c.yaml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": SMALL["text"] | {"stories": 70}}, "holds a suite with text.stories: 60, not 70"),
        ({"runs": [SMALL["runs"][0] | {"part": 2}, *SMALL["runs"][1:]]}, "holds another run 'first half'"),
    ],
)
def test_runs_on_another_text_are_not_shown(compared, tmp_path: Path, capsys, changes, message: str):
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(SMALL | changes))
    assert main(["compare", str(tmp_path / "other.yaml"), "--out", str(compared[1])]) == 2
    assert message in capsys.readouterr().err


def test_an_edited_file_is_another_text(tmp_path: Path, capsys):
    (tmp_path / "a.txt").write_text("<|endoftext|>".join(f"document {i}" for i in range(30)))
    plain = SMALL | {"text": {"files": [str(tmp_path / "a.txt")]}, "seeds": [0], "runs": [{"name": "one"}]}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(plain))
    arguments = ["compare", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    (tmp_path / "a.txt").write_text("<|endoftext|>".join(f"another {i}" for i in range(30)))
    assert main(arguments) == 2
    assert "holds a suite with another content of the files" in capsys.readouterr().err
