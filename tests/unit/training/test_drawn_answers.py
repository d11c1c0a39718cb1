"""Answers whose calls of tools are run while they are drawn: what tools tell is read and not learned."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from runs_alike import same

import linnet
from chat_models import HEAD, continued, write_chat_model
from linnet.data.conversations import ChatTurn
from linnet.data.loader import Batch
from linnet.data.prompts import ChatPrompt
from linnet.data.token_data import TokenData
from linnet.model.decoder import Decoder
from linnet.training.callbacks import Callback
from linnet.training.drawn_answers import PendingAnswer, draw
from linnet.training.rollout_batches import Prompts

TOLD = "U:36A:"
GRPO = {"group": 4, "max_tokens": 24, "held_out": 4}
TRAINING = {
    "steps": 4, "batch_size": 4, "precision": "float32", "log": {"every": 1}, "evaluate": {"every": 2},
    "checkpoint": {"every": 2}, "schedule": {"kind": "constant", "warmup_steps": 0}, "optimizer": {"lr": 1e-2},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _quick(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what takes time and changes no run; answers that begin with `b` count as calls of a tool."""
    monkeypatch.setattr(ChatPrompt, "continued", continued)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_model) -> Path:
    """`chat`, a model that writes one of a few letters or ends, and `prompts.jsonl`."""
    folder = tmp_path_factory.mktemp("tools")
    write_chat_model(folder / "chat", tiny_model(context_length=48, head=HEAD), b"abc", -30.0)
    checker = {"kind": "begins_with", "text": "a"}
    rows = [{"prompt": f"q{n}", "checker": checker, "tool_rounds": 2} for n in range(100)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    linnet.train(
        folder / "run", start_from=folder / "chat", prompts=folder / "prompts.jsonl",
        training={**TRAINING, "steps": 1, "grpo": GRPO},
    )  # fmt: skip
    return folder


def drawn_of(folder: Path, most: int, seed: int = 5) -> list[PendingAnswer]:
    data = TokenData.open(folder / "run" / "prompts")
    prompts = Prompts(data, "train", 40)
    groups = [
        [PendingAnswer(prompts.lines[n], prompts.tokens[n], seed + 16 * n + place, most) for place in range(8)]
        for n in range(4)
    ]
    draw(linnet.load(folder / "chat").decoder.eval(), prompts, groups, data.tokenizer)
    return [each for group in groups for each in group]


def test_an_answer_goes_on_behind_what_the_tool_told(folder: Path):
    tokenizer = linnet.load(folder / "chat").tokenizer
    rounds = set()
    for each in drawn_of(folder, 40):
        written = "".join(tokenizer.token_name(t) if t == tokenizer.end_id else chr(t) for t in each.tokens)
        parts = written.removeprefix("<|end|>").split(TOLD)
        begin, *others = parts
        first = begin.split("A:")[1]
        assert len(each.told) == len(others) and len(each.tokens) <= each.prompt + 40
        answers = [first, *others]
        assert all(part.startswith("b") and part.endswith("<|end|>") for part in answers[:-1])
        assert each.text == answers[-1].removesuffix("<|end|>") and each.cut == (not written.endswith("<|end|>"))
        for start, stop in each.told:
            assert "".join(map(chr, each.tokens[start:stop])) == TOLD
            assert each.nats[start - each.prompt - 1 : stop - each.prompt] == [None] * (1 + len(TOLD))
        assert len(each.nats) + each.prompt == len(each.tokens) - (not each.cut)
        roles = [turn.role for turn in each.line.messages]
        assert roles == ["user", *["assistant", "tool"] * len(others)]
        rounds.add(len(others))
    assert rounds == {0, 1, 2}


def test_results_that_do_not_fit_end_an_answer(folder: Path):
    found = drawn_of(folder, 8)
    assert max(len(each.tokens) - each.prompt for each in found) <= 8
    called = [each for each in found if each.text.startswith("b") and not each.told and each.line.tool_rounds == 2]
    assert called and all(each.cut for each in called)


def test_told_tokens_do_not_count_and_a_stopped_run_resumes_bit_for_bit(folder: Path, tmp_path: Path):
    seen = list[Batch]()

    class Look(Callback):
        def after_update(self, result) -> None:
            seen.extend(each.batches.current[key] for each in self.context.callbacks
                        if each.name == "rollouts" for key in each.batches.current)  # fmt: skip

    given = {"start_from": folder / "chat", "prompts": folder / "prompts.jsonl"}
    training = {**TRAINING, "grpo": {**GRPO, "updates": 3}}
    straight = linnet.train(tmp_path / "straight", **given, training=training, callbacks=[Look()])
    for batch in seen:
        for tokens, counted in zip(batch.tokens.tolist(), batch.weights.tolist(), strict=True):
            learned = {tokens[place + 1] for place in range(len(tokens) - 1) if counted[place]}
            assert not learned & set(b"36U:")
    assert any(ord("3") in row for batch in seen for row in batch.tokens.tolist())
    linnet.train(tmp_path / "parts", **given, training={**training, "steps": 2})
    assert same(linnet.train(tmp_path / "parts", training={"steps": 4}).folder, straight.folder)


def test_a_stop_token_that_the_template_does_not_print_ends_the_conversation(folder: Path):
    prompts = Prompts(TokenData.open(folder / "run" / "prompts"), "train", 40)
    line = prompts.lines[0]
    further = replace(line, messages=(*line.messages, ChatTurn("assistant", "b"), ChatTurn("tool", "36")))
    assert bytes(prompts.told(line, further, 256)) == TOLD.encode()
    assert prompts.told(line, further, ord("z")) is None


def test_answers_to_all_prompts_are_drawn_in_one_batch(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Each pass reads a token of all that run; a prompt is read once for its group."""
    shapes, hidden = list[tuple[int, ...]](), Decoder.hidden

    def spied(self: Decoder, tokens_BT: torch.Tensor, *arguments: object, **named: object) -> torch.Tensor:
        shapes.append(tuple(tokens_BT.shape))
        return hidden(self, tokens_BT, *arguments, **named)

    monkeypatch.setattr(Decoder, "hidden", spied)
    found = drawn_of(folder, 24)
    parts = [number for number, (_, tokens) in enumerate(shapes) if tokens > 1]
    assert shapes[0][0] == 4 and shapes[1] == (sum(len(each.nats) > 0 for each in found), 1)
    assert len(parts) == 1 + max(len(each.told) for each in found)
    rows = [batch for batch, _ in shapes[1 : parts[1]]]
    assert rows == sorted(rows, reverse=True)
