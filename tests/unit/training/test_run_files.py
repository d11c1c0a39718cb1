"""Runs that prepare their data from files of conversations."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runs_alike import same

import linnet
from chat_models import TEMPLATE as SOUND
from linnet.core.errors import UserError, note
from linnet.data.chat_setup import OWN_TEMPLATE
from linnet.data.chat_template import CHAT_TEMPLATE, ChatTemplate
from linnet.data.prepare_conversations import CHAT, prepare_conversations
from linnet.data.token_data import TokenData, read_manifest
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import load_decoder, write_model
from linnet.training.data import fit_to_data
from linnet.training.initialization import initial_decoder, vocabulary_tensors
from linnet.training.run import resolve_run_config
from linnet.training.run_files import given_files, prepare_run_files

GRPO = {"group": 2, "max_tokens": 8, "held_out": 2, "kl": 0.1}
STEPS = {"steps": 4, "batch_size": 2, "precision": "float32", "log": {"every": 1}, "checkpoint": {"every": 2}}


@pytest.fixture(autouse=True)
def _quick(quick: None) -> None:
    """Without what takes time and changes no run."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, tiny_model) -> Path:
    """A model folder without a chat template."""
    folder = tmp_path_factory.mktemp("models") / "base"
    torch.manual_seed(0)
    write_model(
        folder,
        Decoder(tiny_model(context_length=64, head={"tied": False, "norm": {}})),
        Tokenizer.train("bytes", []),
        {},
    )
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


@pytest.mark.parametrize("tied", [False, True], ids=["two-tables", "one-table"])
def test_a_stopped_run_on_conversations_resumes_bit_for_bit(tied: bool, tiny_model, tmp_path: Path):
    file, head = conversations(tmp_path / "one.jsonl"), {"tied": tied, "norm": {}}
    write_model(tmp_path / "m", Decoder(tiny_model(context_length=64, head=head)), Tokenizer.train("bytes", []), {})
    settings = {"start_from": tmp_path / "m", "chat": file}
    straight = linnet.train(tmp_path / "straight", **settings, training={**STEPS, "schedule": {"kind": "constant"}})
    parts = {**STEPS, "steps": 2, "schedule": {"kind": "constant"}}
    linnet.train(tmp_path / "parts", **settings, training=parts)
    again = linnet.train(tmp_path / "parts", **settings, training={**parts, "steps": 4})
    assert same(again.folder, straight.folder)


def test_a_base_model_learns_to_chat_with_tokens_of_its_own(base: Path, tmp_path: Path, told):
    file = conversations(tmp_path / "one.jsonl")
    training = {**STEPS, "steps": 100, "optimizer": {"lr": 1e-2}}
    found = linnet.train(tmp_path / "run", start_from=base, chat=file, training=training)
    (line,) = (text for text in told() if "chat template" in text)
    tokens = "3 control tokens are added, <|im_start|>, <|im_sep|>, <|im_end|>, at the mean of the others"
    assert f"the model has none and gets linnet's; {tokens}; <|im_end|> ends an answer" in line
    model = linnet.load(found.model)
    assert model.spec.vocab_size == 260 and model.tokenizer.end_ids == (256, 259)
    prompt = model.chat_template.render([{"role": "user", "content": "one 3"}])
    assert prompt == "<|end|><|im_start|>user<|im_sep|>one 3<|im_end|><|im_start|>assistant<|im_sep|>"
    assert model.generate(prompt, 20, parse_special=True, temperature=0) in ("y", "ye", "yes")
    linnet.train(tmp_path / "next", start_from=found.folder, chat=file, training={**STEPS, "steps": 1})
    assert len(told()) == 1 and linnet.load(tmp_path / "next").chat_template == replace(
        model.chat_template, origin=f"{tmp_path / 'next' / 'model'}: chat template 'default'"
    )


def test_added_tokens_start_at_the_mean_of_the_others(base: Path, tmp_path: Path):
    files = given_files({"chat": conversations(tmp_path / "one.jsonl")})
    run = resolve_run_config(tmp_path / "run", start_from=base, files=files, training=STEPS)
    prepare_run_files(run, files)
    data = TokenData.open(run.data)
    grown, before = initial_decoder(fit_to_data(run, data), data).state_dict(), load_decoder(base).state_dict()
    names = vocabulary_tensors(ModelSpec.load(base / "config.json"))
    assert names == ["embedding.tokens.weight", "head.weight"] and grown.keys() == before.keys()
    for name, tensor in grown.items():
        assert torch.equal(tensor[:257] if name in names else tensor, before[name])
        if name in names:
            torch.testing.assert_close(tensor[257:], before[name].mean(0).expand(3, 16))


