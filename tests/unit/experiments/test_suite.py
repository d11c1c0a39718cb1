import re
from pathlib import Path

import pytest
import yaml

from linnet.core.errors import UserError, note
from linnet.experiments.suite import Suite, hidden_widths, load_suites
from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec

ABLATION = Path(__file__).parents[3] / "experiments" / "ablations" / "pldr.yaml"
PLAIN = {
    "text": {"stories": 40, "parts": 2},
    "model": "tiny-pldr",
    "training": {"steps": 5},
    "runs": [{"name": "first"}, {"name": "second", "part": 2, "calibration_of": "first"}],
}


def load(tmp_path: Path, **changes) -> Suite:
    path = tmp_path / "compared.yaml"
    path.write_text(yaml.safe_dump({**PLAIN, **changes}))
    return Suite.load(path)


def test_the_shipped_ablation_has_runs_that_differ_in_their_operator():
    spec = Suite.load(ABLATION)
    runs = {
        run.name: spec.run_spec(run, 1, Path("data"), Path("G.npz") if run.calibration_of else None)
        for run in spec.runs
    }
    operators = {
        name: (run.model.blocks[0].mixer.operator, run.model.initialization.calibration) for name, run in runs.items()
    }
    assert operators == {
        "first half": ("learned", "identity"),
        "learned": ("learned", "identity"),
        "transferred": ("fixed", "G.npz"),
        "identity": ("fixed", "identity"),
        "random": ("fixed", "random"),
    }
    assert all(run.training == runs["learned"].training for run in runs.values())
    assert [run.part for run in spec.runs] == [1, 2, 2, 2, 2]
    assert [run.name for run in spec.runs if not run.shown] == ["first half"]


def test_the_example_of_the_documentation_is_valid(tmp_path: Path):
    page = (ABLATION.parents[2] / "docs" / "comparison.md").read_text()
    (tmp_path / "example.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    spec = Suite.load(tmp_path / "example.yaml")
    models = {run.name: spec.run_spec(run, 0, Path("data")).model for run in spec.runs}
    kinds = {name: model.blocks[0].mixer.kind for name, model in models.items()}
    for name, parameters in (("attention", 557_828), ("TED", 557_440)):
        assert model_cost(models[name]).parameters == parameters and f"{parameters:,}" in page
    assert spec.name == "attention against TED"
    assert kinds == {"attention": "attention", "attention slower": "attention", "TED": "ted"}


def test_a_run_differs_in_what_is_set_and_in_its_seed(tmp_path: Path):
    changes = {"model.d_model": 64, "training.optimizer.lr": 1e-5, "training.schedule": {"kind": "linear"}}
    spec = load(tmp_path, runs=[{"name": "one", "set": changes}, {"name": "two"}])
    one, two = (spec.run_spec(run, 7, Path("data")) for run in spec.runs)
    assert (one.model.d_model, one.training.optimizer.lr, one.training.schedule.kind) == (64, 1e-5, "linear")
    assert (two.model.d_model, two.training.optimizer.lr, two.training.schedule.kind) == (128, 1e-3, "cosine")
    assert (one.training.seed, one.training.steps) == (7, 5)


def test_runs_of_one_model_carry_their_own_names():
    runs = [{"name": "plain"}, {"name": "named", "set": {"model.name": "mine"}}]
    suite = Suite.checked({**PRESETS, "runs": [*PRESETS["runs"], *runs], "model": "tiny-gla"}, "x")
    names = [suite.run_spec(run, 0, Path("data")).model.name for run in suite.runs]
    assert names == ["ted", "attention", "plain", "mine"]


def test_assignments_set_fields_of_all_runs(tmp_path: Path):
    runs = [{"name": "one", "set": {"training.optimizer.lr": 1e-5}}, {"name": "two"}]
    load(tmp_path, runs=runs)
    path = tmp_path / "compared.yaml"
    spec = Suite.load(path, ["training.steps=3", "training.tokens=null"])
    assert (spec.model, spec.training) == ("tiny-pldr", {"steps": 3, "tokens": None})
    spec = Suite.load(path, ["model.d_model=64", "training.optimizer.betas=[0.8, 0.9]"])
    for name, lr in (("one", 1e-5), ("two", 1e-3)):
        run = spec.run_spec(spec.run(name), 0, Path("data"))
        assert (run.model.d_model, run.training.optimizer.betas, run.training.optimizer.lr) == (64, (0.8, 0.9), lr)
        assert run.training.steps == 5


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("training.stepz=3", "`set` training.stepz: unknown key (value 3); did you mean steps?"),
        ("model.d_model=wide", "`set` model.d_model: 'wide': must be a whole number"),
        (
            "training.schedule.warmup_steps=9",
            "compared.yaml: training.schedule.warmup_steps: 9: must be at most the 5 steps",
        ),
        ("seeds=[1]", "set: seeds=[1]: expected a field of all runs, model.* or training.*"),
        ("model=tiny-ted", "set: model=tiny-ted: expected a field of all runs, model.* or training.*"),
        ("training.seed=4", "set: training.seed=4: is decided by seeds; leave it out"),
        ("training.optimizer.lr=1", "set: training.optimizer.lr=1: run 'one' sets training.optimizer.lr itself"),
        ("training.optimizer={}", "set: training.optimizer={}: run 'one' sets training.optimizer.lr itself"),
        ("model.calibration=identity", "set: model.calibration=identity: run 'two' has calibration_of; change it"),
    ],
)
def test_refused_assignments_are_one_line(tmp_path: Path, assignment: str, message: str):
    taught = {"name": "two", "calibration_of": "one"} if "calibration" in assignment else {"name": "two"}
    load(tmp_path, runs=[{"name": "one", "set": {"training.optimizer.lr": 1e-5}}, taught])
    with pytest.raises(UserError, match=re.escape(message)):
        Suite.load(tmp_path / "compared.yaml", [assignment])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": {"parts": 2}}, "text.stories: give one of stories, files, ability, instructions; the others null"),
        (
            {"text": {"stories": 5, "files": ["a.txt"]}},
            "text.files: give one of stories, files, ability, instructions; the others null",
        ),
        ({"seeds": [1, 1]}, "seeds: (1, 1): expected each once"),
        ({"seeds": []}, "seeds: []: must not be empty"),
        ({"runs": [{"name": "a"}, {"name": "a"}]}, "runs[1].name: a: another run has that name; expected a new one"),
        ({"runs": [{"name": "a/b"}]}, "runs[0].name: 'a/b': "),
        ({"runs": [{"name": "a", "part": 3}]}, "runs[0].part: 3: expected at most text.parts, 2"),
        (
            {"runs": [{"name": "a", "calibration_of": "b"}]},
            "runs[0].calibration_of: b: expected an earlier run: there is none",
        ),
        ({"runs": [{"name": "a", "shown": False}]}, "runs: none is shown; expected at least one"),
        ({"runs": [{"name": "a", "sets": {}}]}, "runs[0].sets: unknown key (value {}); did you mean set?"),
        ({"runs": [{"name": "a", "set": {"training.stepz": 4}}]}, "runs: a: set: training.stepz: unknown key"),
        (
            {"runs": [{"name": "a", "set": {"model": "tiny-ted"}}]},
            "runs: a: set: model: 'tiny-ted': expected its fields",
        ),
        ({"runs": [{"name": "a", "set": {"recipe": "x"}}]}, "runs: a: set: recipe: unknown key (value 'x')"),
        ({"text": {"files": "a.txt"}}, "text.files: 'a.txt': must be a list: [a.txt]"),
        (
            {"runs": [{"name": "a b"}, {"name": "a-b"}]},
            "runs[1].name: a-b: another run has that name; expected a new one",
        ),
        ({"runs": [{"name": "a", "set": {"training.seed": 4}}]}, "runs[0].set: training.seed: is decided by seeds"),
        ({"training": {"steps": 5, "schedule": {"warmup_steps": 9}}}, "runs: first: training.schedule.warmup_steps: 9"),
        ({"model": "no-such"}, "runs: first: no-such: no such file, and no preset of that name"),
    ],
)
def test_an_impossible_suite_is_refused_before_training(tmp_path: Path, changes, message: str):
    with pytest.raises(UserError) as refused:
        load(tmp_path, **changes)
    assert message in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "compared.yaml"))
    assert "\n" not in str(refused.value)


