"""Each check finds a template that has its fault, and no check a sound one."""

import pytest

from linnet.data.chat_template import PLAIN, ChatTemplate
from linnet.data.chat_tokens import ChatEncoder
from linnet.data.conversations import ChatConversation, ChatTurn
from linnet.data.template_doctor import CHECKS, ChatCase, doctor
from linnet.data.tokenizer import Tokenizer

END = "<|end|>"
SPECIAL = {"eos_token": END, "bos_token": "<s>", "pad_token": "<pad>"}
TALK = ChatConversation(
    (ChatTurn("user", "Who?"), ChatTurn("assistant", "on"), ChatTurn("user", "When?"), ChatTurn("assistant", "Now.")),
    "f.jsonl, line 1",
)
SOUND = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content + eos_token }}"
    "{% endgeneration %}{% else %}U:{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
)
FAULTS = {
    "no rewrite of earlier turns": (
        SOUND.replace(
            "{% else %}U:", "{% else %}{% if not loop.last and loop.index > messages | length - 2 %}U:{% endif %}"
        ),
        {},
        "message 0 prints 'U:Who?', and 'Who?' when the conversation goes on",
    ),
    "prefix-stable over turns": (SOUND + "bye", {}, "the text of the first 2 messages is not the beginning"),
    "stop token trained after every answer": (
        SOUND.replace(
            "{{ m.content + eos_token }}{% endgeneration %}", "{{ m.content }}{% endgeneration %}{{ eos_token }}"
        ),
        {},
        "answer 0 ends with 'n'; expected a stop token: <|end|>",
    ),
    "one token begins the text": (SOUND.replace("U:", "{{ bos_token }}U:"), {}, "<s> is printed 3 times"),
    "no merge across the seam": (SOUND.replace("A:", "so"), {}, "token 'soon' lies across the border of an answer"),
    "pad is not the stop token": (SOUND, {"pad_token": END}, "pad_token is the eos_token"),
    "generation prompt equals the training prefix": (
        SOUND.replace("prompt %}A:", "prompt %}A: "),
        {},
        "message 1 is asked for by '<s>U:Who?A: ', and trained on behind '<s>U:Who?A:'",
    ),
}


def findings(source, special=(), kind="bytes"):
    tokenizer = Tokenizer.train(kind, ["soon " * 50])
    return doctor(ChatTemplate(source, "t.jinja", {**SPECIAL, **dict(special)}), tokenizer, [TALK, TALK])


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_a_sound_template_passes(kind):
    assert findings(SOUND, kind=kind) == []


def test_every_check_has_a_fault():
    assert [*FAULTS, "no control token within a message"] == list(CHECKS)


def test_the_name_of_a_control_token_in_a_message_is_found():
    turns = (ChatTurn("user", "Is <|end|> text?"), ChatTurn("assistant", "No."))
    template, tokenizer = ChatTemplate(SOUND, "t.jinja", SPECIAL), Tokenizer.train("bytes", [])
    (found,) = doctor(template, tokenizer, [ChatConversation(turns, "here")])
    assert found.check == "no control token within a message"
    assert found.problem == "message 0 contains <|end|>, which is read as that token"


@pytest.mark.parametrize("check", list(FAULTS))
def test_a_fault_is_found(check):
    source, special, problem = FAULTS[check]
    kind = "bpe" if "merge" in check else "bytes"
    found = {each.check: each for each in findings(source, special, kind)}
    assert check in found
    assert problem in found[check].problem
    assert found[check].place == TALK.place and found[check].conversations == 2


def test_the_text_before_a_torn_answer_has_other_tokens_by_itself():
    template = ChatTemplate(SOUND.replace("A:", "so"), "t.jinja", SPECIAL)
    encoder = ChatEncoder(template, Tokenizer.train("bpe", ["soon " * 50]))
    case = ChatCase(encoder, TALK, encoder.encode(TALK))
    problems = list(CHECKS["no merge across the seam"](case))
    assert "the text before 'on<|end|>' has other tokens by itself" in problems


def test_an_end_token_in_front_of_the_text_is_one_too_many():
    found = findings("{{ eos_token }}{{ eos_token }}" + SOUND.replace("{{ bos_token }}", ""))
    assert [each.problem for each in found if "begins" in each.check] == ["<|end|> begins the text twice"]


def test_an_answer_that_is_not_trained_on_is_found():
    source = SOUND.replace("{% if m.role", "{% if loop.last and m.role", 1)
    assert "1 of 2 answers are trained on" in [each.problem for each in findings(source)]


def test_the_plain_template_is_not_for_training():
    checks = [each.check for each in findings(PLAIN)]
    assert "stop token trained after every answer" in checks
    assert "generation prompt equals the training prefix" in checks