@pytest.mark.parametrize(
    ("kind", "training"),
    [("preferences", {}), ("preferences", {"preference": {"kind": "reward"}}), ("prompts", {"grpo": GRPO})],
    ids=["preferences", "reward", "prompts"],
)
def test_a_base_model_gets_a_template_for_other_rows(
    kind: str, training: dict[str, Any], base: Path, tmp_path: Path, told
):
    rows = [{"prompt": f"p {n}", "chosen": "yes", "rejected": "no", "answer": "yes"} for n in range(20)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = {**STEPS, **training, "schedule": {"kind": "constant"}}
    found = linnet.train(tmp_path / "run", start_from=base, **{kind: file}, training=training)
    (line,) = (text for text in told() if "chat template" in text)
    assert "the model has none and gets linnet's; 3 control tokens are added" in line
    model = linnet.load(found.model)
    assert model.spec.vocab_size == 260 and model.tokenizer.end_ids == (256, 259)
    assert model.chat_template.source == OWN_TEMPLATE
    parts = {"start_from": base, kind: file, "training": {**training, "steps": 2}}
    linnet.train(tmp_path / "parts", **parts)
    assert same(linnet.train(tmp_path / "parts", training={"steps": 4}).folder, found.folder)


def test_another_template_for_prompts_is_given_to_the_model(base: Path, tmp_path: Path):
    (tmp_path / "other.jinja").write_text(SOUND)
    lines = (json.dumps({"prompt": str(n), "answer": "a"}) for n in range(9))
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    settings = {"start_from": base, "prompts": tmp_path / "rows.jsonl", "chat_template": tmp_path / "other.jinja"}
    found = linnet.train(tmp_path / "run", **settings, training={**STEPS, "steps": 1, "grpo": GRPO})
    assert linnet.load(found.model).chat_template.source == SOUND


def test_low_rank_parts_come_with_the_whole_vocabulary(base: Path, tmp_path: Path):
    files, training = (
        conversations(tmp_path / "one.jsonl"),
        {**STEPS, "lora": {"rank": 2}, "schedule": {"kind": "constant"}},
    )
    found = linnet.train(tmp_path / "run", start_from=base, chat=files, training=training)
    before, after = load_decoder(base).state_dict(), load_decoder(found.model).state_dict()
    for name in ("embedding.tokens.weight", "head.weight"):
        control = after[name][257:]
        assert not torch.equal(control[1], control[2]) and not torch.equal(after[name][:257], before[name])
    assert found.summary["parameters"] == sum(tensor.numel() for tensor in after.values())
    linnet.train(tmp_path / "cut", start_from=base, chat=files, training={**training, "steps": 2})
    linnet.train(tmp_path / "cut", training={"steps": 4})
    assert same(tmp_path / "cut", tmp_path / "run")


def test_other_tokenizers_than_one_with_more_tokens_are_refused(base: Path, tmp_path: Path):
    linnet.prepare([str(conversations(tmp_path / "text.jsonl"))], tmp_path / "data", "char", field="instruction")
    with pytest.raises(UserError, match="its tokens were made with another tokenizer"):
        linnet.train(tmp_path / "run", start_from=base, data=tmp_path / "data", training=STEPS)


def test_the_template_is_checked_at_each_start(chat_model: Path, tmp_path: Path, told):
    (chat_model / CHAT_TEMPLATE).write_text(SOUND.replace("prompt %}A:", "prompt %}A: "))
    settings = {"start_from": chat_model, "chat": conversations(tmp_path / "one.jsonl"), "training": STEPS}
    for start in (settings, settings, {"training": {"steps": 8}}):
        before = len(told())
        note.cache_clear()  # as in another process
        linnet.train(tmp_path / "run", **start)
        (line,) = (text for text in told()[before:] if "message 1 is asked for by" in text)
        assert f"{tmp_path / 'one.jsonl'}, line 1: " in line


def test_a_run_on_prepared_conversations_is_told_what_was_found(chat_model: Path, tmp_path: Path, told):
    template = ChatTemplate(SOUND.replace("prompt %}A:", "prompt %}A: "), "t", {})
    file, tokenizer = conversations(tmp_path / "one.jsonl"), Tokenizer.load(chat_model)
    prepare_conversations(file, tmp_path / "data", template, tokenizer)
    for number in (1, 2):
        note.cache_clear()  # as in another process
        linnet.train(tmp_path / f"{number}", start_from=chat_model, data=tmp_path / "data", training=STEPS)
    assert sum("message 1 is asked for by" in line for line in told()) == 3


def test_long_conversations_are_cut_to_the_context_of_the_run(chat_model: Path, tmp_path: Path, told):
    talk = [{"role": role, "content": "ab"} for role in ("user", "assistant")] * 3
    file = conversations(tmp_path / "one.jsonl")
    with file.open("a") as lines:
        lines.write(json.dumps({"messages": talk}) + "\n")
    settings = {"start_from": chat_model, "chat": file, "training": {**STEPS, "context_length": 20}}
    with pytest.raises(UserError, match="1 of 21 conversations are longer than the context of 20 tokens"):
        linnet.train(tmp_path / "run", **settings)
    assert not (tmp_path / "run" / "chat").exists()
    for _ in range(2):
        assert linnet.train(tmp_path / "run", **settings, long_conversations="cut").finished
    assert any("1 of 21 conversations are longer than the context of 20 tokens: 1 cut behind" in x for x in told())
    with pytest.raises(UserError, match="made with another `long_conversations`"):
        linnet.train(tmp_path / "run", **settings, long_conversations="drop")


def test_long_prompts_are_left_out_and_counted(base: Path, tmp_path: Path, told):
    lines = [json.dumps({"prompt": "a" * n, "answer": "a"}) for n in (*range(1, 13), 50)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    settings = {"start_from": base, "prompts": tmp_path / "rows.jsonl", "training": {**STEPS, "steps": 1, "grpo": GRPO}}
    with pytest.raises(UserError, match=r"1 of 13 prompts are longer than the \d+ tokens .*rows\.jsonl, line 13"):
        linnet.train(tmp_path / "run", **settings)
    assert not (tmp_path / "run" / "prompts").exists()
    found = linnet.train(tmp_path / "run", **settings, long_conversations="drop")
    data = TokenData.open(found.folder / "prompts")
    assert sum(len(data.split(side).document_starts) for side in ("train", "validation")) == 12
    assert any("1 of 13 prompts are longer than the" in line and "1 left out" in line for line in told())
    with pytest.raises(UserError, match="made with another `long_conversations`"):
        linnet.train(tmp_path / "run", **settings)
    with pytest.raises(UserError, match="max_tokens: 4096: expected less than the context"):
        linnet.train(tmp_path / "new", **settings | {"training": {"grpo": {**GRPO, "max_tokens": 4096}}})


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
        ({"pairs": "a.jsonl", "options": {"chat_template": "b"}}, "chat_template: b: expected `chat` or `prompts` or"),
        ({"chat": ["a.jsonl", "none.jsonl"]}, "chat: none.jsonl: no such file; expected a .jsonl file"),
        ({"chat": "."}, "chat: .: is a folder; expected a .jsonl file"),
    ],
    ids=["two-kinds", "several", "option", "missing", "folder"],
)
def test_files_that_no_run_takes_are_refused(given: dict, message: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl"):
        conversations(tmp_path / name)
    with pytest.raises(UserError, match=f"^{message}"):
        given_files({**given, "options": None}, given.get("options"))


def test_conversations_need_a_model_to_start_from(tiny_model, tmp_path: Path):
    file = conversations(tmp_path / "one.jsonl")
    with pytest.raises(UserError, match=r"chat: .*one\.jsonl: expected `start_from` beside it"):
        linnet.train(tmp_path / "run", model=tiny_model(), chat=file, training=STEPS)
    assert not (tmp_path / "run").exists()


def test_one_file_has_its_hash_in_the_manifest(chat_model: Path, tmp_path: Path):
    file = conversations(tmp_path / "one.jsonl")
    linnet.train(tmp_path / "run", start_from=chat_model, chat=file, training={**STEPS, "steps": 1})
    assert isinstance(read_manifest(tmp_path / "run" / "chat").settings[CHAT], str)
