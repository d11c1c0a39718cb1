import json
from pathlib import Path

import pytest
import yaml

from linnet.cli.main import main
from linnet.data.prepare import prepare_texts
from linnet.design.scores import SCORES
from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec

SPACE = {
    "name": "tiny",
    "model": {"vocab_size": 257, "d_model": 16, "context_length": 16, "head": {"norm": {"kind": "rms"}}},
    "blocks": 2,
    "block": {
        "width": [8, 16, 24],
        "ratio": [1, 2],
        "repeat": [1, 2],
        "share_weights": True,
        "head_width": 4,
        "mixer": [{"kind": "attention"}, {"kind": "ted"}],
        "feed_forward": {"kind": "mlp"},
    },
}
QUICK = ["--set", "search.population=24", "--set", "search.parents=8", "--set", "search.iterations=10"]


@pytest.fixture
def space(tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(SPACE))
    return str(path)


def output(capsys, *arguments: str) -> str:
    assert main(["design", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_the_written_description_trains(space: str, tmp_path: Path, capsys):
    best = tmp_path / "best.yaml"
    limits = ["--max-flops", "150k", "--max-parameters", "9k"]
    for first_line in ("", f"replaced: {best}\n"):
        assert main(["design", "--space", space, *limits, "--out", str(best), *QUICK]) == 0
        shown, err = capsys.readouterr()
        assert err == f"{first_line}description: {best}\n"
    assert shown.splitlines()[0] == "Design by penalized_parameters: space tiny"
    for part in ("flops ", "parameters ", "evolution ", "true optimum "):
        assert any(line.startswith(part) for line in shown.splitlines())
    assert "0.000%" not in shown
    cost = model_cost(ModelSpec.load(best))
    assert cost.flops(16, with_head=False) <= 150_000
    assert cost.parameters <= 9_000
    texts = [f"the bird {n} sang to the tree {n % 7} and the tree was glad. " * 3 for n in range(20)]
    prepare_texts(texts, texts[:4], tmp_path / "data", tokenizer="bytes")
    run = ["train", "--model", str(best), "--data", str(tmp_path / "data"), "--out", str(tmp_path / "run")]
    assert main([*run, "--set", "training.steps=2", "--set", "training.evaluate.tokens=64"]) == 0


def test_a_budget_applies_to_the_vocabulary_of_the_data(space: str, tmp_path: Path, capsys):
    """The budget of 9,000 parameters counts the data's vocabulary: `linnet train` builds exactly the found model."""
    texts = [f"the bird {n} sang to the tree {n % 7} and the tree was glad. " * 3 for n in range(20)]
    prepare_texts(texts, texts[:4], tmp_path / "data", tokenizer="char")
    best, run = tmp_path / "best.yaml", tmp_path / "run"
    arguments = ["--space", space, "--max-parameters", "9k", "--data", str(tmp_path / "data"), "--out", str(best)]
    assert main(["design", *arguments, "--json", *QUICK]) == 0
    figures = json.loads(capsys.readouterr().out)
    found = ModelSpec.load(best)
    assert found.vocab_size == figures["cost"]["vocab_size"] > 257
    training = ["--set", "training.steps=1", "--set", "training.evaluate.tokens=64", "--set", "training.threads=1"]
    start = ["train", "--model", str(best), "--data", str(tmp_path / "data"), "--out", str(run)]
    assert main([*start, *training, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == figures["cost"]["parameters"] <= 9000
    without = json.loads(output(capsys, "--space", space, "--max-parameters", "9k", "--json", *QUICK))
    assert without["cost"]["vocab_size"] == 257
    own = json.loads(output(capsys, *arguments[:6], "--vocab-size", str(found.vocab_size), "--json", *QUICK))
    assert own["model"]["blocks"] == figures["model"]["blocks"]


def test_fields_of_the_space_are_set(space: str, capsys):
    changes = ["--set", "model.context_length=8", "--set", "blocks=1", "--set", "block.mixer={kind: ted}"]
    figures = json.loads(output(capsys, "--space", space, "--json", *changes, *QUICK))
    model = ModelSpec.parse(figures["model"], "json")
    assert (model.context_length, len(model.blocks), model.blocks[0].mixer.kind) == (8, 1, "ted")
    assert figures["cost"]["tokens"] == 8
    assert figures["models"] == 3 * 2 * 2


def test_a_note_if_nothing_is_written(space: str, tmp_path: Path, capsys):
    assert main(["design", "--space", space, *QUICK]) == 0
    assert capsys.readouterr().err.startswith("nothing is written; --out FILE ")
    assert main(["design", "--space", space, "--pareto", "flops,score", "--points", "2", *QUICK]) == 0
    assert capsys.readouterr().err.startswith("nothing is written; --out DIR ")


def test_json_has_every_figure(space: str, capsys):
    arguments = ["--space", space, "--max-flops", "150k", "--max-state", "3kB@16", "--max-weights", "40kB"]
    figures = json.loads(output(capsys, *arguments, "--score", "penalized_parameters", "--json", *QUICK))
    model = ModelSpec.parse(figures["model"], "json")
    cost = model_cost(model)
    assert {budget["metric"]: (budget["limit"], budget["value"]) for budget in figures["budgets"]} == {
        "flops": (150_000, cost.flops(16, with_head=False)),
        "state@16": (3000, cost.state_bytes(16)),
        "weights": (40_000, cost.weights_bytes("float32")),
    }
    assert all(budget["value"] <= budget["limit"] for budget in figures["budgets"])
    assert figures["score"]["name"] == "penalized_parameters"
    assert figures["score"]["value"] == figures["optimum"]["score"]
    assert figures["evolution"]["population"] == 24
    assert 0 <= figures["evolution"]["gap"] < 1
    assert figures["cost"]["parameters"] == cost.parameters
    assert figures["cost"]["flops_per_sequence"] == {
        "with_head": cost.flops(16, with_head=True),
        "without_head": cost.flops(16, with_head=False),
    }


def test_the_head_counts_if_requested(space: str, capsys):
    plain, counted = (
        json.loads(output(capsys, "--space", space, "--max-flops", "1M", "--json", *QUICK, *more))["budgets"][0][
            "value"
        ]
        for more in ([], ["--with-head"])
    )
    assert counted > 2 * 16 * 257 * 16
    assert plain != counted


def test_state_and_weights_in_half_the_precision(space: str, capsys):
    limits = ["--max-state", "100kB@16", "--max-weights", "100MB", "--max-training-memory", "1GB", "--batch", "2"]
    figures = json.loads(
        output(capsys, "--space", space, *limits, "--precision", "bfloat16", "--tokens", "8", "--json", *QUICK)
    )
    cost = model_cost(ModelSpec.parse(figures["model"], "json"))
    values = [budget["value"] for budget in figures["budgets"]]
    assert values == [cost.weights_bytes("bfloat16"), cost.training_memory(2, 8).total, cost.state_bytes(16, 2)]
    assert figures["cost"]["tokens"] == 8


def test_a_seed_reproduces_the_result(space: str, capsys):
    arguments = ["--space", space, "--max-flops", "150k", "--method", "evolution", "--json", *QUICK]
    first, again, other = (output(capsys, *arguments, "--seed", seed) for seed in ("3", "3", "4"))
    assert first == again != other


def test_exactly(space: str, capsys):
    figures = json.loads(output(capsys, "--space", space, "--method", "exact", "--json"))
    assert figures["evolution"] is None
    assert figures["score"]["value"] == figures["optimum"]["score"]


def test_settings_of_a_score(space: str, capsys):
    first, other = (
        json.loads(output(capsys, "--space", space, "--json", *QUICK, "--set", f"score.beta={beta}"))["score"]
        for beta in (0, 2)
    )
    assert first["beta"] == 0
    assert other["beta"] == 2
    assert first["value"] > other["value"]


def test_invalid_combinations_are_noted(tmp_path: Path, capsys):
    path = tmp_path / "odd.yaml"
    path.write_text(yaml.safe_dump({**SPACE, "block": {**SPACE["block"], "width": [8, 10]}}))
    assert main(["design", "--space", str(path), *QUICK]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "8 combinations make no block; the first: head_width: 4: must divide the width 10"


def test_the_scores_are_listed(capsys):
    shown = output(capsys, "scores")
    assert all(f"\n{name} " in shown for name in SCORES)
    assert json.loads(output(capsys, "scores", "--json")).keys() == SCORES.keys()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "error: --space: missing; give a search space: hybrid, merino, mixed, patterned, study, or a YAML file"),
        (["--space", "nowhere"], "error: nowhere: no such file, and no space of that name; spaces: "),
        (["--space", "merino", "--max-flops", "60X"], "error: --max-flops 60X: expected a positive number"),
        (
            ["--space", "merino", "--max-flops", "1k"],
            "error: --max-flops 1k: nothing in the space merino meets it; the ",
        ),
        (["--space", "merino", "--max-state", "2MB"], "error: --max-state 2MB: expected bytes@tokens, as in 2MB@4096"),
        (["--space", "merino", "--score", "beauty"], "error: --score 'beauty': must be one of parameters, "),
        (["--space", "merino", "--set", "search.pop=3"], "error: --set: search.pop: unknown key (value 3)"),
        (
            ["--space", "merino", "--set", "score.beta=-1"],
            "error: --set: score.beta: -1: must be greater than or equal",
        ),
        (["--space", "merino", "--tokens", "4096"], "error: --tokens 4096: the models' learned positions end at 2048"),
        (
            ["--space", "merino", "--max-weights", "60M"],
            "error: --max-weights 60M: expected a number above 0 with one of the units B, ",
        ),
        (["--space", "merino", "--max-weights", "1e400B"], "error: --max-weights 1e400B: expected a number above 0"),
        (["--space", "mixed", "--tokens", "1" + "0" * 400], "error: --tokens 1000"),
        (
            ["--space", "merino", "--pareto", "state@²,score"],
            "error: --pareto state@²,score: expected score and one or",
        ),
        (
            ["--max-flops", "3", "scores"],
            "error: --max-flops: stands before scores; it belongs to linnet design itself",
        ),
        (
            ["--space", "merino", "--points", "4"],
            "error: --points: belongs to --pareto; give it too, or leave both out",
        ),
        (["--space", "merino", "--device", "cpu"], "error: --device: belongs to --max-latency; give it too, or leave"),
        (["--space", "merino", "--latency-of", "token"], "error: --latency-of: belongs to --max-latency; give it too"),
        (["--space", "merino", "--threads", "1"], "error: --threads: belongs to --max-latency; give it too, or leave"),
        (["--space", "merino", "--batch", "8"], "error: --batch: belongs to --max-training-memory or --pareto; give"),
        (["--space", "merino", "--with-head"], "error: --with-head: belongs to --max-flops or --pareto; give it too"),
        (
            ["--space", "merino", "--precision", "int8"],
            "error: --precision: belongs to --max-weights or --max-state or --par",
        ),
        (["--space", "merino", "--data", "nowhere"], "error: nowhere"),
        (["--space", "merino", "--vocab-size", "1"], "error: Invalid value for '--vocab-size': "),
        (
            ["--space", "merino", "--vocab-size", "9", "--set", "model.vocab_size=8"],
            "error: --set model.vocab_size: is decided by --data or --vocab-size; leave one of both out",
        ),
        (
            ["--space", "merino", "--set", "model.vocab_size=-1"],
            "error: --set model.vocab_size: -1: must be greater",
        ),
        (["--space", "merino", "--set", "blocks=abc"], "error: --set blocks: 'abc': must be a whole number"),
        (["--space", "merino", "--set", "modl.vocab_size=9"], "error: --set: modl: unknown key"),
        (["--space", "merino", "--out", "."], "error: --out .: is a folder; a file is expected"),
        (
            ["--space", "merino", "--out", __file__ + "/x"],
            f"error: --out {__file__}/x: {__file__} is a file; a folder is",
        ),
        (
            ["--space", "merino", "--pareto", "flops,score", "--out", __file__],
            f"error: --out {__file__}: {__file__} is a file; a folder is expected",
        ),
        (["--json", "scores"], "error: --json: stands before scores; it belongs to linnet design itself"),
        (["--set", "a=1", "scores"], "error: --set: stands before scores; it belongs to linnet design itself"),
        (["--method", "luck"], "error: Invalid value for '--method': "),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], expected: str, capsys):
    assert main(["design", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(expected)
    assert err.count("\n") == 1


@pytest.fixture
def trained(tmp_path: Path) -> str:
    """Synthetic trained decoders: wider is better."""
    head = "n_layer,d_model,d_inner,params_attention,params_ffn,params_total,valid_ppl"
    rows = [f"1,{w},{2 * w},{4 * w * w},{4 * w * w},{9 * w * w},{100 / w}" for w in range(8, 40)]
    (tmp_path / "trained.csv").write_text("\n".join([head, *rows]))
    return str(tmp_path / "trained.csv")


def test_validate(trained: str, tmp_path: Path, capsys):
    arguments = ["validate", "--runs", trained, "--bootstrap", "20", "--band", "8", "--json"]
    figures = json.loads(output(capsys, *arguments))
    assert figures["scores"].keys() == SCORES.keys()
    assert all(one["spearman"] == pytest.approx(1) and one["regret"] == 0 for one in figures["scores"].values())
    chosen = [*arguments[:-1], "--score", "entropy", "--set", "sigma=0.5", "--report", str(tmp_path / "report")]
    assert main(["design", *chosen]) == 0
    assert "\nentropy " in capsys.readouterr().out
    assert (tmp_path / "report" / "scores.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "error: Missing option '--runs'"),
        (["--runs", "nowhere"], "error: --runs nowhere: no such file or folder"),
        (["--runs", "nowhere", "--score", "x"], "error: --score 'x': must be one of parameters, "),
        (["--runs", "nowhere", "--set", "beta=x"], "error: --set: beta: 'x': must be a valid number"),
    ],
)
def test_a_mistake_in_validating(arguments: list[str], expected: str, capsys):
    assert main(["design", "validate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(expected)


def test_a_limit_of_time_is_measured(space: str, tmp_path: Path, capsys):
    arguments = ["--space", space, "--max-latency", "10s", "--threads", "1", "--max-parameters", "9k", *QUICK]
    figures = json.loads(output(capsys, *arguments, "--latency-of", "sequence", "--json"))
    timed = figures["latency"]
    assert 0 < timed["measured_s"] < timed["limit_s"] == 10
    assert timed["measured_s"] == figures["budgets"][-1]["value"] == min(timed["rounds_s"])
    assert 0 < timed["predicted_s"] < 10
    assert (timed["of"], timed["tokens"], timed["device"], timed["threads"]) == ("sequence", 16, "cpu", 1)
    assert main(["design", *arguments, "--out", str(tmp_path / "fast.yaml")]) == 0
    assert "one more token after 16 " in capsys.readouterr().out
    assert model_cost(ModelSpec.load(tmp_path / "fast.yaml")).parameters <= 9000


def test_a_front_is_written(space: str, tmp_path: Path, capsys):
    out = tmp_path / "front"
    arguments = ["--space", space, "--pareto", "flops,score", "--points", "4", "--max-parameters", "9k", "--json"]
    assert main(["design", *arguments, "--out", str(out)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["goals"] == ["flops", "score"]
    names = [point["model"]["name"] for point in figures["front"]]
    assert {path.name for path in out.iterdir()} == {
        *(f"{n}.yaml" for n in names),
        "front.csv",
        "front.png",
        "report.html",
    }
    assert all(model_cost(ModelSpec.load(out / f"{name}.yaml")).parameters <= 9000 for name in names)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--pareto", "flops"], "error: --pareto flops: expected score and one or two of flops, parameters, "),
        (["--pareto", "score"], "error: --pareto score: expected score and one or two of "),
        (["--pareto", "score,beauty"], "error: --pareto score,beauty: expected score and one or two of "),
        (["--pareto", "flops,score", "--max-latency", "1s"], "error: --max-latency 1s: does not go with --pareto"),
        (["--max-latency", "10s", "--max-flops", "1"], "error: --max-flops 1: nothing in the space tiny meets it"),
        (["--max-latency", "10s", "--threads", "999999"], "error: --threads 999999: expected at least 1 and, on "),
        (["--max-latency", "20"], "error: --max-latency 20: expected a number above 0 with one of the units us, ms, s"),
    ],
)
def test_a_mistake_in_goals_and_times(space: str, arguments: list[str], expected: str, capsys):
    assert main(["design", "--space", space, *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(expected)


def test_a_study_trains_and_compares(tmp_path: Path, capsys):
    out = tmp_path / "study"
    quick = ["--shapes", "6", "--bands", "1", "--seeds", "1", "--steps", "1", "--stories", "100", "--bootstrap", "20"]
    small = ["--set", "training.evaluate.tokens=256", "--set", "training.batch_size=1", "--set", "training.threads=1"]
    assert main(["design", "study", "--out", str(out), *quick, *small, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert len(figures["shapes"]) == 6
    assert figures["groups"]["all"]["scores"].keys() == SCORES.keys()
    assert (out / "report.html").is_file()
    measured = json.loads(output(capsys, "validate", "--runs", str(out / "runs"), "--bootstrap", "20", "--json"))
    assert measured["models"] == 6


def test_a_study_has_bounds(capsys):
    assert main(["design", "study", "--out", "s", "--shapes", "9" * 30]) == 2
    assert capsys.readouterr().err == f"error: --shapes {'9' * 30}: expected at most 281474976710656\n"


def test_a_study_sets_only_fields_of_training(capsys):
    assert main(["design", "study", "--out", "nowhere", "--set", "model.d_model=3"]) == 2
    assert capsys.readouterr().err == "error: --set model.d_model=3: expected training.KEY=VALUE\n"


def test_a_field_of_a_study_that_cannot_be_read(capsys):
    assert main(["design", "study", "--out", "nowhere", "--set", "training.optimizer.lr=[1,"]) == 2
    expected = "error: --set training.optimizer.lr=[1,: '[1,' is not a valid YAML value\n"
    assert capsys.readouterr().err == expected
