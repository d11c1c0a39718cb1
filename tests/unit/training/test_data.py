import json
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from runs_alike import same

from linnet.core.errors import UserError
from linnet.data.chat_template import ChatTemplate
from linnet.data.loader import document_windows
from linnet.data.mixture import MixtureSpec
from linnet.data.prepare import prepare
from linnet.data.prepare_conversations import prepare_conversations
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.training.callbacks.log import Workload
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


SOUND = (
    "{% for m in messages %}{% if m.role == 'assistant' %}A{% generation %}{{ m.content }}<|end|>{% endgeneration %}"
    "{% else %}U{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}A{% endif %}"
)


@pytest.fixture(scope="module")
def chat(tmp_path_factory) -> Path:
    """A data folder of conversations of 6 to 9 tokens."""
    folder = tmp_path_factory.mktemp("chat")
    rows = [{"instruction": f"{n}", "output": "yes"[: 1 + n % 3]} for n in range(40)]
    (folder / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    template, tokenizer = ChatTemplate(SOUND, "t.jinja", {}), Tokenizer.train("bytes", [])
    prepare_conversations(folder / "chat.jsonl", folder / "data", template, tokenizer, validation=0.2)
    return folder / "data"


PACKED = {"windows": "packed", "document_mask": True}


def test_conversations_are_packed_whole_and_a_run_resumes(tmp_path, tiny_run, chat, quick):
    run = tiny_run(**PACKED, steps=5, targets={"roles": {"user": 0.1}, "average": "conversation"}, log={"every": 1})
    run, whole = run.model_copy(update={"data": chat}), Notes()
    straight = train_run(run, tmp_path / "whole", whole)
    train_run(run, tmp_path / "parts", Notes(stop_after=3))
    assert same(train_run(run, tmp_path / "parts", Notes()).folder, straight.folder)
    (line,) = (text for text in whole.texts if text.startswith("training.windows: packed: "))
    assert re.search("0 of them are longer than a window and cut; [0-9.]+% of all places count in the loss", line)
    batches, sequence = training_batches(TokenData.open(chat), run.resolved()), TokenData.open(chat).split("train")
    counted = sum(batches.examples([number]).count for number in range(batches.examples_per_epoch))
    assert counted == int((sequence.roles.read(1, len(sequence) - 1) > 0).sum())
    assert batches.examples_per_epoch < 0.6 * len(sequence.document_starts), "several in a window"
    assert batches.counted_share == counted / (batches.examples_per_epoch * 16)
    assert straight.summary["tokens"] == sum(batches.batch(number).count for number in range(5))


def test_a_run_whose_conversations_see_each_other_does_not_begin(tmp_path, tiny_run, chat, monkeypatch):
    hidden = Decoder.hidden

    def without_documents(self, *inputs, documents=None, **others):
        return hidden(self, *inputs, **others)

    monkeypatch.setattr(Decoder, "hidden", without_documents)
    run = tiny_run(**PACKED)
    model = {**run.model.model_dump(mode="json"), "context_length": 32, "initialization": {"std": 0.5}}
    run = run.model_copy(update={"data": chat, "model": ModelSpec.parse(model, "test")})
    with pytest.raises(UserError, match=r"windows: packed: the first rows have a loss .* does not keep them apart"):
        train_run(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_on_packed_conversations_knows_how_long_it_takes(tiny_run, chat):
    run = tiny_run(**PACKED, steps=5).model_copy(update={"data": chat}).resolved()
    batches = training_batches(TokenData.open(chat), run)
    workload, text = Workload(run, batches), Workload(run, SimpleNamespace(mean_lengths=None, counted_share=1.0))
    assert workload.tokens(1, 4) == round(batches.counted_share * text.tokens(1, 4)) < text.tokens(1, 4)
    assert workload.flops_per_token == pytest.approx(text.flops_per_token / batches.counted_share)


def test_conversations_may_be_rows_whose_layers_do_not_see_what_fills_them_up(tiny_run, chat):
    data = TokenData.open(chat)
    for mixer, apart in (("attention", False), ("plga", True)):
        run = tiny_run(mixer).model_copy(update={"data": chat}).resolved()
        batches = [training_batches(data, run).batch(number) for number in range(6)]
        assert all((batch.document_starts is not None) == apart for batch in batches)


@pytest.mark.parametrize(
    ("fields", "model", "message"),
    [
        ({"windows": "packed"}, {}, "document_mask: False: rows in one window would see each other; expected true"),
        ({"document_mask": True}, {}, "document_mask: True: applies only to text: .*; it needs `training.windows`"),
        ({"windows": "documents"}, {}, "windows: documents: applies only to text: .*`packed` puts several into one"),
        ({**PACKED, "growth": {"batch_size": [[2, 1]]}}, {}, "growth: .*: applies only to text"),
        (
            PACKED,
            {"prefix": True},
            r"packed: the model reads the prefix of a row as a whole \(model.prefix: true",
        ),
        ({"targets": {"average": "conversation"}}, {"prefix": True}, "targets: .*: the model reads the prefix"),
        (PACKED, {"experts": True}, "windows: packed: Experts treats a token in training by all tokens of its window"),
        ({**PACKED, "context_length": 8}, {}, r"train: row \d+: .* tokens: more than the context of 8"),
    ],
    ids=["mask", "rows", "documents", "growth", "prefix", "weights", "experts", "long"],
)
def test_what_rows_cannot_have_is_refused(fields, model, message, tiny_run, chat):
    run = tiny_run(**fields).model_copy(update={"data": chat})
    plain = run.model.model_dump(mode="json")
    if "experts" in model:
        feed_forward = {"kind": "experts", "hidden": 8, "experts": 2, "capacity": 1.0}
        plain["blocks"] = [{**plain["blocks"][0], "feed_forward": feed_forward}]
    if "prefix" in model:
        plain["prefix"] = True
    run, data = run.model_copy(update={"model": ModelSpec.parse(plain, "test")}), TokenData.open(chat)
    with pytest.raises(UserError, match=message):
        training_batches(data, fit_to_data(run, data))


def test_weights_of_targets_are_for_rows(tiny_run, tiny_data):
    run = tiny_run(targets={"average": "conversation"})
    with pytest.raises(UserError, match=r"training.targets: applies only to rows, .*; .* holds text"):
        fit_to_data(run, TokenData.open(tiny_data))
    with pytest.raises(UserError, match="roles: all weights are 0; expected one above 0"):
        tiny_run(targets={"roles": {"assistant": 0}})
