import errno
import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import typer

from linnet.cli import main as frame
from linnet.cli.main import VERBS, load_verb, main
from linnet.core.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
LINNET = [sys.executable, "-m", "linnet"]


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch):
    """A verb `fail` that raises what it is given."""

    def install(error: BaseException) -> None:
        def fail() -> None:
            """Fail."""
            raise error

        module = ModuleType("linnet.cli.fail")
        module.fail = fail
        monkeypatch.setitem(sys.modules, "linnet.cli.fail", module)
        monkeypatch.setitem(frame.VERBS, "fail", "Fail.")

    return install


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_verb_in_whole_sentences(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    for verb, summary in VERBS.items():
        assert f"  {verb.ljust(max(map(len, VERBS)))}  {summary}\n" in out
    assert "Example: linnet" in out
    assert err == ""


@pytest.mark.parametrize("group", ["spec", "plan", "inspect"])
def test_help_of_a_group_lists_its_commands_in_whole_sentences(group: str, capsys: pytest.CaptureFixture[str]):
    assert main([group, "--help"]) == 0
    listed = capsys.readouterr().out.partition("Commands:\n")[2]
    assert listed
    for entry in re.split(r"\n  (?=\w)", listed.rstrip()):
        assert re.search(r"[\w)]\.$", entry) and not entry.endswith("..."), entry


def test_help_of_every_verb_has_an_example_and_loads_no_torch():
    """One process for all of them: what one imports would slow down every other."""
    code = """
import sys
from linnet.cli.main import VERBS, main
assert main(["--help"]) == 0
for path in [*([verb] for verb in VERBS), ["spec", "list"], ["spec", "show"], ["plan", "fit"],
             *(["inspect", part] for part in ("causality", "contexts", "experts", "positions"))]:
    print("#", *path)
    assert main([*path, "--help"]) == 0
print("heavy:", sorted({"torch", "numpy", "matplotlib", "pyarrow", "transformers"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *helps, heavy = done.stdout.replace("\nheavy:", "\n# heavy:").split("\n# ")[1:]
    assert len(helps) == len(VERBS) + 7
    assert all(f"Example: linnet {text.splitlines()[0]}" in text for text in helps)
    assert heavy.strip() == "heavy: []"


def help_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(arguments) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("verb", ["train", "evaluate", "generate", "plan", "design"])
def test_a_long_help_begins_with_an_example_and_the_usual_options(verb: str, capsys: pytest.CaptureFixture[str]):
    short, full = help_of(capsys, verb, "--help"), help_of(capsys, verb, "--help-all")
    options = [line.split()[0] for line in short if line.startswith("  -")]
    usual = import_module(f"linnet.cli.{verb}").USUAL
    assert options == [*usual, "--help-all", "-h,"] and len(usual) == 10
    assert " ".join(short).count("Example: ") == 1
    assert next(number for number, line in enumerate(short) if "Example: " in line) < 8
    assert len(full) > 1.3 * len(short)


@pytest.mark.parametrize("command", ["demo", "compare", "evaluate", "serve", "spec show", "prepare"])
def test_a_help_names_values_by_letters_and_not_by_types(command: str, capsys: pytest.CaptureFixture[str]):
    """No `<int range>`, `MODEL... <list[Path]>` or largest number of the program."""
    text = "\n".join(help_of(capsys, *command.split(), "--help-all"))
    assert not re.search(r"<(int|float|str|list|path)\b|281474976710656", text)


def test_a_short_help_is_whole(capsys: pytest.CaptureFixture[str]):
    whole = help_of(capsys, "runs", "--help")
    assert help_of(capsys, "runs", "--help-all") == whole
    assert not any("--help-all" in line for line in whole)


def test_every_verb_stands_in_one_group():
    assert sorted(verb for group in frame.GROUPS.values() for verb in group) == sorted(VERBS)


def test_an_example_stays_on_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "40")
    main(["spec", "show", "--help-all"])
    assert (
        "linnet spec show gpt2-124m --set blocks.0.repeat=24 --set context_length=2048 --json\n"
        in capsys.readouterr().out
    )


def test_the_version_is_the_projects(capsys: pytest.CaptureFixture[str]):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"linnet {version}\n"


def test_python_m_linnet_is_the_same_command():
    done = subprocess.run([*LINNET, "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("linnet ")
    failed = subprocess.run([*LINNET, "spce"], capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    assert failed.stderr == "error: No such command 'spce'. Did you mean 'spec'? (see linnet --help)\n"


def test_the_inspections_of_kinds_are_listed_as_they_are_when_they_are_called(capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", "--help"]) == 0
    listed = capsys.readouterr().out.partition("Commands:")[2]
    for name in load_verb("inspect").commands:
        assert f"  {name} " in listed
        assert main(["inspect", name, "--help"]) == 0
        assert f"Example: linnet inspect {name} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["spec"], "error: Missing command (see linnet spec --help)\n"),
        (["spec", "show"], "error: Missing argument 'NAME|FILE' (see linnet spec show --help)\n"),
        (["--color"], "error: No such option: --color (see linnet --help)\n"),
        (["spec", "foo"], "error: No such command 'foo'; expected list, show (see linnet spec --help)\n"),
        (["spec", "list", "x"], "error: Got unexpected extra argument(s) (x) (see linnet spec list --help)\n"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
):
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", expected)


@pytest.mark.parametrize("arguments", [["spec", "show", "a\udcff.yaml"], ["generate", "x", "--prompt", "\udcff"]])
def test_arguments_that_are_not_text_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 2
    expected = f"error: {arguments[-1]}: not UTF-8 text; expected file names and values in UTF-8\n"
    assert capsys.readouterr().err == expected.replace("\udcff", "\\udcff")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["prepare", "x", "--out", "y", "--vocab-size", "2k"], "'--vocab-size': 2k: expected a whole number"),
        (["generate", "x", "--seed", "abc"], "'--seed': abc: expected a whole number"),
        (["generate", "x", "--top-p", "x"], "'--top-p': x: expected a number"),
        (
            ["data", "synthesise", "--out", "x.jsonl", "--count", "0"],
            "'--count': 0: expected a whole number, at least 1, at most 100,000,000",
        ),
        (["demo", "--stories", "5"], "'--stories': 5: expected a whole number, at least 40"),
        (
            ["plan", "fit", "x", "--out", "y", "--hold-out", "2"],
            "'--hold-out': 2: expected a number, at least 0, at most 1",
        ),
        (["inspect", "causality", "m", "--data", "d", "--cut", "x"], "'--cut': x: expected a whole number"),
    ],
)
def test_a_number_that_is_none_is_told_with_what_is_accepted(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
):
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: Invalid value for {expected} (see linnet {arguments[0]} ")


NO_MEMORY = "out of memory; use a smaller batch, context or model"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("generate x --max-tokens 281474976710657", "--max-tokens 281474976710657: expected at most 281474976710656"),
        ("generate x --top-k -281474976710657", "--top-k -281474976710657: expected at least -281474976710656"),
        (
            "generate x --seed 9223372036854775808",
            "--seed 9223372036854775808: expected a whole number from 0 to 2**63 - 1",
        ),
        ("generate x --temperature nan", "--temperature nan: expected a finite number"),
        ("evaluate x --data y --limit-tokens 1e400", "--limit-tokens"),
    ],
)
def test_a_number_beyond_all_amounts_is_refused_before_anything_is_read(words: str, told: str, capsys):
    assert main(words.split()) == 2
    assert told in capsys.readouterr().err
    assert main(["generate", "x", "--seed", str(2**63 - 1)]) == 2
    assert "x: no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("x.yaml: heads: 5: must\ndivide"), 2, "error: x.yaml: heads: 5: must divide\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (PermissionError(errno.EACCES, "Permission denied", "/out"), 2, "error: /out: Permission denied\n"),
        (OSError(errno.ENOSPC, "No space left on device", "/out"), 1, "error: /out: No space left on device\n"),
        (OSError(errno.EIO, "Input/output error"), 1, "error: Input/output error\n"),
        (MemoryError(), 1, f"error: {NO_MEMORY}\n"),
        (ImportError("x.so: failed to map segment from shared object"), 1, f"error: {NO_MEMORY}\n"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
            1,
            f"error: {NO_MEMORY}\n",
        ),
        (typer.Exit(1), 1, ""),
    ],
)
def test_an_error_becomes_a_line_and_an_exit_code(
    raising, error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
):
    raising(error)
    assert main(["fail"]) == code
    assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), ValueError("a bug")])
def test_a_bug_keeps_its_traceback(raising, error: Exception):
    raising(error)
    with pytest.raises(type(error), match="a bug"):
        main(["fail"])


@pytest.mark.parametrize(
    ("words", "code", "closed"),
    [
        (["spec", "list"], 0, "<&-"),
        (["spec", "list"], 0, ">&-"),
        (["spce"], 2, "2>&-"),
        (["spec", "list"], 0, "<&- >&- 2>&-"),
        (["spce"], 2, "<&- >&- 2>&-"),
        (["spce"], 2, "2>/dev/full"),
    ],
)
def test_a_command_ends_as_ever_whatever_its_streams_are(words: list[str], code: int, closed: str):
    done = subprocess.run(["bash", "-c", f'"$@" {closed}', "linnet", *LINNET, *words], capture_output=True, check=False)
    assert (done.returncode, b"Traceback" in done.stdout + done.stderr) == (code, False)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_early_is_no_error(unbuffered: str):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    reader, writer = os.pipe()
    os.close(reader)
    command = [*LINNET, "--version"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environment, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(
    "command",
    [
        ["spec", "list"],
        ["spec", "show", "merino-61m"],
        ["design", "scores"],
        ["plan", "--flops", "1e18", "--throughput", "1e12"],
    ],
)
def test_what_is_printed_fits_60_columns(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5
    assert max(len(line) for line in lines if not line.startswith(("  linnet ", "merino-61m: "))) <= 60


def test_fields_of_the_library_are_named_as_they_are_typed(monkeypatch: pytest.MonkeyPatch, capsys):
    def fail(
        top_p: float = 1.0,
        separator: str = typer.Option("", "--document-separator"),
        kv_cache: bool = typer.Option(True, "--kv-cache/--no-kv-cache"),
    ) -> None:
        """Fail."""
        errors = {
            1.0: UserError("is given, not `separator`", field="top_p", value=top_p, accepted="`document_separator`"),
            2.0: UserError("keeps nothing", field="kv_cache", value=False),
            3.0: UserError("is no such thing", field="elsewhere", value=1),
        }
        raise errors[top_p]

    module = ModuleType("linnet.cli.fail")
    module.fail = fail
    monkeypatch.setitem(sys.modules, "linnet.cli.fail", module)
    monkeypatch.setitem(frame.VERBS, "fail", "Fail.")
    separator = "--document-separator"
    for given, said in (
        ("1", f"--top-p 1.0: is given, not {separator}; expected {separator}"),
        ("2", "--no-kv-cache: keeps nothing"),
        ("3", "elsewhere: 1: is no such thing"),
    ):
        assert main(["fail", "--top-p", given]) == 2
        assert capsys.readouterr().err == f"error: {said}\n"
