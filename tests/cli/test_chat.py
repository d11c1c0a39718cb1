"""`linnet chat` with tools: what it prints, and what the model reads."""

import errno
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from linnet.cli.chat import Conversation
from linnet.cli.main import main
from linnet.cli.text_options import ToolOptions
from linnet.core import files
from linnet.core.errors import UserError
from linnet.data.chat_setup import CONTROL_TOKENS, OWN_TEMPLATE
from linnet.data.chat_template import ChatTemplate
from linnet.data.tokenizer import Tokenizer
from linnet.data.tools import load_tools
from linnet.inference.cache_policy import observe
from linnet.inference.engine import Engine
from linnet.inference.language_model import LanguageModel
from linnet.inference.sampling import Sampling
from linnet.inference.streams import Event, Request, Stream
from linnet.inference.tool_loop import announced
from linnet.layers.mixers.ted import BankCache
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model
from linnet.stories.instructions.facts import TOOL
from serve_models import write_tiny

TEMPLATE = ChatTemplate(OWN_TEMPLATE, "test", {"bos_token": ""})


class Scripted:
    """Stands for an engine whose model gives written answers. prompts: the texts that it was asked with."""

    def __init__(self, tokenizer: Tokenizer, answers: list[str]) -> None:
        self.tokenizer, self.answers, self.prompts = tokenizer, answers, list[str]()

    def submit(self, request: Request) -> "Scripted":
        names = self.tokenizer.token_name
        self.prompts.append("".join(chr(token) if token < 256 else names(token) for token in request.prompt))
        return self

    def __iter__(self) -> Iterator[Event]:
        return iter([Event(token, None, None) for token in self.tokenizer.encode(self.answers.pop(0))])

    def cancel(self) -> None:
        """Nothing runs."""


BLOCK = {"repeat": 1, "mixer": {"kind": "attention", "heads": 1}, "feed_forward": {"kind": "glu", "hidden": 8}}
SPEC = {"vocab_size": 260, "d_model": 8, "context_length": 64, "blocks": [BLOCK]}


@pytest.fixture
def model() -> LanguageModel:
    tokenizer = Tokenizer.train("bytes", []).with_special(CONTROL_TOKENS, ("<|im_end|>",))
    return LanguageModel(Decoder(ModelSpec.parse(SPEC, "test")), tokenizer).parsing_special()


def conversation(model: LanguageModel, answers: list[str], **settings: Any) -> tuple[Conversation, Scripted]:
    engine = Scripted(model.tokenizer, answers)
    return Conversation(model, TEMPLATE, engine, Sampling(seed=1), 50, **settings), engine  # type: ignore[arg-type]


def test_calls_are_run_and_shown_and_the_model_goes_on(model: LanguageModel, capsys):
    tools = load_tools(["calculator"])
    talk, engine = conversation(model, ["calculator(12 * 3)", "That is 36 pens.", "No."], tools=tools, rounds=4)
    talk.messages = announced([], tools)
    talk.say("How many?")
    assert capsys.readouterr().out == "calculator(12 * 3)\n[calculator] 36\nThat is 36 pens.\n"
    assert [message["role"] for message in talk.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert talk.messages[0]["content"] == TOOL and talk.sampling.seed == 3
    begun = engine.prompts[0]
    assert engine.prompts[1] == (
        f"{begun}calculator(12 * 3)<|im_end|><|im_start|>tool<|im_sep|>36<|im_end|><|im_start|>assistant<|im_sep|>"
    )
    assert talk.command("/retry") and len(talk.messages) == 3  # the question is asked anew


def test_rounds_are_bounded(model: LanguageModel, capsys, told):
    tools = load_tools(["calculator"])
    talk, engine = conversation(model, ["calculator(1)"] * 3, tools=tools, rounds=2)
    talk.say("?")
    assert capsys.readouterr().out.count("[calculator] 1\n") == 2 and len(engine.prompts) == 3
    assert talk.messages[-1]["content"] == "calculator(1)"


def test_without_tools_a_call_is_text(model: LanguageModel, capsys):
    talk, engine = conversation(model, ["calculator(1)"])
    talk.say("?")
    assert len(engine.prompts) == 1 and capsys.readouterr().out == "calculator(1)\n"


def test_the_template_lists_the_functions_of_a_file(model: LanguageModel, tmp_path: Path, capsys):
    (tmp_path / "own.py").write_text('def add(a: int, b: int):\n    """The sum."""\n    return a + b\n')
    tools = load_tools([tmp_path / "own.py"])
    call = json.dumps({"name": "add", "arguments": {"a": 2, "b": 3}})
    talk, engine = conversation(model, [f"<tool_call>{call}</tool_call>", "5"], tools=tools, rounds=1)
    assert announced([], tools) == []
    talk.say("?")
    assert engine.prompts[0].startswith("<|im_start|>system<|im_sep|>Tools:\n{") and '"The sum."' in engine.prompts[0]
    assert talk.messages[2] == {"role": "tool", "name": "add", "content": "5"}


def test_a_refused_message_is_not_part_of_the_conversation(model: LanguageModel):
    talk, _ = conversation(model, [])
    talk.template = ChatTemplate("{{ raise_exception('no') }}", "test", {})
    with pytest.raises(UserError, match="no"):
        talk.say("?")
    assert talk.messages == []


def test_an_answer_ends_with_learned_positions_and_a_full_context_is_told(capsys):
    tokenizer = Tokenizer.train("bytes", []).with_special(CONTROL_TOKENS, ())
    torch.manual_seed(0)
    decoder = Decoder(
        ModelSpec.parse({**SPEC, "embedding": {"positions": "learned"}, "head": {"tied": False, "bias": True}}, "test")
    )
    with torch.no_grad():
        decoder.head.bias[tokenizer.end_id] = -100.0
    model = LanguageModel(decoder, tokenizer).parsing_special()
    engine = Engine(decoder, vocab_size=tokenizer.vocab_size)
    talk = Conversation(model, TEMPLATE, engine, Sampling(seed=1), 512)
    talk.say("How many?")
    assert "note: the answer ends where the context of 64 tokens is full" in capsys.readouterr().err
    before = list(talk.messages)
    with pytest.raises(
        UserError, match=r"^the context of 64 tokens is full: .* \(/rewind takes back questions, /system"
    ):
        talk.say("And now?")
    assert talk.messages == before and talk.command("/rewind")
    talk.max_tokens = 4
    talk.say("How?")
    assert capsys.readouterr().err == "0 messages\n"


def test_the_seed_behind_the_largest_one_is_0(model: LanguageModel):
    talk, _ = conversation(model, ["One.", "Two."])
    talk.sampling = Sampling(seed=2**63 - 1)
    talk.say("?")
    assert [message["content"] for message in talk.messages] == ["?", "One."] and talk.sampling.seed == 0


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*arguments: Any) -> None:
        raise error

    return fail


