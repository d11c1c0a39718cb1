"""`torchrun -m linnet train`: real processes that train one model, are stopped, killed, and gone on with by others."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from chat_models import HEAD, continued, write_chat_model
from linnet.cli.main import main
from linnet.core.arrays import read_tensors
from linnet.data.prepare import prepare_texts
from linnet.data.prompts import ChatPrompt
from linnet.model.spec import ModelSpec
from linnet.model.store import load_decoder
from linnet.training.checkpoint import checkpoint_steps
from linnet.training.reporter import LogReporter
from several import SLOWED, finish, start

pytestmark = pytest.mark.usefixtures("warm_python")

TRAIN = ["-m", "linnet", "train", "--config", "run.yaml", "--out"]
SLOWED_TRAIN = [SLOWED, "3", "0.05", *TRAIN[2:]]
SHARD = ["--set", "training.parallel.shard=2"]
STEPS = 40


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with `data`, `run.yaml`, and the run `one` of one process."""
    folder = tmp_path_factory.mktemp("processes")
    train = [f"the bird {n} sang to the tree {n % 7} and the tree was glad. " * 3 for n in range(40)]
    prepare_texts(train, [f"the tree {n} was glad. " for n in range(40)], folder / "data", tokenizer="bytes")
    blocks = [{"mixer": {"kind": "ted"}, "feed_forward": {"kind": "glu", "hidden": 24}}]
    blocks.append({**blocks[0], "mixer": {"kind": "attention", "heads": 2}, "repeat": 2, "share_weights": True})
    model = {"vocab_size": 257, "d_model": 16, "context_length": 16, "blocks": blocks}
    training = {"batch_size": 4, "gradient_accumulation": 2, "steps": STEPS, "threads": 1, "seed": 3}
    training |= {"evaluate": {"every": 20, "tokens": 400}, "checkpoint": {"every": 10}, "log": {"every": 5}}
    (folder / "run.yaml").write_text(yaml.safe_dump({"model": model, "data": "data", "training": training}))
    assert train_alone(folder, "one") == 0
    return folder


def train_alone(folder: Path, run: str, *words: str) -> int:
    """The exit code of a run of one process, which is that of the tests."""
    with contextlib.chdir(folder):
        return main([*TRAIN[2:], run, *words])


def lines_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def wait_for(run: Path, step: int, started: list[subprocess.Popen]) -> None:
    """Until a checkpoint of that step, or of a later one, stands."""
    while not any(found >= step for found in checkpoint_steps(run / "checkpoints")):
        if any(process.poll() is not None for process in started):
            pytest.fail(f"it was over before step {step} was saved: {finish(started)}")
        time.sleep(0.002)


def check_same(run: Path, one: Path, tolerance: float = 1e-5) -> None:
    """Losses along the way, those of held-out text, and the weights in the end."""
    found, expected = lines_of(run), lines_of(one)
    assert [line["step"] for line in found] == [line["step"] for line in expected]
    for mine, other in zip(found, expected, strict=True):
        for name in ("tokens", "loss", "bits_per_byte", "lr", "gradient_norm"):
            assert mine[name] == pytest.approx(other[name], abs=tolerance, rel=10 * tolerance), name
        if "validation" in other:
            assert mine["validation"] == pytest.approx(other["validation"], abs=tolerance, rel=tolerance)
    tensors, wanted = (load_decoder(folder / "model").state_dict() for folder in (run, one))
    for name, tensor in tensors.items():
        assert (tensor - wanted[name]).abs().max() < 1e-3, name