SMALL = {
    "text": {"stories": 40},
    "model": "tiny-ted",
    "training": {"steps": 4, "batch_size": 2},
    "runs": [{"name": "a"}],
}


def test_a_file_with_variants_is_several_suites(tmp_path: Path):
    other = {"name": "other", "text": {"stories": 50}, "model": "tiny-ted", "runs": [{"name": "b"}]}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other))
    variants = {
        "short": {"name": "short", "training": {"steps": 2}},
        "seeded": {"base": "short", "name": "seeded", "seeds": [7]},
        "other": {"base": "other.yaml"},
    }
    (tmp_path / "all.yaml").write_text(
        yaml.safe_dump({**SMALL, "name": "whole", "variants": variants}, sort_keys=False)
    )
    suites = load_suites(tmp_path / "all.yaml")
    assert {key: suite.name for key, suite in suites.items()} == {
        "all": "whole", "short": "short", "seeded": "seeded", "other": "other",
    }  # fmt: skip
    assert suites["short"].training == suites["seeded"].training == {"steps": 2, "batch_size": 2}
    assert suites["seeded"].seeds == (7,) and suites["other"].runs[0].name == "b"
    assert Suite.load(tmp_path / "all.yaml") == suites["all"]


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ({"one": {"training": {"steps": 2}}}, "variants.one.name: whole: is that of another suite"),
        ({"all": {"name": "x"}}, "variants.all: expected a mapping of fields, under a name of its own"),
        ([1], "variants: expected a mapping of names, found list"),
        ({"one": {"name": "one", "base": 3}}, "base: 3: expected the path of another suite"),
        ({"one": {"name": "one", "base": "all.yaml"}}, "base: 'all.yaml': expected the path of another suite, at most"),
    ],
)
def test_variants_that_do_not_fit_are_refused(variants: object, message: str, tmp_path: Path):
    (tmp_path / "all.yaml").write_text(
        yaml.safe_dump({**SMALL, "name": "whole", "variants": variants}, sort_keys=False)
    )
    with pytest.raises(UserError) as refused:
        load_suites(tmp_path / "all.yaml")
    assert message in str(refused.value)


