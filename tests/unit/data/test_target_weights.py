"""Weights of targets: by the role that wrote them, and the same in sum for each row."""

import json

import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.data.chat_template import ChatTemplate
from linnet.data.chat_tokens import ChatEncoder, ChatTokens, RenderedChat
from linnet.data.conversations import parse_conversation
from linnet.data.loader import document_rows
from linnet.data.shards import TokenSequence
from linnet.data.target_weights import ROLE_NUMBERS, TargetWeights, role_numbers
from linnet.data.tokenizer import Tokenizer

SYSTEM, USER, ANSWER = (ROLE_NUMBERS[role] for role in ("system", "user", "assistant"))
ROLES = np.array([0, USER, USER, SYSTEM, ANSWER, ANSWER, 0, USER, 0, ANSWER, 0])
ROWS = TokenSequence.in_memory("chat: train", 0, np.arange(11), ROLES == ANSWER, starts=np.array([0, 6]), roles=ROLES)
"""Two conversations, of six and of four tokens."""


def weights_of(weights: TargetWeights) -> list[list[float]]:
    """The weights of the targets of each row."""
    batch = document_rows(ROWS).read(weights.applied(ROWS), [0, 1])
    assert batch.weights is not None
    return [row[:length] for row, length in zip(batch.weights.tolist(), (6, 4), strict=True)]


def test_each_token_counts_as_its_role_does():
    found = weights_of(TargetWeights({"assistant": 2.0, "user": 0.5, "system": 0.25}))
    assert found == [[0.5, 0.5, 0.25, 2.0, 2.0, 0.0], [0.5, 0.0, 2.0, 0.0]]


def test_without_roles_the_mask_says_what_counts():
    assert weights_of(TargetWeights()) == [[0, 0, 0, 1, 1, 0], [0, 0, 1, 0]]


def test_each_row_may_count_as_much_as_another():
    found = weights_of(TargetWeights({"assistant": 2.0, "user": 0.5}, per_row=True))
    assert found == [pytest.approx([0.1, 0.1, 0, 0.4, 0.4, 0]), pytest.approx([0.2, 0, 0.8, 0])]


def test_rows_know_how_many_targets_count():
    assert document_rows(ROWS).counts_N.tolist() == [2, 1]
    assert document_rows(TargetWeights({"user": 1.0}).applied(ROWS)).counts_N.tolist() == [2, 1]
    assert document_rows(TargetWeights({"user": 1, "assistant": 1}).applied(ROWS)).counts_N.tolist() == [4, 2]
    assert ROWS.weights_dtype is np.bool_, "the sequence itself is as it was"


def test_a_row_of_which_nothing_counts_is_named():
    with pytest.raises(UserError, match=r"^chat: train: row 2: no token of it counts in the loss; expected at least"):
        TargetWeights({"tool": 1.0, "user": 0.0, "system": 1.0}).applied(ROWS)


def test_the_first_token_of_a_conversation_has_no_role():
    """It is the target that follows the last token of another one."""
    source = "{% for m in messages %}<|end|>{{ m.content }}{% endfor %}"
    line = json.dumps({"instruction": "Who", "output": "Me"})
    conversation, template = parse_conversation(line, "line 1"), ChatTemplate(source, "t.jinja", {})
    found = ChatEncoder(template, Tokenizer.train("bytes", [])).encode(conversation)
    assert found.messages[0] == 0 and role_numbers(conversation, found).tolist() == [0, *[USER] * 3, 0, ANSWER, ANSWER]


def test_data_without_roles_is_refused():
    pairs = TokenSequence.in_memory("pairs: train", 0, np.arange(3), np.array([0, 1, 1]), starts=np.array([0]))
    assert TargetWeights(per_row=True).applied(pairs).read_weights(1, 2).tolist() == [0.5, 0.5]
    with pytest.raises(UserError, match=r"^training.targets.roles: pairs: train does not tell the roles"):
        TargetWeights({"user": 1.0}).applied(pairs)


def test_the_role_of_a_token_is_that_of_its_message():
    source = (
        "<{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}<|end|>"
        "{% endgeneration %}{% else %}{{ m.role[0] }}:{{ m.content }}{% endif %}{% endfor %}"
    )
    talk = [("system", "S"), ("user", "U"), ("assistant", "No"), ("user", "V"), ("assistant", "Yes")]
    line = json.dumps({"messages": [{"role": role, "content": content} for role, content in talk]})
    conversation = parse_conversation(line, "line 1")
    found = ChatEncoder(ChatTemplate(source, "t.jinja", {}), Tokenizer.train("bytes", [])).encode(conversation)
    numbers = role_numbers(conversation, found)
    letters = {0: ".", SYSTEM: "s", USER: "u", ANSWER: "a"}
    # The end token and `<` are of no message, `A:` is printed around an answer.
    assert "".join(letters[number] for number in numbers) == "..sssuuu..aaauuu..aaaa"
    assert (numbers == ANSWER).tolist() == found.trained


def test_a_token_across_the_border_of_an_answer_has_no_role():
    talk = parse_conversation(json.dumps({"instruction": "a", "output": "b"}), "line 1")
    rendered, offsets = RenderedChat("", (), ()), [(0, 0)] * 5
    found = ChatTokens(rendered, [0] * 5, offsets, [None, 0, 0, 1, 1], [False, False, False, False, True], [2], [])
    assert role_numbers(talk, found).tolist() == [0, USER, 0, 0, ANSWER]
