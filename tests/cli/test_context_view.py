"""`linnet generate --show-context` as a person at a terminal sees it: a pseudo-terminal, and what its screen shows."""

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable

import pytest
import torch

from linnet.cli import context_view
from linnet.cli.main import main
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model

pytestmark = pytest.mark.usefixtures("warm_python")

COLUMNS, LINES = 40, 12
ERASED = re.compile(r"\r\x1b\[2K(\x1b\[1A\x1b\[2K)*")
ERASED = re.compile(r"\r\x1b\[2K(\x1b\[1A\x1b\[2K)*")
CODE = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|(.)", re.DOTALL)


class Screen:
    """What a terminal shows after these bytes, with all that has left it at the top; only the codes that are used."""

    def __init__(self) -> None:
        self.lines, self.row, self.column, self.cursor_is_shown = [""], 0, 0, True

    @property
    def top(self) -> int:
        """The first line that can still be reached."""
        return max(len(self.lines) - LINES, 0)

    def feed(self, text: str) -> None:
        for argument, command, character in CODE.findall(text):
            if character:
                self._put(character)
            elif command == "A":
                self.row = max(self.row - int(argument or 1), self.top)
            elif command == "K":
                assert argument == "2"
                self.lines[self.row] = ""
            elif argument == "?25":
                self.cursor_is_shown = command == "h"
            else:
                assert command == "m", (argument, command)

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self._down()
        else:
            assert character.isprintable(), repr(character)
            if self.column == COLUMNS:
                self.column = 0
                self._down()
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines)


class Terminal:
    """A pseudo-terminal that remembers what is written to it."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self._bytes, self._reader = b"", threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def open(self) -> io.TextIOWrapper:
        """A stream to write to it, as `sys.stdout` is one."""
        return io.TextIOWrapper(os.fdopen(os.dup(self.slave), "wb", 0), "utf-8", write_through=True)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # nobody can write any more
            while chunk := os.read(self.master, 65536):
                self._bytes += chunk

    @property
    def written(self) -> str:
        return self._bytes.decode("utf-8", "ignore")

    def close(self) -> None:
        """Nobody writes any more."""
        os.close(self.slave)
        self._reader.join()
        os.close(self.master)

    def pictures(self) -> list[str]:
        """What the screen showed each time before it was drawn anew, and at last."""
        screen, done, shown = Screen(), 0, []
        for erased in ERASED.finditer(self.written):
            screen.feed(self.written[done : erased.start()])
            shown.append(screen.text)
            done = erased.start()
        screen.feed(self.written[done:])
        assert screen.cursor_is_shown
        return [*shown, screen.text]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random TED of two layers over bytes that writes short lines of letters."""
    return folder(tmp_path_factory, layers=2)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    """More layers than the screen has lines."""
    return folder(tmp_path_factory, layers=20)


def folder(tmp_path_factory: pytest.TempPathFactory, layers: int) -> str:
    tokenizer = Tokenizer.train("bytes", [])
    block = {"repeat": layers, "mixer": {"kind": "ted"}, "feed_forward": {"kind": "glu", "hidden": 24}}
    plain = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "context_length": 600, "blocks": [block]}
    torch.manual_seed(0)
    decoder = Decoder(ModelSpec.parse({**plain, "head": {"tied": False, "bias": True}}, "test"))
    assert decoder.head is not None
    with torch.no_grad():
        decoder.head.bias.fill_(-1000.0)
        decoder.head.bias[[tokenizer.encode(letter)[0] for letter in "abcdefghijklmno\n"]] = 0.0
    path = tmp_path_factory.mktemp("models") / "model"
    write_model(path, decoder, tokenizer, {})
    return str(path)


class Seen:
    """What came of a command: on the terminal, and in the stream that was none."""

    def __init__(self, code: int, terminal: Terminal, other: str) -> None:
        self.code, self.pictures, self.written, self.other = code, terminal.pictures(), terminal.written, other


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Seen]:
    """Runs `linnet generate` with a terminal for some of its streams, and every picture drawn."""
    monkeypatch.setattr(context_view, "REFRESH_S", 0.0)
    monkeypatch.setattr(context_view, "WAITS", 0)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}.items():
        monkeypatch.setenv(name, value)

    def run(terminals: set[str], *arguments: str) -> Seen:
        terminal, other = Terminal(), io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
        with monkeypatch.context() as patch, contextlib.ExitStack() as opened:
            for name in ("stdout", "stderr"):
                stream = opened.enter_context(terminal.open()) if name in terminals else other
                patch.setattr(sys, name, stream)
            code = main(["generate", *arguments])
        terminal.close()
        return Seen(code, terminal, other.buffer.getvalue().decode())

    return run


def plain_text(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["generate", *arguments]) == 0
    return capfd.readouterr().out


def on_screen(text: str) -> str:
    """A text as a terminal of this width shows it."""
    screen = Screen()
    screen.feed(text.replace("\n", "\r\n"))
    return screen.text


OPTIONS = ["--prompt", "Once upon a time", "--seed", "1", "--max-tokens", "120", "--cache-policy", "top_k=4/top_k=30"]
HEADING = "layer  context   size  average size"