def parameters_of(suite: Suite) -> list[int]:
    return [model_cost(suite.run_spec(run, 0, Path("data")).model).parameters for run in suite.runs]


PRESETS = {
    "text": {"stories": 40},
    "training": {"steps": 5},
    "runs": [{"name": "ted", "model": "tiny-ted"}, {"name": "attention", "model": "tiny-attention"}],
}


def test_match_gives_every_run_as_many_parameters_as_the_first(caplog: pytest.LogCaptureFixture):
    deeper = {"name": "deeper", "model": "tiny-attention", "set": {"model.blocks.0.repeat": 3}}
    runs = {"runs": [PRESETS["runs"][0], deeper]}
    plain, matched = (Suite.checked({**PRESETS, **runs, **more}, "x") for more in ({}, {"match": "parameters"}))
    (ted, attention), before = parameters_of(matched), parameters_of(plain)
    assert ted == before[0] and abs(attention / ted - 1) < 0.002 and before[1] / ted > 1.2
    assert matched.runs[0].set == {}
    assert list(matched.runs[1].set) == ["model.blocks.0.repeat", "model.blocks.0.feed_forward.hidden"]
    assert caplog.text == ""


def test_a_run_that_no_hidden_width_matches_is_noted_and_stays_as_it_is(caplog: pytest.LogCaptureFixture):
    note.cache_clear()
    runs = [*PRESETS["runs"], {"name": "large", "model": "llama-110m", "set": {"model.vocab_size": 1024}}]
    suite = Suite.checked({**PRESETS, "runs": runs, "match": "parameters"}, "x")
    assert suite.runs[2].set == {"model.vocab_size": 1024}
    assert "match: large: " in caplog.text and " against ted: hidden widths cannot make up for that" in caplog.text


def test_a_hidden_width_is_not_set_beside_match():
    runs = [{"name": "a"}, {"name": "b", "set": {"model.blocks.0.feed_forward.hidden": 7}}]
    with pytest.raises(UserError, match=r"runs\[1\].set: model.blocks.0.feed_forward.hidden: is decided by match"):
        Suite.checked({**PRESETS, "model": "tiny-ted", "runs": runs, "match": "parameters"}, "x")


def test_hidden_widths_of_several_blocks_grow_by_one_factor():
    model = ModelSpec.load("tiny-hybrid")
    expected = model_cost(model).parameters + 100_000
    widths = hidden_widths(model, expected)
    own = [block.feed_forward.hidden for block in model.blocks]
    factors = [width / hidden for width, hidden in zip(widths.values(), own, strict=True)]
    assert max(factors) - min(factors) < 0.01 and min(factors) > 1
    suite = Suite.checked({**PRESETS, "runs": [{"name": "a", "model": "tiny-hybrid", "set": widths}]}, "x")
    assert parameters_of(suite) == [pytest.approx(expected, rel=0.005)]


def test_changes_for_all_runs_reach_the_models_of_single_runs():
    suite = Suite.checked(PRESETS, "x", ["training.steps=7", "model.context_length=100"])
    found = [suite.run_spec(run, 0, Path("data")) for run in suite.runs]
    assert [(one.training.steps, one.model.context_length) for one in found] == [(7, 100), (7, 100)]
    mixed = Suite.checked({**PRESETS, "model": "tiny-gla", "runs": [*PRESETS["runs"], {"name": "gla"}]}, "x",
                          ["model.d_model=64"])  # fmt: skip
    assert [mixed.run_spec(run, 0, Path("data")).model.d_model for run in mixed.runs] == [64, 64, 64]


@pytest.mark.parametrize(
    ("field", "values", "names"),
    [
        ("model", ["tiny-ted", "tiny-gla"], ["tiny-ted", "tiny-gla"]),
        ("model.blocks.0.mixer", [{"kind": "ted"}, {"kind": "attention", "heads": 4}],
         ["mixer ted", "mixer attention heads 4"]),
        ("training.optimizer.betas", [[0.9, 0.95], [0.9, 0.99]], ["betas 0.9-0.95", "betas 0.9-0.99"]),
        ("training.averaging", [None, {"kind": "ema"}], ["averaging None", "averaging ema"]),
    ],
)  # fmt: skip
def test_a_grid_goes_over_models_sections_and_lists(field: str, values: list[object], names: list[str]):
    suite = Suite.checked({**PRESETS, "model": "tiny-attention", "runs": [], "grid": {field: values}}, "x")
    assert [run.name for run in suite.runs] == names
    specs = [suite.run_spec(run, 0, Path("data")) for run in suite.runs]
    assert specs[0] != specs[1] and [run.model for run in suite.runs] == (values if field == "model" else [None, None])
