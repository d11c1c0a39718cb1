"""Chat templates: what Transformers renders, in a sandbox, and what a model without one gets."""

import json

import pytest

from linnet.core.errors import UserError
from linnet.data.chat_template import ChatTemplate, named_templates

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Hi <b>there</b>! "},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Who are you?"},
]
CHATML = (
    "{%- if tools %}\n  {{- '# Tools ' + tools | tojson }}\n{% endif %}\n"
    "{% for message in messages %}\n    {% if message.role == 'assistant' %}\n"
    "{{ '<|im_start|>assistant\\n' }}{% generation %}{{ message['content'] + eos_token }}"
    "{% endgeneration %}{{ '\\n' }}\n"
    "    {% else %}\n{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}\n"
    "    {% endif %}\n    {%- if loop.last %}{% break %}{% endif %}\n{% endfor %}\n"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def model_folder(path, **files):
    path.mkdir()
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)
    return path


@pytest.fixture
def folder(tmp_path):
    config = json.dumps({"eos_token": {"content": "<|im_end|>"}, "bos_token": None})
    return model_folder(tmp_path / "m", chat_template__jinja=CHATML, tokenizer_config__json=config)


@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "sum<>", "parameters": {}}}]])
def test_a_template_renders_what_transformers_renders(folder, prompted, tools):
    from transformers.utils.chat_template_utils import render_jinja_template

    (expected,), _ = render_jinja_template(
        [TALK], tools=tools, chat_template=CHATML, add_generation_prompt=prompted, eos_token="<|im_end|>"
    )
    assert ChatTemplate.find(folder).render(TALK, prompted, tools=tools) == expected
    assert "<b>there</b>" in expected


def test_a_folder_without_a_template_gets_the_plain_one(tmp_path):
    template = ChatTemplate.find(model_folder(tmp_path / "m"))
    assert template.is_plain and "\nUser:" in template.stops
    text = template.render(TALK[1:3])
    assert text == "User: Hi <b>there</b>!\n\nAssistant: Hello.\n\nAssistant:"


def test_a_template_that_refuses_its_messages_is_one_line(tmp_path):
    source = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}"
    folder = model_folder(tmp_path / "m", chat_template__jinja=source)
    with pytest.raises(UserError, match="chat template 'default': user first"):
        ChatTemplate.find(folder).render(TALK)


def test_a_template_cannot_reach_the_interpreter(tmp_path):
    folder = model_folder(tmp_path / "m", chat_template__jinja="{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(UserError, match="unsafe"):
        ChatTemplate.find(folder).render(TALK)
    change = model_folder(tmp_path / "n", chat_template__jinja="{{ messages.append(1) }}")
    with pytest.raises(UserError, match="unsafe"):
        ChatTemplate.find(change).render(TALK)


def test_a_text_that_is_no_template_names_its_file(tmp_path):
    folder = model_folder(tmp_path / "m", chat_template__jinja="{% for %}")
    with pytest.raises(UserError, match="m: chat template 'default': not a template"):
        ChatTemplate.find(folder).render(TALK)


def test_templates_are_found_by_name(tmp_path):
    listed = json.dumps(
        {"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}
    )
    folder = model_folder(tmp_path / "m", tokenizer_config__json=listed)
    assert named_templates(folder) == {"default": "a", "tool_use": "b"}
    assert ChatTemplate.find(folder).render([]) == "a"