@pytest.mark.slow
def test_torchrun_trains_one_model_in_two_processes(place: Path):
    """The command of the documentation."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command = [*torchrun, *TRAIN, "two", *SHARD, "--json"]
    ended = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "Warning" not in ended.stderr, ended.stderr
    check_report(place, ended.stdout)


def test_two_processes_train_one_model(place: Path):
    """As torchrun starts them, which itself takes as long as all of this."""
    ended = finish(start([*TRAIN, "two", *SHARD, "--json"], 2, cwd=place))
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert "Warning" not in ended[0][2] and ended[1][1] == ""
    check_report(place, ended[0][1])


def check_report(place: Path, out: str) -> None:
    """One report, of both."""
    check_same(place / "two", place / "one")
    summary = json.loads(out)
    assert [process["process"] for process in summary["processes"]] == [0, 1]
    for line in (summary, *lines_of(place / "two")):
        for process in line["processes"]:
            share = process["share_of_peak"]  # unknown if other programs took part of the processors
            assert process["tokens_per_s"] > 0 and (share is None or 0 < share <= 1)
            assert process["memory_bytes"] > 1e7 and process["waiting_s"] > 0
    assert "processes" not in lines_of(place / "one")[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_stop_is_heard_by_all_and_one_process_goes_on(place: Path, number: int, capsys: pytest.CaptureFixture[str]):
    """The signal comes to the second process alone; saved by two, loaded by one, which reads the tokens that follow."""
    run = place / f"stopped-{number}"
    started = start([*SLOWED_TRAIN, run.name, *SHARD], 2, cwd=place)
    wait_for(run, 10, started)
    started[1].send_signal(number)
    ended = finish(started)
    assert [code != 0 for code, _, _ in ended] == [True, True], ended
    assert "stop requested" in ended[0][2] and "the same command continues" in ended[0][2]
    assert ended[1][1:] == ("", "")
    newest = checkpoint_steps(run / "checkpoints")[-1]
    assert 10 <= newest < STEPS and json.loads((run / "model" / "run.json").read_text())["step"] == newest
    assert train_alone(place, run.name) == 0
    assert f"resuming from step {newest}" in capsys.readouterr().err
    check_same(run, place / "one")


def test_what_one_process_saved_two_go_on_with(place: Path, monkeypatch: pytest.MonkeyPatch):
    """And three of its steps later a killed one ends the others before a collective does; what was saved stays good."""
    run = place / "grown"
    with monkeypatch.context() as patched:
        patched.setattr(LogReporter, "line", lambda _, line: line["step"] >= 10 and signal.raise_signal(signal.SIGTERM))
        assert train_alone(place, run.name) == 128 + signal.SIGTERM
    before = checkpoint_steps(run / "checkpoints")[-1]
    started = start([*SLOWED_TRAIN, run.name, *SHARD], 2, cwd=place)
    wait_for(run, before + 1, started)
    started[1].kill()
    ended = finish(started, timeout_s=120)
    assert [code for code, _, _ in ended] == [1, -signal.SIGKILL], ended
    assert ended[0][2].count("error:") == 1 and "another process of this run ended" in ended[0][2]
    ended = finish(start([*TRAIN, run.name, *SHARD], 2, cwd=place))
    assert [code for code, _, _ in ended] == [0, 0], ended
    check_same(run, place / "one")
    assert not [path for path in (run / "checkpoints").iterdir() if path.name.startswith(".")]


SECOND_READS_NO_VECTORS = """
import os, sys
from linnet.cli.main import main
from linnet.data import word_vectors
if os.environ["RANK"] == "1":
    word_vectors.open_file = None
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def words(place: Path) -> list[str]:
    lines = [" ".join([letter, *(str(ord(letter) % k) for k in range(1, 17))]) for letter in "etaoins"]
    (place / "vectors.txt").write_text("\n".join(lines))
    return ["--set", "training.steps=12", "--set", "training.embedding_from=vectors.txt"]


def test_the_first_process_reads_word_vectors_for_all(place: Path, words: list[str]):
    assert train_alone(place, "alone-with-vectors", *words) == 0
    ended = finish(start(["-c", SECOND_READS_NO_VECTORS, *TRAIN[2:], "two-with-vectors", *words, *SHARD], 2, cwd=place))
    assert [code for code, _, _ in ended] == [0] * 2, ended
    assert ended[0][2].count("vectors.txt: a word vector for 14 of 257 tokens") == 1
    check_same(place / "two-with-vectors", place / "alone-with-vectors")


@pytest.mark.slow
def test_word_vectors_that_fit_no_token_are_told_once(place: Path, words: list[str]):
    (place / "vectors.txt").write_text("the" + " 1" * 16)
    program = ["-c", SECOND_READS_NO_VECTORS, *TRAIN[2:]]
    refused = finish(start([*program, "refused", *words, *SHARD], 2, cwd=place))
    assert [code for code, _, _ in refused] == [2, 2], refused
    said = "".join(error for _, _, error in refused)
    assert said.count("error:") == said.count("has a word for none of the tokenizer's 257 tokens") == 1, refused


OTHERWISE = [
    "training.steps=24",
    "training.gradient_accumulation=1",
    "training.optimizer.kind=muon",
    "training.averaging.kind=ema",
    "training.clip.by=value",
    "training.clip.at=0.01",
    "training.parallel.checkpointing=true",
    "training.guard={}",
]


@pytest.mark.slow
def test_four_processes_hold_two_copies_of_two_shards_each(place: Path):
    """With all else that keeps something of its own: the files of a checkpoint are those of one process."""
    settings = [word for setting in OTHERWISE for word in ("--set", setting)]
    (alone,) = finish(start([*TRAIN, "other", *settings], 1, cwd=place))
    ended = finish(start([*TRAIN, "four", *settings, *SHARD], 4, cwd=place))
    assert [code for code, _, _ in (alone, *ended)] == [0] * 5, ended
    check_same(place / "four", place / "other", 1e-4)
    newest = Path("checkpoints", "step-00000024")
    names = [sorted(file.name for file in (place / run / newest).iterdir()) for run in ("four", "other")]
    assert names[0] == names[1]
    for name in ("model.safetensors", "optimizer.safetensors"):
        found, expected = (read_tensors(place / run / newest / name) for run in ("four", "other"))
        assert found.keys() == expected.keys()
        for key, tensor in expected.items():
            torch.testing.assert_close(found[key], tensor, atol=1e-3, rtol=1e-2, msg=key)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("training.batch_size=3", "training.batch_size: 3: does not divide; expected a multiple of the 2 processes"),
        ("training.nothing=1", "training.nothing"),
        pytest.param(
            "training.parallel.shard=3",
            "training.parallel.shard: 3: expected a divisor of the number of processes, 2",
            marks=pytest.mark.slow,
        ),
        pytest.param("training.device=cuda:1", "training.device", marks=pytest.mark.slow),
    ],
)
def test_a_mistake_is_told_once(place: Path, setting: str, said: str):
    """One that several processes make of a setting, and one that each finds."""
    ended = finish(start([*TRAIN, "wrong", "--set", setting], 2, cwd=place))
    assert [code for code, _, _ in ended] == [2, 2]
    told = "".join(errors for _, _, errors in ended)
    assert told.count("error:") == 1 and said in told and "Traceback" not in told
    assert not (place / "wrong" / "config.yaml").exists()


