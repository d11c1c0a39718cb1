"""`linnet serve` and `linnet chat` as processes: signals, kills, the terminal."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import unicodedata

import pytest

import linnet
from linnet.cli.chat import Conversation, shown
from linnet.cli.main import main
from linnet.inference.engine import Engine
from linnet.inference.sampling import Sampling
from linnet.serve.conformance import Client
from serve_models import serving, write_tiny

pytestmark = pytest.mark.usefixtures("warm_python")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("served") / "tiny", {"kind": "attention", "heads": 2}, 1)


def test_a_signal_finishes_what_runs_then_ends(folder):
    with serving(folder) as (process, url):
        client = Client(url)
        shape = {"max_tokens": 400, "ignore_eos": True, "stream_options": {"include_usage": True}}
        lines = client.lines("/v1/completions", prompt="a", seed=1, **shape)
        first = next(lines)
        process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line.startswith(b"data:")]
        assert first.startswith(b"data:") and rest[-1] == b"data: [DONE]"
        chunks = [json.loads(line[5:]) for line in rest[:-1]]  # one for several tokens, where they are read late
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]][-1] == "length"
        assert chunks[-1]["usage"]["completion_tokens"] == 400
        assert process.wait(timeout=120) == 0


def test_a_kill_in_mid_save_loses_no_session_saved_before(folder, tmp_path):
    with serving(folder, "--state-dir", str(tmp_path)) as (process, url):
        client = Client(url)
        own = client.post("/v1/sessions", text="once " * 30)["id"]
        client.post(f"/v1/sessions/{own}/save", name="first")

        def save() -> None:
            for index in range(10_000):
                try:
                    client.post(f"/v1/sessions/{own}/save", name=f"other{index % 3}")
                except OSError:
                    return

        saver = threading.Thread(target=save)
        saver.start()
        time.sleep(0.5)
        process.kill()
        process.wait()
        saver.join(timeout=120)
    with serving(folder, "--state-dir", str(tmp_path)) as (_, url):
        client = Client(url)
        loaded = client.post("/v1/sessions", name="first")
        assert loaded["tokens"] == 151
        names = {path.stem for path in tmp_path.rglob("*.safetensors")} - {"first"}
        for name in names:
            assert client.post("/v1/sessions", name=name)["tokens"] == 151


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-state", "much"], "--max-state much: expected a number above 0"),
        (["--host", "203.0.113.7"], "cannot listen"),
        (["--allow-host", "a*b"], "--allow-host a*b: expected a name"),
    ],
)
def test_a_mistake_is_one_line(folder, options, message, capsys):
    assert main(["serve", str(folder), "--port", "0", *options]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert message in lines[-1] and len(lines) <= 2


def test_a_conversation_in_the_terminal(folder, tmp_path):
    lines = [
        "Hello",
        "/retry",
        "/fork",
        "And then?",
        "/back",
        "/save talk.json",
        "/rewind 5",
        "/rewind \u00b2",
        "/retry 3",
        "/fork x",
        "/back",
        "/what",
        "/load talk.json",
        "/show",
        "/quit",
    ]
    options = ["--max-tokens", "8", "--seed", "3", "--system", "Short."]
    command = [sys.executable, "-m", "linnet", "chat", str(folder), *options]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        command,
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    saved = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert [message["role"] for message in saved] == ["system", "user", "assistant"]
    assert saved[1]["content"] == "Hello" and f"Assistant: {shown(saved[2]['content'].strip())}" in done.stdout
    assert "error: 5 questions: the conversation has 1" in done.stderr
    assert "error: /what: unknown command" in done.stderr and "3 messages" in done.stderr
    for command, problem in (
        ("/rewind \u00b2", "expected a number of questions"),
        ("/retry 3", "nothing is accepted behind /retry"),
        ("/fork x", "nothing is accepted behind /fork"),
        ("/back", "there is no /fork to return to"),
    ):
        assert f"error: {command}: {problem}\n" in done.stderr


def test_control_characters_of_an_answer_do_not_reach_the_terminal(folder, capsys):
    model = linnet.load(folder)
    engine = Engine(model.decoder, vocab_size=model.tokenizer.vocab_size)
    talk = Conversation(model, model.chat_template, engine, Sampling(temperature=1.0, seed=1), 120)
    talk.say("Hello")
    answer = talk.messages[-1]["content"]
    controls = {char for char in answer if unicodedata.category(char) == "Cc"} - {"\n", "\t"}
    assert "\x1b" in controls or len(controls) > 3
    printed = capsys.readouterr().out
    assert printed == f"{shown(answer)}\n" and not controls & set(printed)
    assert shown("a\x1b]0;b\x07\tc\n\x9b\u200d\u00a0") == "a\\x1b]0;b\\x07\tc\n\\x9b\u200d\u00a0"
    talk.command("/show")
    assert not controls & set(capsys.readouterr().out)


def test_ctrl_c_stops_the_answer_and_not_the_program(folder):
    command = [sys.executable, "-m", "linnet", "chat", str(folder), "--max-tokens", "1000000", "--seed", "3"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    try:
        process.stdin.write(b"Hello\n")
        assert process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        process.stdin.write(b"/show\n/quit\n")
        process.stdin.close()
        rest = process.stdout.read().decode(errors="replace")
        assert process.wait(timeout=120) == 0
        assert " [stopped]" in rest and "User: Hello" in rest
    finally:
        process.kill()
        process.wait()
