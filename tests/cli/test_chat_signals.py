"""`linnet chat` as a process that gets signals: Ctrl-C stops an answer or a tool, other signals end the program."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from linnet.cli import process
from linnet.cli.chat import _lines
from serve_models import write_tiny

pytestmark = pytest.mark.usefixtures("warm_python", "hangups_are_heard")

PROGRAM = """
import os, sys, time
from linnet.cli.main import main
from linnet.inference.engine import Engine
from linnet.inference.streams import Event

answers = iter({answers})

class Scripted:
    finish_reason = "stop"

    def __iter__(self):
        answer = next(answers)
        if isinstance(answer, int):
            yield Event(ord("."), None, None)
            os.kill(os.getpid(), answer)
            time.sleep(5)
        yield from (Event(token, None, None) for token in answer.encode())

    def cancel(self):
        pass

Engine.submit = lambda engine, request: Scripted()
sys.exit(main())
"""
"""The model's answers are texts, or the number of a signal that comes while it writes."""

TOOL = """
import os, time

def wait(number: int):
    os.kill(os.getpid(), number)
    time.sleep(5)

def ready():
    return "yes"
"""

ENDING = (signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model `m`, and of the tools `own.py`."""
    folder = tmp_path_factory.mktemp("chat")
    write_tiny(folder / "m", {"kind": "attention", "heads": 1})
    (folder / "own.py").write_text(TOOL)
    return folder


def begin(folder: Path, answers: list[str | int]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM.format(answers=answers), "chat", "m", "--tools", "own.py"]
    streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, cwd=folder, text=True, **streams)


def talk(folder: Path, answers: list[str | int], *lines: str) -> tuple[int, str, str]:
    """The exit code of a conversation of these lines, and what it prints."""
    running = begin(folder, answers)
    out, err = running.communicate("".join(f"{line}\n" for line in lines), timeout=60)
    return running.returncode, out, err


def ask(running: subprocess.Popen[str], line: str) -> str:
    """The first line of the answer, behind which the program waits for the next question."""
    assert running.stdin is not None and running.stdout is not None
    running.stdin.write(f"{line}\n")
    running.stdin.flush()
    return running.stdout.readline()


def call(name: str, **arguments: int) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_ctrl_c_at_the_prompt_discards_the_line_alone(monkeypatch: pytest.MonkeyPatch):
    typed = iter(["one", signal.SIGINT, "two"])

    def read() -> str:
        line = next(typed, None)
        if isinstance(line, signal.Signals):
            process.leave(line, None)
        if line is None:
            raise EOFError
        return str(line)

    monkeypatch.setattr(process, "_received", [])
    monkeypatch.setattr("builtins.input", read)
    assert list(_lines()) == ["one", "two"] and process.received_signal() is None


@pytest.mark.parametrize("number", ENDING)
def test_another_signal_ends_the_program_at_the_prompt_also_behind_ctrl_c(folder: Path, number: signal.Signals):
    with begin(folder, [int(signal.SIGINT)]) as running:
        assert ask(running, "one") == ". [stopped]\n"
        time.sleep(0.3)  # until it waits for a line
        running.send_signal(number)
        assert running.wait(60) == 128 + number


@pytest.mark.parametrize("number", ENDING)
def test_another_signal_ends_the_program_in_an_answer_also_behind_ctrl_c(folder: Path, number: signal.Signals):
    code, out, _ = talk(folder, [int(signal.SIGINT), int(number), "never"], "one", "two", "three")
    assert (code, out) == (128 + number, ". [stopped]\n.")


@pytest.mark.parametrize("number", ENDING)
def test_another_signal_ends_the_program_in_a_tool(folder: Path, number: signal.Signals):
    calls = call("wait", number=number) + call("ready")
    code, out, _ = talk(folder, [int(signal.SIGINT), calls, "never"], "one", "two", "three")
    assert (code, out) == (128 + number, f". [stopped]\n{calls}\n")


def test_ctrl_c_stops_a_tool_and_the_conversation_goes_on(folder: Path, tmp_path: Path):
    calls = call("ready") + call("wait", number=signal.SIGINT) + call("ready")
    code, out, err = talk(folder, [calls, "fine"], "one", "two", f"/save {tmp_path / 'a.json'}")
    lines = "[ready] yes\n[wait] error: stopped by the user\n[ready] error: not run\n"
    assert (code, out) == (0, f"{calls}\n{lines}fine\n") and "interrupted" not in err
    messages = json.loads((tmp_path / "a.json").read_text())["messages"]
    assert [(message["role"], message["content"]) for message in messages] == [
        ("user", "one"), ("assistant", calls), ("tool", "yes"), ("tool", "error: stopped by the user"),
        ("tool", "error: not run"), ("user", "two"), ("assistant", "fine"),
    ]  # fmt: skip


def test_a_file_that_cannot_be_written_is_a_line_also_behind_ctrl_c(folder: Path, tmp_path: Path):
    (tmp_path / "taken").write_text("")
    wrong, right = tmp_path / "taken" / "a.json", tmp_path / "b.json"
    code, _, err = talk(folder, [int(signal.SIGINT)], "one", f"/save {wrong}", f"/save {right}")
    assert code == 0 and err.endswith(f"error: /save {wrong}: {wrong.parent}: File exists\nconversation: {right}\n")
    assert [message["content"] for message in json.loads(right.read_text())["messages"]] == ["one", "."]
