"""Tokens know the message that made them, and whether they are trained on, from one rendering."""

import pytest

from linnet.core.errors import UserError
from linnet.data.chat_template import PLAIN, ChatTemplate
from linnet.data.chat_tokens import ChatEncoder
from linnet.data.conversations import ChatConversation, ChatTurn
from linnet.data.template_doctor import doctor
from linnet.data.tokenizer import Tokenizer

END = "<|end|>"
TALK = ChatConversation(
    (
        ChatTurn("system", "Be brief."),
        ChatTurn("user", "Höw?"),
        ChatTurn("assistant", "Sø."),
        ChatTurn("user", "Sø."),
        ChatTurn("assistant", "assistant"),
    ),
    "f.jsonl, line 1",
)
MARKED = (
    "{{ messages[0].content }}{% for m in messages[1:] %}<{{ m.role }}>"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{{ '\n' }}{% if loop.last %}!{% endif %}{% endfor %}end"
)
UNMARKED = (
    "{%- for m in messages %}{% for t in m.tool_calls %}{{ t }}{% endfor %}"
    "{{ '<' + m['role'] + '>' + m['content'] + eos_token + '\n' }}{% endfor %}"
)


def encoder(source, kind="bytes", texts=()):
    return ChatEncoder(ChatTemplate(source, "t.jinja", {"eos_token": END}), Tokenizer.train(kind, texts, None))


def trained_texts(found):
    return [found.rendered.text[span.start : span.stop] for span in found.rendered.trained]


@pytest.mark.parametrize("source", [MARKED, UNMARKED], ids=["marked", "unmarked"])
@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_the_answers_and_their_stop_tokens_are_trained_on(source, kind):
    encode = encoder(source, kind, ["Sø. Höw? assistant user Be brief."] * 3)
    found = encode.encode(TALK)
    assert found.rendered.text == encode.template.render([m.as_dict() for m in TALK.messages], False)
    assert trained_texts(found) == [f"Sø.{END}", f"assistant{END}"]
    picked = [token for token, is_trained in zip(found.ids, found.trained, strict=True) if is_trained]
    end = encode.tokenizer.end_id
    assert picked == [*encode.tokenizer.encode("Sø."), end, *encode.tokenizer.encode("assistant"), end]
    assert [found.ids[stop - 1] for _, stop in found.spans] == [end, end]
    assert found.ids[0] == end and not found.trained[0] and not found.torn


def test_every_token_knows_its_message():
    found = encoder(MARKED).encode(TALK)
    texts = dict.fromkeys((None, 1, 2, 3, 4), "")
    for part in found.rendered.parts:
        texts[part.message] += found.rendered.text[part.start : part.stop]
    assert texts[None] == "Be brief.end"
    assert texts[1] == "<user>Höw?\n" and texts[4] == f"<assistant>assistant{END}\n!"
    first = [found.messages.index(number) for number in (1, 2, 3, 4)]
    assert [found.ids[place] for place in first] == [ord("<")] * 4
    sizes = [found.messages.count(number) for number in (1, 2, 3, 4)]
    assert sizes == [len(texts[n].replace(END, "E").encode()) for n in (1, 2, 3, 4)]


def test_the_message_of_an_outer_loop_is_the_one_at_hand():
    call = ChatTurn("assistant", "So.", {"tool_calls": ["f()", "g()"]})
    found = encoder(UNMARKED).render(ChatConversation((TALK.messages[1], call), "f"))
    assert [part.message for part in found.parts].count(None) == 0
    assert found.text.startswith("<user>Höw?") and "f()g()<assistant>So." in found.text


def test_a_token_across_the_border_of_an_answer_is_torn():
    texts = ["soon " * 50]
    source = "{% for m in messages %}{% if m.role == 'assistant' %}so{% generation %}{{ m.content }}{% endgeneration %}"
    encode = encoder(source + "{% endif %}{% endfor %}", "bpe", texts)
    found = encode.encode(ChatConversation((ChatTurn("assistant", "on"),), "f"))
    assert found.torn == [1] and not any(found.trained)


def test_a_content_that_is_joined_before_it_is_printed_is_found():
    source = "{% for m in messages %}{% set t = '<' ~ m.role ~ '>' ~ m.content ~ eos_token ~ '\n' %}{{ t }}{% endfor %}"
    assert trained_texts(encoder(source).encode(TALK)) == [f"Sø.{END}", f"assistant{END}"]
    counted = source.replace("m.content ~", "m.content ~ (m.content | length) ~")  # is another with marks
    assert trained_texts(encoder(counted).encode(ChatConversation(TALK.messages[:4], "f"))) == [f"Sø.3{END}"]
    with pytest.raises(UserError, match="message 4: what the template prints does not show"):
        encoder(counted).encode(TALK)


LLAMA_3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    "+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
"""The template of Meta-Llama-3-8B-Instruct."""


def test_the_template_of_llama_3_passes_every_check():
    names = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer = Tokenizer.train("bytes", []).with_special(names, ["<|eot_id|>"])
    template = ChatTemplate(LLAMA_3, "llama", {"bos_token": names[0], "eos_token": END})
    turns = (ChatTurn("user", "a"), ChatTurn("assistant", " assistant \n"), ChatTurn("user", "id"))
    talk = ChatConversation((*turns, ChatTurn("assistant", "a")), "f.jsonl, line 1")
    found = ChatEncoder(template, tokenizer).encode(talk)
    assert trained_texts(found) == ["assistant<|eot_id|>", "a<|eot_id|>"]
    assert [tokenizer.decode(found.ids[start:stop]) for start, stop in found.spans] == ["assistant", "a"]
    assert doctor(template, tokenizer, [talk]) == []


def test_a_sum_of_numbers_is_printed_as_one():
    source = "{% for m in messages %}{{ 1 + loop.index }}{{ m.content ~ eos_token }}{% endfor %}"
    found = encoder(source).render(ChatConversation((ChatTurn("assistant", "So."),), "f"))
    assert found.text == f"2So.{END}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (MARKED.replace("{{ m.role }}", "{{ raise_exception('no') }}"), "f.jsonl, line 1: t.jinja: no"),
        ("{% macro a(m) %}{% generation %}{{ m }}{% endgeneration %}{% endmacro %}", "t.jinja: line 1: .* in a block"),
        (
            "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
            "message 2: what the template prints does not show",
        ),
        ("{% for %}", "t.jinja: not a template"),
    ],
    ids=["refused", "macro", "changed", "broken"],
)
def test_templates_without_a_place_for_answers_are_refused(source, expected):
    with pytest.raises(UserError, match=expected):
        encoder(source).encode(TALK)


def test_the_plain_template_has_no_stop_token():
    found = encoder(PLAIN).encode(TALK)
    assert trained_texts(found) == ["Sø.", "assistant"]
