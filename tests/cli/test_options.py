"""Options in groups: typer sees the fields of a dataclass, and the verb gets the dataclass."""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import torch
import typer
from typer.testing import CliRunner

from linnet.cli.main import main
from linnet.cli.options import option, with_option_groups
from linnet.inference.step_packages import BUILDS
from serve_models import write_tiny


@dataclass(frozen=True)
class Reading:
    """A group."""

    data: Annotated[Path | None, option("DIR", "Where the text is.")] = None
    stride: Annotated[int, typer.Option(min=1, max=9, help="Tokens between windows.")] = 4


@dataclass(frozen=True)
class Place:
    """Another one, whose option has another name than its field."""

    quiet: Annotated[bool, typer.Option("--silent")] = False


@dataclass(frozen=True)
class Incomplete:
    """Without a default."""

    stride: int


received: list[object] = []


def verb(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...")],
    reading: Reading,
    seed: Annotated[int, typer.Option()] = 0,
    *,
    place: Place,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """What the help says."""
    received[:] = [models, reading, seed, place, as_json]


def run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(with_option_groups(verb))
    found = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "TERM": "dumb"})
    return found.exit_code, found.output


def test_a_verb_gets_its_groups():
    given = run("a", "b", "--data", "here", "--stride", "2", "--seed", "3", "--silent", "--json")
    assert given == (0, "")
    assert received == [["a", "b"], Reading(Path("here"), 2), 3, Place(True), True]


def test_what_is_not_given_has_the_defaults_of_the_groups():
    assert run("a") == (0, "")
    assert received == [["a"], Reading(), 0, Place(), False]


def test_options_stand_in_the_order_of_the_verb_and_say_what_their_fields_say():
    parameters = inspect.signature(with_option_groups(verb)).parameters
    assert list(parameters) == ["models", "data", "stride", "seed", "quiet", "as_json"]
    assert {one.kind for one in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    code, said = run("--help")
    assert code == 0 and said.count("--") >= 5
    for words in ("What the help says.", "--data", "DIR", "Where the text is.", "1<=x<=9", "[default: 4]", "--silent"):
        assert words in said
    assert "reading" not in said.lower()


@pytest.mark.parametrize(
    ("arguments", "said"), [(["a", "--stride", "10"], "--stride"), (["a", "--reading", "x"], "--reading")]
)
def test_bounds_of_a_field_hold_and_a_group_is_no_option(arguments: list[str], said: str):
    received.clear()
    code, output = run(*arguments)
    assert code == 2 and said in output and received == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("evaluate run --data text --plot {file}/x.png", "--plot {file}/x.png: {file} is a file; a folder is expected"),
        ("evaluate run --data text --plot {folder}.png", "--plot {folder}.png: is a folder; a file is expected"),
        ("inspect causality run --data data --out {file}", "--out {file}: {file} is a file; a folder is expected"),
        ("inspect experts run --data data --out {file}/x", "--out {file}/x: {file} is a file; a folder is expected"),
        ("design study --out {file}/x", "--out {file}/x: {file} is a file; a folder is expected"),
        ("compare suite.yaml --record {file}/x", "--record {file}/x: {file} is a file; a folder is expected"),
        ("demo --out {file}", "--out {file}: {file} is a file; a folder is expected"),
        ("ngram train --data data --out {file}/x", "--out {file}/x: {file} is a file; a folder is expected"),
        ("export run --to gguf --out {file}/x", "--out {file}/x: {file} is a file; a folder is expected"),
        ("import transformers hf --out {file}", "--out {file}: {file} is a file; a folder is expected"),
        ("train --model tiny-ted --data data --out {file}/x", "--out {file}/x: {file} is a file; a folder is expected"),
        ("generate run --save-state {folder}.png", "--save-state {folder}.png: is a folder; a file is expected"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(
    arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Before the work, which may take hours: no input of these commands exists."""
    names = {"file": tmp_path / "file", "folder": tmp_path / "folder"}
    names["file"].write_text("")
    (tmp_path / "folder.png").mkdir()
    assert main(arguments.format(**names).split()) == 2
    assert capsys.readouterr().err == f"error: {message.format(**names)}\n"


def test_a_field_without_a_default_is_no_option():
    def other(group: Incomplete) -> None: ...

    with pytest.raises(AssertionError):
        with_option_groups(other)


@pytest.mark.parametrize(
    "wrong",
    [
        ["generate", "MODEL", "--max-tokens", "0"],
        ["chat", "MODEL", "--cache-policy", "nothing"],
        ["serve", "MODEL", "--allow-host", "a*b"],
        ["evaluate", "MODEL", "--data", "nowhere"],
    ],
    ids=lambda wrong: wrong[0],
)
def test_commands_that_decode_can_leave_compiled_steps_alone(
    wrong: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
):
    pytest.importorskip("starlette")
    typed = [str(write_tiny(tmp_path / "m", {"kind": "ted"})) if word == "MODEL" else word for word in wrong]
    for options, is_enabled in (([], True), (["--no-compile"], False)):
        monkeypatch.setattr(BUILDS, "enabled", True)
        assert main([*typed, *options]) == 2
        assert BUILDS.enabled == is_enabled, capfd.readouterr().err


def test_a_conversation_computes_with_as_many_threads_as_typed(tmp_path: Path, capfd):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert main(["chat", str(write_tiny(tmp_path / "m", {"kind": "ted"})), "--threads", "1", "--stop", ""]) == 2
        assert torch.get_num_threads() == 2  # a mistake is found first
        assert main(["chat", str(tmp_path / "m"), "--threads", "1", "--cache-policy", "nothing"]) == 2
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    capfd.readouterr()
