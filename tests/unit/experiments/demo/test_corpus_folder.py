"""The demo's folder: gone on with when it is the same demo's, never written into when it is somebody else's."""

from dataclasses import replace
from pathlib import Path

import pytest

from linnet.core.atomic import PARTIAL
from linnet.core.errors import UserError
from linnet.experiments.demo.corpus import SETTINGS, Settings, claim

OURS = Settings(stories=100, steps=5, seed=0)


@pytest.mark.parametrize("before", ["missing", "empty", "claimed", "half claimed"])
def test_a_new_folder_or_the_same_demos_is_claimed(before: str, tmp_path: Path):
    out = tmp_path / "demo"
    if before == "empty":
        out.mkdir()
    if before == "claimed":
        claim(out, OURS)
        (out / "data").mkdir()
    if before == "half claimed":
        out.mkdir()
        (out / f".{SETTINGS}.abcdefgh{PARTIAL}").touch()
    claim(out, OURS)
    claim(out, OURS)
    assert (out / SETTINGS).is_file()


@pytest.mark.parametrize("change", [{"stories": 99}, {"steps": 6}, {"seed": 1}])
def test_another_demos_folder_is_refused_and_the_difference_named(change: dict[str, int], tmp_path: Path):
    claim(tmp_path, OURS)
    (field, value), before = next(iter(change.items())), vars(OURS)
    with pytest.raises(UserError) as refused:
        claim(tmp_path, replace(OURS, **change))
    assert f"out: {tmp_path}: holds a demo with {field}: {before[field]}, not {value};" in str(refused.value)


def test_a_file_is_refused(tmp_path: Path):
    (tmp_path / "demo").touch()
    with pytest.raises(UserError, match="is a file; expected a new folder or that of a demo"):
        claim(tmp_path / "demo", OURS)


@pytest.mark.parametrize("name", ["notes.txt", ".git"])
def test_a_folder_with_anything_else_is_refused_and_left_alone(name: str, tmp_path: Path):
    (tmp_path / name).touch()
    with pytest.raises(UserError, match="holds other files"):
        claim(tmp_path, OURS)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("content", "message"),
    [("[1]", "holds a demo with stories: None"), ("{", "not valid JSON"), ('{"stories": 100}', "with steps: None")],
)
def test_damaged_settings_are_one_line(content: str, message: str, tmp_path: Path):
    (tmp_path / SETTINGS).write_text(content)
    with pytest.raises(UserError, match=message):
        claim(tmp_path, OURS)