def test_other_verbs_run_in_one_process(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(place)
    for rank in range(2):
        for name, value in {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}.items():
            monkeypatch.setenv(name, str(value))
        assert main(["generate", "one", "--prompt", "the"]) == 2
        assert ("generate: runs in one process, not in 2" in capsys.readouterr().err) == (rank == 0)


CALLING = """
import sys
from chat_models import continued
from linnet.cli.main import main
from linnet.data.prompts import ChatPrompt
ChatPrompt.continued = continued
sys.exit(main(sys.argv[1:]))
"""
"""`linnet` for a model of a few letters that calls a tool."""

GROUPS = ["--set", "training.grpo.group=4", "--set", "training.grpo.max_tokens=18"]
PARTS = ["--set", "training.lora.rank=2", "--set", "training.lora.alpha=64"]
TAUGHT = {
    "preferences": ["--preferences", "preferences.jsonl"],
    "prompts": ["--prompts", "prompts.jsonl", *GROUPS],
    "replay and low-rank parts": ["--chat", "chat.jsonl", "--set", "training.replay.data=text", *PARTS],
    "tools and low-rank parts": ["--prompts", "tools.jsonl", *GROUPS, "--set", "training.grpo.kl=0.1", *PARTS],
}


@pytest.fixture
def answering(tmp_path: Path) -> Path:
    """A folder with a model that answers with a few letters, and what it learns from."""
    block = {"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 24}}
    description = {"vocab_size": 257, "d_model": 16, "context_length": 64, "blocks": [block], "head": HEAD}
    write_chat_model(tmp_path / "model", ModelSpec.parse(description, "test"), others=-30.0)
    pairs = [{"prompt": f"q{n}", "chosen": "yes"[: 1 + n % 3], "rejected": "no"[: 1 + n % 2]} for n in range(40)]
    checker = {"kind": "begins_with", "text": "b"}
    prompts = [{"prompt": f"q{n}", "checker": checker} for n in range(120)]
    tools = [{**prompt, "checker": {"kind": "begins_with", "text": "a"}, "tool_rounds": 2} for prompt in prompts]
    chat = [{"instruction": f"q{n}", "output": "no no"[: 1 + n % 5]} for n in range(40)]
    for name, rows in (("preferences", pairs), ("prompts", prompts), ("tools", tools), ("chat", chat)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = [f"The {n % 7}th day was a good day." for n in range(90)]
    prepare_texts(texts, texts[:9], tmp_path / "text", tokenizer="bytes")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("kind", TAUGHT)
def test_two_processes_learn_from_answers_as_one_does(kind: str, answering: Path, monkeypatch: pytest.MonkeyPatch):
    calls = list[ChatPrompt]()

    def counted(prompt: ChatPrompt, answer: str) -> ChatPrompt | None:
        further = continued(prompt, answer)
        calls.extend([further] if further else [])
        return further

    monkeypatch.setattr(ChatPrompt, "continued", counted)
    words = ["train", "--from", "model", *TAUGHT[kind], "--steps", "4", "--batch-size", "4", "--precision", "float32"]
    words += ["--threads", "1", "--set", "training.log.every=1", "--out"]
    with contextlib.chdir(answering):
        assert main([*words, "one"]) == 0
    assert bool(calls) == ("tools" in kind)
    ended = finish(start(["-c", CALLING, *words, "two"], 2, cwd=answering))
    assert [code for code, _, _ in ended] == [0, 0], ended
    check_same(answering / "two", answering / "one")
    for mine, other in zip(lines_of(answering / "two"), lines_of(answering / "one"), strict=True):
        assert mine.get("terms", {}) == pytest.approx(other.get("terms", {}), rel=1e-4, abs=1e-6)
    two, one = (json.loads((answering / run / "model" / "run.json").read_text()) for run in ("two", "one"))
    if "grpo" in str(TAUGHT[kind]):
        assert two["rollouts"]["before"] == one["rollouts"]["before"] is not None
    elif kind == "preferences":
        assert two["preferences"] == pytest.approx(one["preferences"], rel=1e-4)
    else:
        for when in ("before", "after"):
            assert two["replay"][when] == pytest.approx(one["replay"][when], rel=1e-4)
    if "parts" in kind:
        tuned = load_decoder(answering / "two" / "model").state_dict()
        start_from = load_decoder(answering / "model").state_dict()
        changed = {name for name, tensor in tuned.items() if not torch.equal(tensor, start_from[name])}
        assert changed and not any("embedding" in name or "head" in name for name in changed)
