"""What a command imports is felt at its start; `benchmarks/start_up.py` measures it."""

import subprocess
import sys
from pathlib import Path

import pytest

from linnet.data.prepare import prepare_texts
from linnet.stories import texts

COMPILER = {"torch._dynamo", "torch._inductor", "sympy"}
LIBRARIES = {"scipy", "transformers", "pyarrow", "sentencepiece"}
DRAWING = {"matplotlib"}

CODE = """
import sys
from linnet.cli.main import main
code = main()
print(*sys.modules, file=open(sys.argv.pop(), "w"))
sys.exit(code)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a data folder."""
    folder = tmp_path_factory.mktemp("start-up")
    prepare_texts(*(list(texts(30, 0, split)) for split in ("train", "validation")), folder / "data", "char")
    return folder


@pytest.fixture(scope="module")
def training(folder: Path) -> set[str]:
    """What a run of one step imports; it lies in the folder."""
    return imported(folder, *training_of(folder))


def training_of(folder: Path) -> list[str]:
    settings = ["batch_size=1", "context_length=32", "steps=1", "evaluate.tokens=32"]
    return [
        *("train", "--model", "ted-tinystories", "--data", str(folder / "data"), "--out", str(folder / "run")),
        *(part for setting in settings for part in ("--set", f"training.{setting}")),
        *("--set", "model.d_model=16", "--set", "model.blocks.0.repeat=1"),
    ]


def imported(folder: Path, *arguments: str) -> set[str]:
    """The modules that a process of this command has imported at its end."""
    code = CODE.replace("main()", f"main({list(arguments)!r})")
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "modules")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set((folder / "modules").read_text().split())


@pytest.mark.usefixtures("training")
def test_generate_imports_no_compiler_and_nothing_that_draws(folder: Path):
    found = imported(folder, "generate", str(folder / "run"), "--max-tokens", "2")
    assert "torch" in found
    assert not found & (COMPILER | LIBRARIES | DRAWING)


def test_the_general_help_of_generate_does_not_import_torch(tmp_path: Path):
    assert not imported(tmp_path, "generate", "--help") & {"torch", "numpy"}


def test_a_list_without_runs_and_the_list_of_presets_do_not_import_torch(tmp_path: Path):
    assert "torch" not in imported(tmp_path, "runs", str(tmp_path))
    assert "torch" not in imported(tmp_path, "spec", "list")


@pytest.mark.usefixtures("training")
def test_a_list_of_finished_runs_does_not_import_torch(folder: Path):
    assert "torch" not in imported(folder, "runs", str(folder))


def test_the_help_imports_no_library_but_typer(tmp_path: Path):
    assert not imported(tmp_path, "--help") & {"torch", "numpy", "pydantic", "psutil", "yaml", "rich"}


@pytest.mark.usefixtures("training")
def test_evaluate_imports_no_compiler_and_nothing_that_draws(folder: Path):
    found = imported(folder, "evaluate", str(folder / "run"), "--data", str(folder / "data"), "--context-length", "32")
    assert not found & (COMPILER | LIBRARIES | DRAWING)


def test_one_step_imports_no_compiler_and_draws_nothing(training: set[str]):
    """One line of figures is no curve; drawing took most of what a run of one step needed over PyTorch's import."""
    assert not training & (COMPILER | LIBRARIES | DRAWING)
