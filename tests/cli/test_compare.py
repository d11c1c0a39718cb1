"""`linnet compare` as its help and its documentation say it."""

import errno
import itertools
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from linnet.cli.compare import compare
from linnet.cli.main import main
from linnet.core.checksum import read_checked_json
from linnet.data.prepare import prepare_texts
from linnet.experiments.results import read_rows
from linnet.experiments.suite import Suite, load_suites, suite_of_models
from linnet.model.cost import model_cost
from linnet.training.run import train_run
from linnet.training.spec import RunSpec

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = re.findall(r"Example: linnet compare (.+)", compare.__doc__ or "")
MODEL = {
    "vocab_size": 257,
    "d_model": 8,
    "context_length": 16,
    "blocks": [{"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 8}}],
}

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("example", [example for example in EXAMPLES if ".yaml" in example])
def test_the_examples_of_its_help_describe_comparisons(example: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(REPOSITORY)
    file, *options = shlex.split(example)
    changes = [value for option, value in itertools.pairwise(options) if option == "--set"]
    spec = Suite.load(file, changes)
    steps = {spec.run_spec(run, 0, Path("data")).steps for run in spec.runs}
    assert steps == {100 if changes else 2400}


def test_its_help_has_examples():
    assert [".yaml" in example for example in EXAMPLES] == [False, True, False, True, True, False, False]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    prepare_texts(["the bird sang. " * 8] * 20, ["the tree was glad. "] * 9, folder / "data", tokenizer="bytes")
    for seed in (0, 1):
        training = {"steps": 2, "batch_size": 2, "threads": 1, "evaluate": {"tokens": 64}, "seed": seed}
        plain = {"model": MODEL, "data": str(folder / "data"), "training": training}
        train_run(RunSpec.parse(plain, "test"), folder / f"one-{seed}")
    return folder


def test_models_are_trained_with_each_value_of_a_grid(runs: Path, tmp_path: Path, capsys: Capture):
    files = [tmp_path / "narrow.yaml", tmp_path / "own.yaml"]
    for file, width in zip(files, (8, 16), strict=True):
        file.write_text(yaml.safe_dump(MODEL | {"d_model": width}))
    command = ["compare", *map(str, files), "--data", str(runs / "data"), "--grid", "lr=1e-3,3e-3", "--seeds", "2"]
    command += ["--steps", "1", "--batch-size", "2", "--threads", "1", "--match", "parameters"]
    assert main([*command, "--out", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = [f"{model} lr {rate}" for model in ("narrow", "own") for rate in ("0.001", "0.003")]
    assert [run["name"] for run in found["runs"]] == names
    assert sorted(path.name for path in (tmp_path / "out" / "runs").iterdir()) == sorted(
        f"{name.replace(' ', '-')}-seed-{seed}" for name in names for seed in (0, 1)
    )
    rates = [read_run_rate(tmp_path / "out" / "runs" / f"own-lr-{rate}-seed-0") for rate in ("0.001", "0.003")]
    assert rates == [1e-3, 3e-3]


def read_run_rate(folder: Path) -> float:
    return float(yaml.safe_load((folder / "config.yaml").read_text())["training"]["optimizer"]["lr"])


def test_models_alone_are_trained_on_the_built_in_stories():
    suite = Suite.checked(suite_of_models(["tiny-ted", "tiny-attention"]), "compare")
    assert suite.text and suite.text.stories and [run.model for run in suite.runs] == ["tiny-ted", "tiny-attention"]
    matched = Suite.checked(suite_of_models(["tiny-ted", "tiny-attention"]) | {"match": "parameters"}, "compare")
    sizes = [model_cost(matched._model_of(run)).parameters for run in matched.runs]
    assert abs(sizes[1] / sizes[0] - 1) < 0.01


def test_options_join_the_fields_of_a_file(tmp_path: Path):
    file = tmp_path / "suite.yaml"
    file.write_text("text: {stories: 20}\nmodel: tiny-ted\ngrid: {training.steps: [1, 2]}\n")
    suite = load_suites(file, (), {"seeds": [0], "grid": {"model.d_model": [32, 64]}})["suite"]
    assert suite.seeds == (0,)
    assert [run.set for run in suite.runs] == [
        {"training.steps": steps, "model.d_model": width} for steps in (1, 2) for width in (32, 64)
    ]


def test_runs_that_exist_are_set_side_by_side(runs: Path, tmp_path: Path, capsys: Capture):
    folders = [str(runs / "one-0"), str(runs / "one-1")]
    before = sorted(path for path in runs.rglob("*"))
    assert main(["compare", *folders, "--out", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert err == "" and f"curves: {tmp_path / 'out' / 'curves.png'}" in out
    cells = next(line for line in out.splitlines() if line.startswith("one ")).split()
    assert (cells[1], cells[3]) == ("2", "±")
    assert main(["compare", *folders, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == read_checked_json(tmp_path / "out" / "results.json")
    assert main(["compare", *folders, f"{folders[0]}/../{Path(folders[0]).name}", "--json"]) == 0
    again, said = capsys.readouterr()
    assert json.loads(again) == printed and said.startswith("note: ") and said.endswith("; it counts once\n")
    assert sorted(path for path in runs.rglob("*")) == before, "nothing is written without --out"


def test_own_numbers_stand_beside_a_papers_on_the_page_and_on_the_terminal(runs: Path, tmp_path: Path, capsys: Capture):
    published = {
        "title": "Published", "source": "somebody", "columns": [{"name": "size", "metric": "parameters"}],
        "rows": [{"model": "theirs", "values": {"size": 10_000}}],
    }  # fmt: skip
    path = tmp_path / "published.json"
    path.write_text(json.dumps(published))
    out = tmp_path / "out"
    assert main(["compare", str(runs / "one-0"), str(runs / "one-1"), "--against", str(path), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    own = next(line for line in said.splitlines() if line.startswith("one (own)"))
    size, difference = own.split()[2:]
    assert difference == f"({int(size.replace(',', '')) - 10_000:+,})" and f"report: {out / 'report.html'}" in said
    text = (out / "report.md").read_text()
    assert "| theirs | 10,000 |" in text and "| memory at 1M | " in text
    path.write_text(json.dumps(published | {"columns": [{"name": "size", "metric": "parmeters"}]}))
    assert main(["compare", str(runs / "one-0"), "--against", str(path), "--out", str(tmp_path / "new")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "columns[0].metric: parmeters: did you mean parameters?" in line and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["no.yaml"],
            "no.yaml: no such file, folder or preset; expected a comparison's YAML file, folders of runs, or presets",
        ),
        (["one-0", "none"], "none: no such folder; expected the folder of a run or of a comparison"),
        (["one-0", "data"], "data: not the folder of a run (no config.yaml), nor one with runs/ in it"),
        (["one-0", "data/manifest.json"], "data/manifest.json: one FILE, or folders of runs; not several and not both"),
        (["tiny-tedd"], "tiny-tedd: no such file, folder or preset; did you mean tiny-ted?"),
        (["tiny-ted", "one-0"], "one-0: no model, as tiny-ted is; expected a model for each run, or one FILE, or"),
        (["tiny-ted", "tiny-ted"], "compare: runs[1].name: tiny-ted: another run has that name; expected a new one"),
        (["one-0", "--match", "parameters"], "--match: these runs are trained already; expected models, or a FILE"),
        (["one-0", "--data", "data"], "--data data: belongs to models; a FILE names its own text"),
        (["tiny-ted", "--grid", "lr"], "--grid lr: expected FIELD=A,B,..."),
        (["tiny-ted", "--grid", "lr=x"], "compare: runs: tiny-ted lr x: set: training.optimizer.lr: "),
        (["one-0", "--set", "training.steps=3"], "--set training.steps=3: these runs are trained already"),
        (["one-0", "--out", "one-1"], "--out one-1: exists already; expected a new folder"),
        (["one-0", "--out", "data/manifest.json/x"], "--out data/manifest.json/x: data/manifest.json is a file"),
    ],
)
def test_a_mistake_is_one_line(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, arguments: list[str], message: str
):
    monkeypatch.chdir(runs)
    assert main(["compare", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {message}") and err.count("\n") == 1


def test_what_cannot_be_written_leaves_no_folder_that_refuses_the_next(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    command = ["compare", str(runs / "one-0"), "--out", str(tmp_path / "out")]

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("linnet.experiments.suite_report.curves_plot", full)
        assert main(command) == 1
    assert list(tmp_path.iterdir()) == []
    assert main(command) == 0


def test_an_interrupt_outside_training_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("linnet.experiments.run.prepare_data", interrupt)
    plain = {"text": {"stories": 30}, "tokenizer": {"kind": "bytes"}, "model": MODEL, "runs": [{"name": "a"}]}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({**plain, "name": "small", "training": {"steps": 1}}))
    assert main(["compare", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out")]) == 130
    assert capsys.readouterr() == ("", "interrupted; the same command continues\n")


def test_a_file_with_variants_makes_one_table(tmp_path: Path, capsys: Capture):
    plain = {
        "name": "first", "text": {"stories": 30}, "tokenizer": {"kind": "bytes"}, "model": MODEL, "seeds": [0],
        "training": {"steps": 1, "batch_size": 2, "threads": 1, "evaluate": {"tokens": 64}}, "runs": [{"name": "a"}],
        "variants": {"longer": {"name": "longer", "training": {"steps": 2}}, "third": {"name": "third"}},
    }  # fmt: skip
    (tmp_path / "all.yaml").write_text(yaml.safe_dump(plain))
    command = ["compare", str(tmp_path / "all.yaml"), "--out", str(tmp_path / "out")]
    assert main([*command, "--only", "all", "--only", "longer", "--json"]) == 0
    suites = json.loads(capsys.readouterr().out)["suites"]
    assert [suite["name"] for suite in suites.values()] == ["first", "longer"] and set(suites) == {"all", "longer"}
    rows = read_rows(tmp_path / "out" / "results.jsonl")
    assert {(row.suite, row.measure) for row in rows} == {
        (suite, measure) for suite in ("first", "longer") for measure in ("training", "likelihood")
    }
    assert (tmp_path / "out" / "longer" / "report.html").is_file()
    assert main([*command, "--only", "longer"]) == 0
    out, err = capsys.readouterr()
    assert (
        out.startswith("longer: Held-out text, and training") and "longer: 0 to train; 2 rows are in the record" in err
    )
    assert main([*command, "--only", "fourth"]) == 2
    assert "--only fourth: expected suites of the file: all, longer, third" in capsys.readouterr().err
