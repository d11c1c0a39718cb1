"""The dozen names of the package: typed, imported on first use, and good for a whole walk."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import linnet
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.store import write_model

ROOT = Path(__file__).resolve().parents[2]

NAMES = {"ModelSpec", "Session", "UserError", "compare", "design", "evaluate"} | {
    "export", "load", "plan", "prepare", "runs", "train",
}  # fmt: skip

SCRIPT = (Path(__file__).parent / "interface_walk.py").read_text()
"""Its types are checked by `make check`."""

BEFORE = """
import sys, linnet
heavy = {"torch", "numpy", "pydantic", "linnet.design", "linnet.training"}
assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()
linnet.UserError
assert not heavy & sys.modules.keys()
linnet.ModelSpec
assert not {"linnet.training", "linnet.design"} & sys.modules.keys()
"""
"""The import brings nothing in until a name is used."""


def test_the_names_are_there_and_documented():
    assert set(linnet.__all__) == NAMES | {"__version__"} <= set(dir(linnet))
    for name in NAMES:
        assert inspect.getdoc(getattr(linnet, name)), name


def test_a_name_that_is_none_is_told():
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        linnet.trian  # noqa: B018


def test_design_can_be_called_whether_its_room_is_imported_or_not():
    import linnet.design.space  # makes the room an attribute of the package

    with pytest.raises(linnet.UserError, match="spaces: "):
        linnet.design("nowhere")


def test_a_walk_with_every_name_brings_in_what_it_uses(tmp_path: Path):
    text = "".join(f"the bird {n} sang to the tree {n % 7} and the tree was glad.\n\n" for n in range(300))
    (tmp_path / "text.txt").write_text(text)
    (tmp_path / "walk.py").write_text(BEFORE + SCRIPT)
    done = subprocess.run(
        [sys.executable, "walk.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1:9] == ["3 model", "4", "True", "True", "True", "True True", "one", lines[8]]
    assert lines[8].startswith("export: ")


def test_an_export_is_a_model_folder_like_any_other(tmp_path: Path):
    tokenizer = Tokenizer.train("bytes", [])
    spec = linnet.ModelSpec.load("tiny-pldr").replace(vocab_size=tokenizer.vocab_size)
    write_model(tmp_path / "model", Decoder(spec), tokenizer, {})
    linnet.export(tmp_path / "model", tmp_path / "frozen", freeze=True)
    blocks = linnet.load(tmp_path / "frozen").spec.blocks
    assert {block.mixer.operator for block in blocks} == {"fixed"}


@pytest.mark.slow
def test_wrong_arguments_are_found_by_strict_type_checks(tmp_path: Path):
    (tmp_path / "wrong.py").write_text('import linnet\nlinnet.train(3.5, steps=2)\nlinnet.design(max_flops="60G")\n')
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--strict"]
    checked = subprocess.run(
        [*command, str(tmp_path / "wrong.py")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    errors = [line for line in checked.stdout.splitlines() if ": error: " in line]
    assert len(errors) >= 3 and all("wrong.py" in error for error in errors), checked.stdout + checked.stderr
