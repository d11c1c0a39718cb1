"""Conversations that are too long are refused, left out, or ended behind an answer, which is never shortened."""

import json
import re

import pytest

from linnet.core.errors import UserError
from linnet.data.chat_template import ChatTemplate
from linnet.data.chat_tokens import ChatEncoder
from linnet.data.conversation_lengths import LengthLimit
from linnet.data.conversations import parse_conversation
from linnet.data.preferences import prepare_preferences
from linnet.data.prepare_conversations import prepare_conversations
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer

TEMPLATE = ChatTemplate(
    "{% for m in messages %}{% if m.role == 'assistant' %}A{% generation %}{{ m.content }}<|end|>{% endgeneration %}"
    "{% else %}U{{ m.content }}{% endif %}{% endfor %}",
    "t",
    {},
)
TOKENIZER = Tokenizer.train("bytes", [])
ENCODER = ChatEncoder(TEMPLATE, TOKENIZER)
TALK = parse_conversation(
    json.dumps({"messages": [{"role": r, "content": c} for r, c in [("user", "ab"), ("assistant", "cd")] * 3]}), "here"
)
"""Three turns of 7 tokens each behind the first token."""


@pytest.mark.parametrize(("tokens", "kept"), [(22, 3), (21, 2), (15, 2), (14, 1), (8, 1), (7, 0), (1, 0)])
def test_a_conversation_is_cut_behind_the_last_answer_that_fits(tokens: int, kept: int):
    limit = LengthLimit(tokens, "cut")
    found = limit.encode(ENCODER, TALK)
    assert (limit.cut, limit.dropped, limit.seen) == (int(0 < kept < 3), int(kept == 0), 1)
    if kept == 0:
        assert found is None
        return
    assert len(found.ids) == 1 + 7 * kept and len(found.spans) == kept
    assert found.ids == ENCODER.encode(TALK).ids[: len(found.ids)] and found.ids[-1] == TOKENIZER.end_id
    trained = [token for token, counts in zip(found.ids, found.trained, strict=True) if counts]
    assert bytes(token for token in trained if token < 256) == b"cd" * kept


def test_what_is_dropped_is_counted():
    limit = LengthLimit(21, "drop")
    short = parse_conversation(json.dumps({"instruction": "a", "output": "b"}), "there")
    assert limit.encode(ENCODER, TALK) is None and limit.encode(ENCODER, short) is not None
    assert limit.describe() == "1 of 2 conversations are longer than the context of 21 tokens: 1 left out"
    limit.check()
    assert limit.settings() == {"long_conversations": "drop", "context_length": 21}
    assert LengthLimit(21).settings() == {} and LengthLimit(99, "cut").describe() is None


def test_prompts_leave_room_for_an_answer():
    limit = LengthLimit(20, "drop", answer=5)
    assert [limit.fits(tokens, f"line {tokens}") for tokens in (15, 16)] == [True, False]
    assert limit.settings() == {"long_conversations": "drop", "context_length": 15}
    limit.dropped = 1
    room = "the 15 tokens that the context of 20 tokens leaves beside an answer of 5"
    assert limit.describe() == f"1 of 2 prompts are longer than {room}: 1 left out"
    refused = LengthLimit(20, answer=5, seen=2, dropped=1, longest=(16, "line 16"))
    expected = f"1 of 2 prompts are longer than {room} (up to 16, line 16); expected drop (leaves them out), a shorter"
    with pytest.raises(UserError, match=re.escape(f"long_conversations: refuse: {expected}")):
        refused.check()
    with pytest.raises(UserError, match="long_conversations: cut: expected one of refuse, drop for prompts"):
        LengthLimit(20, "cut", answer=5)


def test_pairs_of_answers_are_never_cut(tmp_path):
    rows = [{"prompt": f"{n:02}", "chosen": "ok" * (1 + n % 3), "rejected": "no"} for n in range(30)]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = r"10 of 30 pairs of answers are longer than the context of 10 .* drop \(leaves them out\), a model with"
    with pytest.raises(UserError, match=expected):
        prepare_preferences(path, tmp_path / "data", TEMPLATE, TOKENIZER, 0.2, limit=LengthLimit(10))
    with pytest.raises(UserError, match="long_conversations: cut: would make answers differ; expected refuse or drop"):
        prepare_preferences(path, tmp_path / "data", TEMPLATE, TOKENIZER, 0.2, limit=LengthLimit(10, "cut"))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "chat.jsonl"
    rows = [[("user", f"{n:02}"), ("assistant", "ok")] * (1 + n % 3) for n in range(30)]
    lines = [json.dumps({"messages": [{"role": r, "content": c} for r, c in row]}) + "\n" for row in rows]
    path.write_text("".join(lines))
    return path


def test_long_conversations_are_refused_with_their_number(file, tmp_path):
    expected = (
        "long_conversations: refuse: 20 of 30 conversations are longer than the context of 14 tokens (up to 22, "
        f"{file}, line 3); expected drop (leaves them out), cut (behind the last answer that fits), or a model with a"
    )
    with pytest.raises(UserError, match=re.escape(expected)):
        prepare_conversations(file, tmp_path / "data", TEMPLATE, TOKENIZER, 0.2, limit=LengthLimit(14))
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("long", "rows"), [("drop", 10), ("cut", 30)])
def test_a_data_folder_has_what_fits(file, tmp_path, told, long, rows):
    manifest = prepare_conversations(file, tmp_path / "data", TEMPLATE, TOKENIZER, 0.2, limit=LengthLimit(14, long))
    data = TokenData.open(tmp_path / "data")
    lengths = [n for side in ("train", "validation") for n in data.spans(data.split(side), 14).lengths_N.tolist()]
    assert len(lengths) == rows and set(lengths) == {8} and manifest.settings["context_length"] == 14
    assert any("20 of 30 conversations are longer than the context of 14 tokens: 20 " in line for line in told())


def test_a_data_folder_with_long_rows_names_what_leaves_them_out(file, tmp_path):
    prepare_conversations(file, tmp_path / "data", TEMPLATE, TOKENIZER, 0.2)
    data = TokenData.open(tmp_path / "data")
    with pytest.raises(UserError, match=r"22 tokens: more than the context of 14; .*, and .*--long-conversations drop"):
        data.spans(data.split("train"), 14)


def test_data_of_which_nothing_is_left_are_refused(file, tmp_path):
    with pytest.raises(UserError, match="long_conversations: cut: all conversations are longer than the context of 7"):
        prepare_conversations(file, tmp_path / "data", TEMPLATE, TOKENIZER, 0.2, limit=LengthLimit(7, "cut"))
    with pytest.raises(UserError, match="long_conversations: trim: expected one of refuse, drop, cut"):
        LengthLimit(7, "trim")
