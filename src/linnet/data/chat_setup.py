"""What a model is taught to chat with: its chat template, or one that it gets with control tokens and a stop token.

A base model has no template of its own, and no token that ends an answer but not the conversation. It gets those of
`CONTROL_TOKENS`, which enclose each message: `<|im_start|>user<|im_sep|>Hello<|im_end|>`. The content of a message lies
between two control tokens, so no token of the text reaches across its border, whatever the tokenizer.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from linnet.core.errors import UserError
from linnet.core.files import read_text
from linnet.data.chat_template import ChatTemplate, special_tokens_of
from linnet.data.chat_tokens import ChatEncoder
from linnet.data.conversations import ASSISTANT, ChatConversation, ChatTurn
from linnet.data.tokenizer import TOKENIZER, Tokenizer

CONTROL_TOKENS = ("<|im_start|>", "<|im_sep|>", "<|im_end|>")
"""Begins a message, ends its role, ends the message: the names that OpenAI's and Microsoft's models have for them."""

OWN_TEMPLATE = """\
{{- bos_token }}
{%- if tools %}
    {{- '<|im_start|>system<|im_sep|>Tools:' }}
    {%- for tool in tools %}
        {{- '\\n' + tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '<|im_sep|>' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {{- message.content or '' }}
            {%- for call in message.tool_calls or [] %}
                {{- '<tool_call>' + (call.function or call) | tojson + '</tool_call>' }}
            {%- endfor %}
            {{- '<|im_end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant<|im_sep|>' }}
{%- endif %}
"""
"""The template of models that have none and are trained on conversations."""

OWN_ORIGIN = "linnet's chat template"

_CONTROL = re.compile(r"<\|[^|<>\s]{1,40}\|>")
_PROBE = ChatConversation((ChatTurn("user", "a"), ChatTurn(ASSISTANT, "b")), "a question with an answer")


@dataclass(frozen=True)
class ChatSetup:
    """The template and the tokenizer that a model's conversations are read with.

    added: the control tokens that the model's own tokenizer lacks; `tokenizer` has them. stops: the names of tokens
    that end a text now, and did not before.
    """

    template: ChatTemplate
    tokenizer: Tokenizer
    added: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()

    def describe(self) -> str | None:
        """What the model gets, in one line; None if it has all that its template needs."""
        if not self.added and not self.stops and self.template.origin != OWN_ORIGIN:
            return None
        is_own = self.template.origin == OWN_ORIGIN
        told = ["the model has none and gets linnet's" if is_own else self.template.origin]
        if self.added:
            names = ", ".join(self.added)
            told.append(f"{len(self.added)} control tokens are added, {names}, at the mean of the others")
        told += [f"{', '.join(self.stops)} ends an answer"] if self.stops else []
        return f"chat template: {'; '.join(told)}"


def chat_setup(folders: Sequence[Path], template_file: str | Path | None = None) -> ChatSetup:
    """The template and the tokenizer for training a model on conversations.

    folders: the model folder, then that with the files of the published model that it is from. template_file: a Jinja
    file; None: the template of the model, or `OWN_TEMPLATE` if it has none. Control tokens that the template writes as
    `<|name|>` are added to the tokenizer unless it has them, and the one that ends an answer becomes an end token.
    """
    tokenizer = Tokenizer.load(folders[0] / TOKENIZER)
    if template_file is None:
        found = ChatTemplate.find(*folders)
        if not found.is_plain:
            return ChatSetup(found, tokenizer)
        source, origin = OWN_TEMPLATE, OWN_ORIGIN
    else:
        source, origin = read_text(Path(template_file)), str(template_file)
    named = dict[str, str]()
    for folder in reversed(folders):
        named |= special_tokens_of(folder)
    return setup_of(tokenizer, source, origin, named)


def setup_of(
    tokenizer: Tokenizer,
    source: str = OWN_TEMPLATE,
    origin: str = OWN_ORIGIN,
    named: Mapping[str, str] = MappingProxyType({}),
) -> ChatSetup:
    """The setup for a template and a tokenizer that may lack its control tokens. named: tokens that it may name."""
    added = tuple(name for name in dict.fromkeys(_CONTROL.findall(source)) if name not in tokenizer.special_ids)
    grown = tokenizer.with_special(added) if added else tokenizer
    template = ChatTemplate(source, origin, _special_tokens(named, grown))
    stop = _stop(template, grown)
    if stop is None or stop in map(tokenizer.token_name, tokenizer.end_ids):
        return ChatSetup(template, grown, added)
    if origin == OWN_ORIGIN:
        template = ChatTemplate(source, origin, {**template.special_tokens, "eos_token": stop})
    return ChatSetup(template, tokenizer.with_special(added, (stop,)), added, (stop,))


def _special_tokens(named: Mapping[str, str], tokenizer: Tokenizer) -> dict[str, str]:
    """The tokens that a template may name: as the model's files say, else the token between documents."""
    end = tokenizer.token_name(tokenizer.end_id)
    return {"bos_token": end, "eos_token": end} | {
        name: text for name, text in named.items() if text in tokenizer.special_ids
    }


def _stop(template: ChatTemplate, tokenizer: Tokenizer) -> str | None:
    """The name of the special token that is trained last in an answer; None if it is text."""
    try:
        found = ChatEncoder(template, tokenizer).encode(_PROBE)
    except UserError:
        return None  # a template that refuses such a conversation; the checks name what is wrong with others
    name = tokenizer.token_name(found.ids[found.spans[-1][1] - 1]) if found.spans else None
    return name if name in tokenizer.special_ids else None
