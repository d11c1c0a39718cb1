"""The servers of `serve.py`: models with random weights, exported to what the others read, and the processes.

llama-server reads the GGUF file that `linnet export --to gguf` writes, Transformers' `serve` the folder of `linnet
export --to transformers`. All three get the same weights, the same tokenizer and as many threads.
"""

import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import psutil
import torch

from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model

STORED = {"float32": "f32", "bfloat16": "bf16", "int8": "q8_0", "int4": "q4_0"}
"""What llama.cpp has of as many bits."""

CONTEXT = 16384
"""Tokens that the descriptions name: all positions are relative or none."""

GGUF_GROUP = 32
"""Numbers that llama.cpp's 8-bit and 4-bit forms store together; a row of weights has a multiple of them."""

SLOTS = 32
"""Streams that a server runs at the same time."""

START_S = 180.0


@dataclass(frozen=True)
class Sizes:
    """What is measured: the preset, tokens of a prompt and an answer, requests of a client, turns, a long prompt."""

    preset: str = "llama-110m"
    prompt_words: int = 48
    answer: int = 64
    requests: tuple[tuple[int, int], ...] = ((1, 4), (8, 2), (32, 1))
    turns: int = 50
    turn_words: int = 16
    turn_answer: int = 16
    long_words: int = 6100
    bounded_policy: str = "bank:length=4096"
    heads: int = 14

    @property
    def mixers(self) -> dict[str, dict[str, Any]]:
        """In place of attention, by the names of cells."""
        return {"ted": {"kind": "ted"}, "recurrent": {"kind": "gated_delta", "heads": self.heads}}


SMALL = Sizes("tiny-llama", 12, 8, ((1, 2), (4, 1)), 6, 6, 4, 400, "bank:length=256", heads=2)
"""Tries the script: no figure of it means anything."""


