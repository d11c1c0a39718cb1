"""Runs on conversations that replay a text."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from runs_alike import metrics_of, same

import linnet
from linnet.core.errors import UserError
from linnet.data.loader import Batch, validation_batches
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.measure import evaluate_windows
from linnet.model.decoder import Decoder
from linnet.model.store import load_decoder, write_model
from linnet.training.callbacks import replay

TRAINING = {
    "steps": 4, "batch_size": 4, "precision": "float32", "log": {"every": 1}, "evaluate": {"every": 2},
    "checkpoint": {"every": 2}, "optimizer": {"lr": 1e-2}, "schedule": {"kind": "constant", "warmup_steps": 0},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _quick(quick: None) -> None:
    """Without what takes time and changes no run."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_model) -> Path:
    """`base`, a model that knows the text of `text`; `chat.jsonl`."""
    folder = tmp_path_factory.mktemp("replayed")
    (folder / "text.txt").write_text("<|endoftext|>".join(f"The {n % 7}th day was a good day." for n in range(300)))
    linnet.prepare([str(folder / "text.txt")], folder / "text", "bytes")
    torch.manual_seed(0)
    write_model(folder / "random", Decoder(tiny_model(context_length=48)), Tokenizer.train("bytes", []), {})
    plain = {**TRAINING, "steps": 60, "checkpoint": {"every": 60}, "evaluate": {"every": 60}, "log": {"every": 60}}
    linnet.train(folder / "base", start_from=folder / "random", data=folder / "text", training=plain)
    rows = [{"instruction": f"q{n}", "output": "no no"} for n in range(40)]
    (folder / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("windows", ["stream", "packed"])
def test_a_run_forgets_less_of_a_text_that_it_replays(windows: str, folder: Path, tmp_path: Path, told):
    training = {**TRAINING, "steps": 30, "windows": windows, "document_mask": windows == "packed"}
    given = {"start_from": folder / "base", "chat": folder / "chat.jsonl"}
    alone = linnet.train(tmp_path / "alone", **given, training=training)
    replayed = {"data": str(folder / "text"), "share": 0.25}
    found = linnet.train(tmp_path / "both", **given, training={**training, "replay": replayed})
    figures = found.summary["replay"]
    before, after = (figures[when]["bits_per_byte"] for when in ("before", "after"))
    data = TokenData.open(folder / "text")
    batches = validation_batches(data.split("validation"), data.spans(data.split("validation"), 48), 4)
    forgot = evaluate_windows(load_decoder(alone.model), batches, data.tokenizer.byte_counts(), 48).causal.bits_per_byte
    assert after < before + 0.3 < forgot and figures["after"]["step"] == 30
    lines = metrics_of(found.folder)
    assert [line["step"] for line in lines if "replay" in line] == [2 * n for n in range(1, 16)]


def test_a_stopped_run_resumes_bit_for_bit(folder: Path, tmp_path: Path):
    training = {**TRAINING, "replay": {"data": str(folder / "text"), "share": 0.4}}
    given = {"start_from": folder / "base", "chat": folder / "chat.jsonl"}
    straight = linnet.train(tmp_path / "straight", **given, training=training)
    linnet.train(tmp_path / "parts", **given, training={**training, "steps": 2})
    again = linnet.train(tmp_path / "parts", training={"steps": 4})
    assert same(again.folder, straight.folder) and again.summary["replay"] == straight.summary["replay"]


def test_a_stop_while_the_text_is_measured_leaves_it_to_the_next_start(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    training = {**TRAINING, "steps": 1, "replay": {"data": str(folder / "text")}}
    given = {"start_from": folder / "base", "chat": folder / "chat.jsonl", "training": training}
    read, batches = list[Batch](), replay.validation_batches

    def stopping(*arguments: object) -> Iterator[Batch]:
        for batch in batches(*arguments):
            signal.raise_signal(signal.SIGINT)
            read.append(batch)
            yield batch

    with monkeypatch.context() as patched:
        patched.setattr(replay, "validation_batches", stopping)
        stopped = linnet.train(tmp_path / "run", **given)
    assert len(read) == 1 and not stopped.finished and stopped.summary["replay"] == {"before": None, "after": None}
    again = linnet.train(tmp_path / "run", **given)
    assert again.finished and again.summary["replay"]["before"]["bits_per_byte"] > 0


def test_what_does_not_fit_is_named(folder: Path, tmp_path: Path):
    replayed = {"data": str(folder / "text")}
    with pytest.raises(UserError, match=r"training\.replay: applies only to conversations.*training\.mixture has"):
        linnet.train(
            tmp_path / "run",
            start_from=folder / "base",
            data=folder / "text",
            training={**TRAINING, "replay": replayed},
        )
    given = {"start_from": folder / "base", "chat": folder / "chat.jsonl"}
    run = linnet.train(tmp_path / "run", **given, training={**TRAINING, "steps": 1, "replay": replayed})
    linnet.prepare([str(folder / "text.txt")], tmp_path / "other", "bytes", validation=0.3)
    with pytest.raises(UserError, match=r"holds a run with training\.replay\.data: .*SHA-256.* not .*SHA-256"):
        changed = {**TRAINING, "replay": {"data": str(tmp_path / "other")}}
        linnet.train(run.folder, **given, training=changed)