def test_a_failure_of_the_system_to_save_or_load_is_one_line(
    model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    talk, _ = conversation(model, [])
    full = OSError(errno.ENOSPC, "No space left on device", "a.json")
    monkeypatch.setattr(files, "write_json", failing(full))
    with pytest.raises(UserError, match=r"^/save a\.json: No space left on device$"):
        talk.command("/save a.json")
    monkeypatch.setattr(files, "read_json", failing(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(UserError, match=r"^/load a\.json: Input/output error$"):
        talk.command("/load a.json")
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"^/save .*: embedded null byte$"):
        talk.command(f"/save {tmp_path}/a \0")
    with pytest.raises(UserError, match=r"nowhere\.json: no such file$"):
        talk.command(f"/load {tmp_path}/nowhere.json")


def test_ctrl_c_in_a_command_does_not_end_the_program(
    model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
):
    write_model(tmp_path / "m", model.decoder, model.tokenizer, {})
    monkeypatch.setattr(files, "write_json", failing(KeyboardInterrupt()))
    monkeypatch.setattr("sys.stdin", StringIO("/save a.json\n/rewind\n"))
    assert main(["chat", str(tmp_path / "m")]) == 0
    assert capfd.readouterr().err.endswith("interrupted\nerror: 1 questions: the conversation has 0\n")


def test_ctrl_c_before_an_answer_begins_takes_the_question_back(model: LanguageModel, monkeypatch: pytest.MonkeyPatch):
    talk, _ = conversation(model, ["One."])
    talk.say("?")
    before = list(talk.messages)
    monkeypatch.setattr(ChatTemplate, "render", failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        talk.say("?")
    assert talk.messages == before


def test_rounds_need_tools(model: LanguageModel, tmp_path: Path, capfd):
    write_model(tmp_path / "m", model.decoder, model.tokenizer, {})
    assert main(["chat", str(tmp_path / "m"), "--tool-rounds", "2"]) == 2
    assert "--tool-rounds 2: expected --tools beside it" in capfd.readouterr().err
    assert ToolOptions(["calculator"]).load()[1] == 4 and ToolOptions().load() == (None, 0)


def test_a_conversation_in_a_bank_of_constant_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd):
    streams: list[Stream] = []
    submit = Engine.submit

    def kept(engine: Engine, request: Request) -> Stream:
        streams.append(submit(engine, replace(request, keep_state=True)))
        return streams[-1]

    monkeypatch.setattr(Engine, "submit", kept)
    folder = str(write_tiny(tmp_path / "ted", {"kind": "ted"}, 3, context_length=64))
    found = {}
    for policy in ("full", "bank"):
        monkeypatch.setattr("sys.stdin", StringIO("How many pens are in the box?\nAnd now, with two more boxes?\n"))
        options = ["--max-tokens", "30", "--temperature", "0", "--cache-policy", policy]
        assert main(["chat", folder, *options]) == 0
        found[policy] = [stream for stream in streams if stream.state is not None]
        streams.clear()
    capfd.readouterr()
    assert [stream.tokens for stream in found["full"]] == [stream.tokens for stream in found["bank"]]
    for stream in found["bank"]:
        seen = [each for each in observe(stream.state) if each.sublayer == "mixer"]
        assert [each.cache_policy for each in seen] == [BankCache(65_536)] * 2
        assert all(len(each.contents.ages) < 64 < stream.state.position for each in seen)
    first, second = (stream.state.nbytes for stream in found["bank"])
    assert first == second
    assert found["bank"][1].cached_tokens > 0  # what the first question left is not read again
    assert main(["chat", folder, "--cache-policy", "recalibrate"]) == 2
    assert "--cache-policy recalibrate: no layer of the model (ted) has it; expected full" in capfd.readouterr().err


def test_an_answer_ends_before_a_stop_text(model: LanguageModel, capsys):
    talk, _ = conversation(model, ["One two. Three", "four five"], stops=(". ", "never"))
    talk.say("?")
    talk.say("?")
    assert capsys.readouterr().out == "One two\nfour five\n"
    assert [message["content"] for message in talk.messages[1::2]] == ["One two", "four five"]


def test_an_empty_stop_text_is_refused(model: LanguageModel, tmp_path: Path, capfd):
    write_model(tmp_path / "m", model.decoder, model.tokenizer, {})
    assert main(["chat", str(tmp_path / "m"), "--stop", ""]) == 2
    assert "expected texts that are not empty" in capfd.readouterr().err