@dataclass
class RunningServer:
    """A server that answers. fields: what its requests need beside OpenAI's fields."""

    name: str
    url: str
    model: str
    process: "subprocess.Popen[str]"
    fields: dict[str, Any] = field(default_factory=dict)
    rounds: int | None = None

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def get(self, path: str) -> str:
        """The answer to a GET request."""
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return str(answer.read().decode())

    def post(self, path: str, **body: Any) -> Any:
        """The answer to a POST request that names the model."""
        payload = json.dumps({"model": self.model, **body}).encode()
        request = urllib.request.Request(self.url + path, payload, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return json.loads(answer.read())
        except HTTPError as error:
            raise SystemExit(f"{self.name}: {path}: {error}: {error.read()[:300]!r}") from None

    def wait_for_builds(self) -> None:
        """Wait until the server compiles no steps in the background.

        A child that has ended stays in the list until the server asks about it, which it does at the next step.
        """
        ended = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        while any(child.status() not in ended for child in psutil.Process(self.process.pid).children()):
            time.sleep(0.5)


def words(count: int, seed: int) -> str:
    """A text of syllables that no other seed gives."""
    chance = random.Random(seed)
    return " ".join(chance.choice(VOCABULARY) for _ in range(count))


def _vocabulary() -> list[str]:
    chance = random.Random(0)
    begins = (*"bcdfghjklmnprstvwz", "br", "dr", "gr", "st", "tr", "pl")
    syllables = [a + b + c for a in begins for b in "aeiou" for c in ("", "n", "r", "s", "l", "t", "m")]
    return ["".join(chance.choices(syllables, k=chance.randint(1, 3))) for _ in range(40_000)]


VOCABULARY = _vocabulary()


def spec_of(preset: str, mixer: dict[str, Any] | None = None) -> ModelSpec:
    """The description of a preset for long texts; with another mixer in place of its own.

    The hidden width of the feed-forwards is rounded up to what llama.cpp's 8-bit and 4-bit forms store.
    """
    spec = ModelSpec.load(preset).replace(context_length=CONTEXT)
    block = spec.blocks[0].model_dump()
    block["feed_forward"]["hidden"] += -block["feed_forward"]["hidden"] % GGUF_GROUP
    if mixer is None:
        return spec.replace(blocks=[block])
    return spec.replace(name=f"{mixer['kind']}-{preset.rpartition('-')[2]}", blocks=[block | {"mixer": mixer}])


def model_folder(folder: Path, spec: ModelSpec) -> Path:
    """A model with random weights whose texts depend on what stands before, made where it is missing.

    Its end token is never the likeliest, so that greedy answers have the length that was requested.
    """
    if folder.exists():
        return folder
    tokenizer_file = folder.parent / "tokenizer.json"
    if not tokenizer_file.exists():
        parts = [" ".join(VOCABULARY[i : i + 100]) for i in range(0, len(VOCABULARY), 100)]
        folder.parent.mkdir(parents=True, exist_ok=True)
        Tokenizer.train("bpe", parts * 2, spec.vocab_size).save(tokenizer_file)
    tokenizer = Tokenizer.load(tokenizer_file)
    torch.manual_seed(0)
    decoder = Decoder(spec).eval().requires_grad_(False)
    for block in decoder.blocks:
        for parameter in block.parameters():
            if parameter.dim() == 2:
                parameter.mul_(2.0)
    output = decoder.embedding.tokens if decoder.head is None else decoder.head
    output.weight.mul_(4.0)
    output.weight[list(tokenizer.end_ids)] = 0.0
    write_model(folder, decoder, tokenizer, {})
    return folder


def exported(folder: Path, form: str, precision: str) -> Path:
    """What `linnet export` writes, made where it is missing."""
    suffix = ".gguf" if form == "gguf" else ""
    out = folder.parent / f"{folder.name}-{form}-{precision}{suffix}"
    if not out.exists():
        command = ["export", str(folder), "--to", form, "--precision", precision, "--out", str(out)]
        subprocess.run([sys.executable, "-m", "linnet", *command], check=True, stdout=subprocess.DEVNULL)
    return out


@dataclass(frozen=True)
class Programs:
    """Where the servers are, and the threads of each. transformers: a Python with `transformers[serving]`."""

    threads: int = 2
    llama_server: Path | None = None
    llama_ubatch: int = 512
    transformers: Path | None = None

    @contextmanager
    def all_of(self, folder: Path, precision: str) -> Iterator[list[RunningServer]]:
        """Ours and what there is of the others, with one model in one precision; idle ones take no time."""
        with ExitStack() as stack:
            servers = [stack.enter_context(self.ours(folder, precision))]
            if self.llama_server is not None:
                servers.append(stack.enter_context(self.llama_cpp(folder, precision)))
            if self.transformers is not None and precision in ("float32", "bfloat16"):
                servers.append(stack.enter_context(self.of_transformers(folder, precision)))
            yield servers

    @contextmanager
    def ours(self, folder: Path, precision: str = "float32", **options: str) -> Iterator[RunningServer]:
        """`linnet serve`."""
        given = {"max-batch": str(SLOTS), "max-queue": "256", "max-state": "4GiB", **options}
        command = [sys.executable, "-m", "linnet", "serve", f"model={folder}", "--port", "0", "--precision", precision]
        command += ["--threads", str(self.threads)]
        for name, value in given.items():
            command += [f"--{name}", value]
        with self._process(command) as process:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            server = RunningServer("linnet", url, "model", process)
            server.post("/tokenize", text="a")  # loads the model
            yield server

    @contextmanager
    def llama_cpp(self, folder: Path, precision: str) -> Iterator[RunningServer]:
        """llama-server, with room for a prompt and an answer in each of its slots."""
        port = _free_port()
        command = [str(self.llama_server), "-m", str(exported(folder, "gguf", STORED[precision]))]
        command += ["-t", str(self.threads), "-ub", str(self.llama_ubatch), "--port", str(port), "--host", "127.0.0.1"]
        if precision == "float32":  # its attention computes in 16 bits otherwise, which changes the text
            command += ["-ctk", "f32", "-ctv", "f32", "-fa", "off"]
        command += ["-np", str(SLOTS), "-c", str(SLOTS * 512), "--no-webui"]
        with self._process(command) as process:
            yield _when_ready(RunningServer("llama-server", f"http://127.0.0.1:{port}", "model", process))

    @contextmanager
    def of_transformers(self, folder: Path, precision: str) -> Iterator[RunningServer]:
        """`transformers serve`."""
        port, model = _free_port(), str(exported(folder, "transformers", "float32").resolve())
        command = [str(self.transformers), "-c", "from transformers.cli.transformers import main; main()", "serve"]
        command += [model, "--port", str(port), "--host", "127.0.0.1", "--device", "cpu", "--dtype", precision]
        with self._process(command) as process:
            server = RunningServer("transformers", f"http://127.0.0.1:{port}", model, process, rounds=1)
            yield _when_ready(server)

    @contextmanager
    def _process(self, command: list[str]) -> Iterator["subprocess.Popen[str]"]:
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads), "HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _when_ready(server: RunningServer) -> RunningServer:
    """The server, when it answers requests for its health."""
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and server.process.poll() is None:
        try:
            server.get("/health")
            return server
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"{server.name}: does not start: {' '.join(map(str, server.process.args))}")
