"""The demo's suite is fair; its folder, corpus and prompt are checked."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from linnet.core.atomic import PARTIAL
from linnet.core.errors import UserError
from linnet.data.token_data import TokenData
from linnet.experiments import demo
from linnet.experiments.data import STORIES_SEED, prepare_data, validation_stories
from linnet.experiments.demo import (
    RECIPES,
    STATE_TOKENS,
    Options,
    check_folder,
    corpus_figures,
    curves,
    demo_suite,
)
from linnet.experiments.demo_report import LONG_TOKENS, SHORT_TOKENS
from linnet.experiments.measures import describe_machine, write_text
from linnet.experiments.results import TRAINING, ResultRow
from linnet.experiments.run import claim
from linnet.experiments.suite import SUITE
from linnet.inference.sampling import Sampling
from linnet.inference.step_packages import BUILDS
from linnet.model.cost import model_cost
from linnet.stories import texts
from linnet.training.spec import RunSpec

STORIES = 60


def trainings(steps: int | None = None, seed: int = 0, device: str = "cpu") -> list[RunSpec]:
    suite = demo_suite(Options(Path("demo"), steps, seed, device=device))
    return [suite.run_spec(run, seed, Path("data")) for run in suite.runs]


def test_every_model_sees_the_same_batches_for_the_same_number_of_steps():
    runs = trainings(seed=3)
    training = runs[0].training
    assert [run.training for run in runs] == [training] * len(RECIPES)
    assert (training.steps, training.seed, training.device) == (demo.STEPS, 3, "cpu")
    assert (training.windows, training.optimizer.kind) == ("documents", "muon")


@pytest.mark.parametrize("steps", [1, 5, 400, None])
def test_the_schedule_and_the_evaluations_follow_the_number_of_steps(steps: int | None):
    for run in trainings(steps):
        training, count = run.resolved().training, steps or demo.STEPS
        assert training.schedule.warmup_steps == round(demo.WARMUP_SHARE * count)
        assert 1 <= training.evaluate.every <= max(1, count / demo.EVALUATIONS)
        assert training.log.every <= training.evaluate.every


def test_the_models_are_of_about_one_size_and_read_equally_far():
    models = [run.model for run in trainings()]
    sizes = [model_cost(model).parameters for model in models]
    assert max(sizes) < 1.2 * min(sizes)
    assert len({model.context_length for model in models}) == 1
    assert {model.vocab_size for model in models} == {demo.VOCAB_SIZE}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    out = tmp_path_factory.mktemp("demo")
    (folder,) = prepare_data(demo_suite(Options(out, stories=STORIES)), out)
    assert folder == out / "data"
    return TokenData.open(folder)


def test_the_corpus_holds_the_stories_of_its_splits(data: TokenData):
    found = vars(corpus_figures(data))
    for split, count in (("train", STORIES), ("validation", validation_stories(STORIES))):
        sequence = data.split(split)
        text = data.tokenizer.decode(sequence.read(0, len(sequence)).tolist())
        stories = list(texts(count, STORIES_SEED, split, demo.NAMES))
        assert found[f"{split}_stories"] == len(stories)
        assert found[f"{split}_tokens"] == len(sequence)
        assert found[f"{split}_bytes"] == len(text.encode()) == sum(len(story.encode()) for story in stories)
        assert all(story in text for story in stories)
    assert 1.5 < found["xz_bits_per_byte"] < 5, "some order, but not much"


def test_the_corpus_is_reused_and_another_number_of_stories_is_another(data: TokenData, tmp_path: Path):
    written = {path: path.stat().st_mtime_ns for path in data.folder.iterdir()}
    prepare_data(demo_suite(Options(data.folder.parent, stories=STORIES)), data.folder.parent)
    assert {path: path.stat().st_mtime_ns for path in data.folder.iterdir()} == written
    for stories in (45, 50):
        (folder,) = prepare_data(demo_suite(Options(tmp_path, stories=stories)), tmp_path)
        assert TokenData.open(folder).manifest.splits["train"].documents == stories


@pytest.mark.parametrize("before", ["missing", "empty", "claimed", "half claimed"])
def test_a_new_folder_or_that_of_a_demo_is_taken(before: str, tmp_path: Path):
    out = tmp_path / "demo"
    if before != "missing":
        out.mkdir()
    if before == "claimed":
        claim(demo_suite(Options(out, stories=STORIES)), out)
        (out / "data").mkdir()
    if before == "half claimed":
        (out / f".{SUITE}.abcdefgh{PARTIAL}").touch()
    check_folder(out)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stories": 99}, "text.stories: 60, not 99;"),
        ({"steps": 6}, "training.steps: 5, not 6;"),
        ({"seed": 1}, "seeds.0: 0, not 1;"),
    ],
)
def test_the_folder_of_another_demo_is_refused_and_the_difference_named(
    change: dict[str, int], message: str, tmp_path: Path
):
    before = {"stories": STORIES, "steps": 5}
    claim(demo_suite(Options(tmp_path, **before)), tmp_path)
    with pytest.raises(UserError) as refused:
        claim(demo_suite(Options(tmp_path, **{**before, **change})), tmp_path)
    assert f"{tmp_path}: holds a suite with {message}" in str(refused.value)


def test_a_file_is_refused(tmp_path: Path):
    (tmp_path / "demo").touch()
    with pytest.raises(UserError, match="is a file; expected a new folder or that of a demo"):
        check_folder(tmp_path / "demo")


@pytest.mark.parametrize("name", ["notes.txt", ".git"])
def test_a_folder_with_anything_else_is_refused_and_left_alone(name: str, tmp_path: Path):
    (tmp_path / name).touch()
    with pytest.raises(UserError, match="holds other files"):
        check_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(("content", "message"), [("[1]", "expected a mapping"), ("{", "not valid JSON")])
def test_a_damaged_description_is_one_line(content: str, message: str, tmp_path: Path):
    (tmp_path / SUITE).write_text(content)
    with pytest.raises(UserError, match=message):
        claim(demo_suite(Options(tmp_path, stories=STORIES)), tmp_path)


def test_curves_are_the_points_of_the_lines():
    lines = [
        {"tokens": 10, "bits_per_byte": 3.0},
        {"tokens": 20, "bits_per_byte": 2.0, "validation": {"bits_per_byte": 2.5}},
    ]
    assert curves(lines) == ([(10, 3.0), (20, 2.0)], [(20, 2.5)])


def test_the_chart_of_the_state_reaches_the_lengths_of_the_table():
    assert {SHORT_TOKENS, LONG_TOKENS} <= set(STATE_TOKENS)


def test_models_trained_in_different_precisions_are_named():
    def row(precision: str) -> ResultRow:
        plain = {"suite": "demo", "run": "a", "seed": 0, "measure": TRAINING, "values": {"precision": precision}}
        return ResultRow.parse(plain, "here")

    rows = {"attention": row("bfloat16"), "PLDR-LLM": row("float32"), "TED": row("bfloat16")}
    facts = demo._describe_machine(torch.device("cpu"), rows)
    named = "bfloat16 (attention, TED) and float32 (PLDR-LLM)"
    assert facts["precision"] == f"products in training in {named}, else float32"
    same = demo._describe_machine(torch.device("cpu"), {"TED": row("bfloat16")})
    assert same["precision"] == "bfloat16 products in training, else float32"


def test_writing_a_sample_compiles_no_step(monkeypatch: pytest.MonkeyPatch):
    """Its process would take time from what is measured next."""
    states = list[bool]()

    class Model:
        spec = SimpleNamespace(context_length=9)

        def prompt_tokens(self, prompt: str) -> list[int]:
            return [1]

        def stream(self, *_: object) -> "Model":
            self.figures = SimpleNamespace(tokens=1)
            return self

        def __iter__(self) -> Iterator[str]:
            states.append(BUILDS.enabled)
            yield "a"

    monkeypatch.setattr(BUILDS, "enabled", True)
    assert write_text(Model(), "", Sampling()).text == "a"  # type: ignore[arg-type]
    assert states == [False] and BUILDS.enabled


def test_the_machine_is_described_with_its_programs():
    facts = describe_machine(torch.device("cpu"), "bfloat16")
    assert facts["PyTorch"] == torch.__version__
    assert facts["precision"] == "bfloat16 products in training, else float32"
    assert describe_machine(torch.device("cpu"), "float32")["precision"] == "float32"
    assert facts["cores"].endswith(f"PyTorch uses {torch.get_num_threads()}")
    assert facts["memory"].endswith("iB") and "GPU" not in facts
    assert all(facts.values())
