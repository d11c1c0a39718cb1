import signal
from pathlib import Path

import pytest
from runs_alike import same

from linnet.core.errors import UserError
from linnet.data.loader import document_windows
from linnet.data.mixture import MixtureSpec
from linnet.data.prepare import prepare
from linnet.data.token_data import TokenData
from linnet.training.data import check_data, fit_to_data, packing_note, training_batches, vocabulary_note
from linnet.training.reporter import Progress, Reporter
from linnet.training.run import train_run


def test_the_model_gets_the_vocabulary_of_the_data(tiny_run, tiny_data):
    data, asked = TokenData.open(tiny_data), tiny_run()
    asked = asked.model_copy(update={"model": asked.model.replace(vocab_size=5000)})
    run = fit_to_data(asked, data)
    assert run.model.vocab_size == data.tokenizer.vocab_size
    assert run.training.steps and run.training.context_length
    assert "instead of the 5,000 of the description" in vocabulary_note(asked, run)


def test_other_data_than_those_of_a_run_are_refused(tiny_data, tmp_path):
    data = TokenData.open(tiny_data)
    check_data(data.hash, data, tmp_path)
    check_data(None, data, tmp_path)
    with pytest.raises(UserError, match=f"data: {tiny_data}: not the data that {tmp_path} was trained on"):
        check_data("0" * 64, data, tmp_path)


def test_windows_may_begin_with_documents(tmp_path, tiny_run, tiny_data):
    data = TokenData.open(tiny_data)
    run = tiny_run(windows="documents")
    documents, stream = train_run(run, tmp_path / "documents"), train_run(tiny_run(), tmp_path / "stream")
    batches = training_batches(data, run.resolved())
    starts = {
        tuple(row) for number in range(batches.examples_per_epoch) for row in batches.batch(number).tokens.tolist()
    }
    sequence = data.split("train")
    windows = document_windows(sequence, 16).whole_windows(sequence, 16).starts_N
    assert starts == {tuple(sequence.read(int(start), 16).tolist()) for start in windows}
    assert documents.summary["validation"] != stream.summary["validation"]


def test_windows_may_be_packed_and_stopped(tmp_path, tiny_run, tiny_data):
    fields = {"windows": "packed", "document_mask": True, "steps": 8, "log": {"every": 1}}
    whole, parts = Notes(), Notes(stop_after=3)
    straight = train_run(tiny_run(**fields), tmp_path / "whole", whole)
    train_run(tiny_run(**fields), tmp_path / "parts", parts)
    resumed = train_run(tiny_run(**fields), tmp_path / "parts", Notes())
    assert any("windows of 16 tokens, filled to" in text for text in whole.texts)
    weights = [(result.model / "model.safetensors").read_bytes() for result in (straight, resumed)]
    assert weights[0] == weights[1] and straight.summary["validation"] == resumed.summary["validation"]


def test_a_curriculum_of_lengths_may_be_stopped_within_a_stage(tmp_path, tiny_run, tiny_data):
    growth = {"context_length": [[4, 4], [7, 8]], "keep_tokens": True}
    run = tiny_run(windows="packed", steps=9, batch_size=2, growth=growth, log={"every": 1})
    batches = training_batches(TokenData.open(tiny_data), run.resolved())
    assert [tuple(batches.batch(n).tokens.shape) for n in (0, 3, 4, 6, 7, 8)] == [(8, 4)] * 2 + [(4, 8)] * 2 + [
        (2, 16)
    ] * 2
    straight = train_run(run, tmp_path / "whole", Notes())
    train_run(run, tmp_path / "parts", Notes(stop_after=6))
    resumed = train_run(run, tmp_path / "parts", Notes())
    weights = [(result.model / "model.safetensors").read_bytes() for result in (straight, resumed)]
    assert weights[0] == weights[1]


def test_packed_windows_may_grow(tmp_path, tiny_run, tiny_data):
    run = tiny_run(windows="packed", steps=6, growth={"context_length": [[3, 8]]}).resolved()
    batches = training_batches(TokenData.open(tiny_data), run)
    assert [batches.batch(number).tokens.shape[1] for number in range(6)] == [8, 8, 8, 16, 16, 16]
    assert packing_note(batches) is not None


class Notes(Reporter):
    """Keeps the notes, and stops the run after a step."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.texts: list[str] = []
        self._stop_after = stop_after

    def note(self, text: str) -> None:
        self.texts.append(text)

    def step(self, progress: Progress) -> None:
        if progress.step == self._stop_after:
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def two_sources(tmp_path: Path) -> dict:
    """A data folder of two files, and a mixture of them."""
    sources = {name: {"inputs": str(tmp_path / f"{name}.txt"), "weight": 1} for name in ("cats", "dogs")}
    for name, count in (("cats", 60), ("dogs", 20)):
        (tmp_path / f"{name}.txt").write_text("<|endoftext|>".join(f"{name} sleep {n}. " * 4 for n in range(count)))
    prepare([], tmp_path / "mixed", "bytes", validation=0.1, mixture=MixtureSpec.parse({"sources": sources}, "test"))
    return {"sources": sources, "by": "tokens", "curriculum": [{"after_step": 8, "weights": {"dogs": 1}}]}


def test_a_run_reads_a_mixture_resumes_bit_for_bit_and_says_what_it_read(tmp_path, tiny_run, two_sources, quick):
    run = tiny_run(mixture=two_sources).model_copy(update={"data": tmp_path / "mixed"})
    notes, stopped = Notes(), Notes(stop_after=7)
    result = train_run(run, tmp_path / "run", reporter=notes)
    assert [note for note in notes.texts if note.startswith("mixture:")] == [
        "mixture: cats 33.3% of the tokens, 33.3% of the bytes, 0.04 epochs in 12 steps",
        "mixture: dogs 66.7% of the tokens, 66.7% of the bytes, 0.23 epochs in 12 steps",
    ]
    assert [(each["source"], each["tokens"]) for each in result.summary["sources"]] == [("cats", 128), ("dogs", 256)]
    first = train_run(run, tmp_path / "stopped", reporter=stopped)
    assert [each["tokens"] for each in first.summary["sources"]] == [7 * 16, 7 * 16]
    assert same(train_run(run, tmp_path / "stopped", reporter=stopped).folder, result.folder)


def test_a_run_without_the_mixture_of_its_data_says_so(tmp_path, tiny_run, two_sources, quick):
    run, notes = tiny_run(steps=1).model_copy(update={"data": tmp_path / "mixed"}), Notes()
    train_run(run, tmp_path / "run", reporter=notes)
    assert any(note.startswith("training.mixture: null: the run reads the text") for note in notes.texts)


def test_a_mixture_cannot_grow(tiny_run, two_sources):
    with pytest.raises(UserError, match="mixture: cannot be combined with growth; expected one of the two"):
        tiny_run(mixture=two_sources, growth={"batch_size": [[0.5, 1]]})
