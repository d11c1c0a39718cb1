"""Runs that prepare their data from files of conversations."""

import json
from pathlib import Path

import pytest
import torch
from runs_alike import same

import linnet
from linnet.core.errors import UserError
from linnet.data.chat_template import CHAT_TEMPLATE
from linnet.data.prepare_conversations import CHAT
from linnet.data.token_data import TokenData, read_manifest
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.store import write_model
from linnet.training.run_files import given_files

SOUND = (
    "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}<|end|>{% endgeneration %}"
    "{% else %}U:{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
)
STEPS = {"steps": 4, "batch_size": 2, "precision": "float32", "log": {"every": 1}, "checkpoint": {"every": 2}}


@pytest.fixture(autouse=True)
def _quick(quick: None) -> None:
    """Without what takes time and changes no run."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, tiny_model) -> Path:
    """A model folder without a chat template."""
    folder = tmp_path_factory.mktemp("models") / "base"
    torch.manual_seed(0)
    write_model(folder, Decoder(tiny_model(context_length=64)), Tokenizer.train("bytes", []), {})
    return folder


@pytest.fixture
def chat_model(base: Path, tmp_path: Path) -> Path:
    """The same model with a chat template."""
    folder = tmp_path / "with-template"
    folder.mkdir()
    for file in base.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / CHAT_TEMPLATE).write_text(SOUND)
    return folder


def conversations(path: Path, count: int = 20, answer: str = "yes") -> Path:
    rows = [{"instruction": f"{path.stem} {n}", "output": answer[: 1 + n % 3]} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_run_prepares_its_conversations(chat_model: Path, tmp_path: Path):
    one, two = conversations(tmp_path / "one.jsonl"), conversations(tmp_path / "two.jsonl", 30)
    settings = {"start_from": chat_model, "chat": [one, two], "training": STEPS}
    found = linnet.train(tmp_path / "run", **settings)
    data = TokenData.open(tmp_path / "run" / "chat")
    assert found.finished and data.is_rows and data.source_names == [str(one), str(two)]
    sources = [place for side in ("train", "validation") for place in data.sources(side).tolist()]
    assert (sources.count(0), sources.count(1)) == (20, 30)
    assert linnet.train(tmp_path / "run", **settings).finished
    with pytest.raises(UserError, match=r"chat: .*two.jsonl: not the file that .*chat was made from; choose another"):
        linnet.train(tmp_path / "run", **{**settings, "chat": two})


def test_a_stopped_run_on_conversations_resumes_bit_for_bit(chat_model: Path, tmp_path: Path):
    file = conversations(tmp_path / "one.jsonl")
    settings = {"start_from": chat_model, "chat": file}
    straight = linnet.train(tmp_path / "straight", **settings, training={**STEPS, "schedule": {"kind": "constant"}})
    parts = {**STEPS, "steps": 2, "schedule": {"kind": "constant"}}
    linnet.train(tmp_path / "parts", **settings, training=parts)
    again = linnet.train(tmp_path / "parts", **settings, training={**parts, "steps": 4})
    assert same(again.folder, straight.folder)


def test_the_template_is_checked_at_each_start(chat_model: Path, tmp_path: Path, told):
    (chat_model / CHAT_TEMPLATE).write_text(SOUND.replace("prompt %}A:", "prompt %}A: "))
    settings = {"start_from": chat_model, "chat": conversations(tmp_path / "one.jsonl"), "training": STEPS}
    for _ in range(2):
        linnet.train(tmp_path / "run", **settings)
        (line,) = (text for text in told() if "message 1 is asked for by" in text)
        assert f"{tmp_path / 'one.jsonl'}, line 1: " in line


def test_another_template_needs_another_run(chat_model: Path, tmp_path: Path):
    settings = {"start_from": chat_model, "chat": conversations(tmp_path / "one.jsonl"), "training": STEPS}
    linnet.train(tmp_path / "run", **settings)
    (chat_model / CHAT_TEMPLATE).write_text(SOUND.replace("U:", "Q:"))
    with pytest.raises(UserError, match=r"chat: .*was made with another `chat_template`; choose another `out`"):
        linnet.train(tmp_path / "run", **settings)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pairs": "a.jsonl", "chat": "a.jsonl"}, "chat: a.jsonl: cannot be combined with `pairs`"),
        ({"pairs": ["a.jsonl", "b.jsonl"]}, "pairs: a.jsonl, b.jsonl: expected one file"),
        ({"chat": ["a.jsonl", "none.jsonl"]}, "chat: none.jsonl: expected a .jsonl file"),
    ],
    ids=["two-kinds", "several", "missing"],
)
def test_files_that_no_run_takes_are_refused(given: dict, message: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl"):
        conversations(tmp_path / name)
    with pytest.raises(UserError, match=f"^{message}"):
        given_files(given)


def test_conversations_need_a_model_to_start_from(tiny_model, tmp_path: Path):
    file = conversations(tmp_path / "one.jsonl")
    with pytest.raises(UserError, match=r"chat: .*one\.jsonl: expected `start_from` beside it"):
        linnet.train(tmp_path / "run", model=tiny_model(), chat=file, training=STEPS)
    assert not (tmp_path / "run").exists()


def test_one_file_has_its_hash_in_the_manifest(chat_model: Path, tmp_path: Path):
    file = conversations(tmp_path / "one.jsonl")
    linnet.train(tmp_path / "run", start_from=chat_model, chat=file, training={**STEPS, "steps": 1})
    assert isinstance(read_manifest(tmp_path / "run" / "chat").settings[CHAT], str)