def test_the_text_grows_above_the_table_and_in_the_end_stands_alone(model: str, watch, capfd):
    text = on_screen(plain_text(capfd, model, *OPTIONS))
    seen = watch({"stdout"}, model, *OPTIONS, "--show-context")
    *pictures, last = seen.pictures
    assert (seen.code, last) == (0, text)
    assert len(pictures) == 1 + 120
    parts = [picture.split("\n\n" + HEADING) for picture in pictures]
    assert parts[0][0] == "Once upon a time"
    ends = [text.index(part) + len(part) for part, _ in parts]
    assert ends == sorted(ends) and ends[-1] >= len(text) - 2
    assert max(len(picture.split("\n")) for picture in pictures) == LINES - 1 < len(text.split("\n"))
    assert [row.split()[:3] for row in parts[-1][1].split("\n")[1:]] == [
        ["0", "eviction", "4"],
        ["1", "eviction", "30"],
    ]


def test_the_last_table_and_the_figures_follow_on_the_standard_error(model: str, watch, capfd):
    seen = watch({"stdout"}, model, *OPTIONS, "--show-context")
    plain = on_screen(plain_text(capfd, model, *OPTIONS))
    assert "layer" not in seen.pictures[-1]
    heading, first, _, figures = seen.other.splitlines()
    assert (heading.strip(), figures[:11]) == (HEADING, "120 tokens,")
    assert first.split() == ["0", "eviction", "4", f"{(1 + 2 + 3 + 133 * 4) / 136:.2f}"]
    both = watch({"stdout", "stderr"}, model, *OPTIONS, "--show-context").pictures[-1]
    assert both.startswith(plain + HEADING) and "state of" in both


def test_a_text_that_goes_elsewhere_leaves_the_terminal_to_the_table(model: str, watch, capfd):
    text = plain_text(capfd, model, *OPTIONS)
    for more in ([], ["--no-stream"]):
        seen = watch({"stderr"}, model, *OPTIONS, "--show-context", *more)
        assert (seen.code, seen.other) == (0, text)
        assert len(seen.pictures) > 100
        assert all(picture.startswith(HEADING) for picture in seen.pictures)
        assert seen.pictures[-1].count(HEADING) == 1 and "120 tokens, " in seen.pictures[-1]


def test_json_is_all_that_the_standard_output_gets(model: str, watch):
    seen = watch({"stderr"}, model, *OPTIONS, "--show-context", "--json")
    assert len(json.loads(seen.other)["context"]) == 2
    assert len(seen.pictures) > 100


def test_not_asked_for_nothing_is_drawn(model: str, watch, capfd):
    text = plain_text(capfd, model, *OPTIONS)
    assert watch({"stdout"}, model, *OPTIONS).written == text.replace("\n", "\r\n")


def test_a_terminal_that_cannot_be_drawn_on_gets_plain_text(model: str, watch, capfd, monkeypatch):
    monkeypatch.delattr(context_view, "_live")
    monkeypatch.setenv("TERM", "dumb")
    text = plain_text(capfd, model, *OPTIONS)
    seen = watch({"stdout"}, model, *OPTIONS, "--show-context")
    assert seen.written == text.replace("\n", "\r\n") and HEADING in seen.other


def test_what_a_terminal_might_obey_is_not_drawn():
    assert context_view._folded("a\x1b[5;5H\tb\x07\r", 40) == ["a\\x1b[5;5H b\\x07\\r"]


def test_wide_characters_are_folded_as_the_terminal_folds_them():
    assert context_view._folded("x" + "日本" * 3 + "\n\ny", 6) == ["x日本", "日本日", "本", "", "y"]


@pytest.mark.parametrize("mode", [{"stdout"}, {"stderr"}], ids=["text", "table"])
def test_more_layers_than_lines_are_cut_on_the_screen_alone(many: str, watch, mode: set[str]):
    seen = watch(mode, many, "--max-tokens", "10", "--seed", "1", "--show-context", "--cache-policy", "bank")
    whole = seen.other if mode == {"stdout"} else seen.pictures[-1]
    assert all(f"\n{layer:5}  bank" in whole for layer in range(20))
    pictures = seen.pictures[:-1]
    assert max(len(picture.split("\n")) for picture in pictures) <= LINES - 1
    assert all("..." in picture and "\n   15  bank" not in picture for picture in pictures)


def test_pictures_are_rare_and_take_little_of_the_time(model: str, watch, monkeypatch):
    monkeypatch.setattr(context_view, "REFRESH_S", 1000.0)
    assert len(watch({"stderr"}, model, *OPTIONS, "--show-context").pictures) == 2
    monkeypatch.setattr(context_view, "REFRESH_S", 0.0)
    monkeypatch.setattr(context_view, "WAITS", 10**6)
    assert len(watch({"stderr"}, model, *OPTIONS, "--show-context").pictures) == 2


def test_ctrl_c_leaves_text_and_table(model: str):
    terminal = Terminal()
    fcntl.ioctl(terminal.slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    command = [sys.executable, "-m", "linnet", "generate", model, *OPTIONS, "--max-tokens", "1000000"]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    streams = {"stdin": terminal.slave, "stdout": terminal.slave, "stderr": terminal.slave}
    child = subprocess.Popen(
        [*command, "--show-context"], env={**environment, "TERM": "xterm-256color"}, start_new_session=True, **streams
    )
    while terminal.written.count("average size") < 3:
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 128 + signal.SIGINT
    terminal.close()
    last = terminal.pictures()[-1]
    assert last.startswith("Once upon a time") and last.count(HEADING) == 1
    assert last.rstrip().endswith("interrupted")
    assert "\n" + HEADING in last and "tokens/s" in last
