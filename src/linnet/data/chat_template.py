"""Chat templates: from the messages of a conversation to the text that a model reads.

A template is written in Jinja and rendered in a sandbox, with the settings, functions and filters that Transformers
gives to the templates of published models (https://huggingface.co/docs/transformers/chat_templating_writing). A model
without one, as every base model, is addressed by the plain template below.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnet.core.errors import UserError
from linnet.core.files import read_json, read_text

if TYPE_CHECKING:
    from jinja2 import Environment, Template, nodes
    from jinja2.ext import Extension

CHAT_TEMPLATE, CHAT_TEMPLATES, TOKENIZER_CONFIG = (
    "chat_template.jinja",
    "additional_chat_templates",
    "tokenizer_config.json",
)

PLAIN = (
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content | trim }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""The template of models that have none: the names of the roles, as a transcript writes them."""

PLAIN_STOPS = ("\nUser:", "\nSystem:")
"""Texts that end an answer to the plain template: a base model would go on with the next question."""

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
"""Names of control tokens that a template may use; `tokenizer_config.json` has their texts."""

MARK = "_linnet_mark"
"""The function that `mark` calls; an ordinary rendering ignores it."""

Message = Mapping[str, Any]
"""`role`, `content`, and what else the template reads (`name`, `tool_calls`)."""


@dataclass(frozen=True)
class ChatTemplate:
    """A template with the control tokens that it may name.

    source: the text of the template. origin: its file, or where it is from, for messages. stops: texts that end an
    answer, in addition to the end tokens of the model.
    """

    source: str
    origin: str
    special_tokens: Mapping[str, str]
    stops: tuple[str, ...] = ()

    @classmethod
    def find(cls, *folders: Path) -> "ChatTemplate":
        """The template in the first of the folders that has one (the default one, if it has several), or the plain one.

        A model folder is followed by the one with the files of the published model that it was imported from.
        """
        for folder in folders:
            templates = named_templates(folder)
            if templates:
                name = "default" if "default" in templates else next(iter(templates))
                named = dict[str, str]()
                for each in reversed(folders):
                    named |= special_tokens_of(each)
                return cls(templates[name], f"{folder}: chat template {name!r}", named)
        return cls(PLAIN, "the plain chat template", {}, PLAIN_STOPS)

    @property
    def is_plain(self) -> bool:
        """True if the model has no template of its own."""
        return self.source == PLAIN

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The text of a conversation, with the beginning of an answer behind it if `add_generation_prompt`.

        variables: what else the template reads, such as `tools`. `UserError` if the template refuses the messages.
        """
        from jinja2 import TemplateError

        values = {**self.special_tokens, **variables, "messages": [dict(message) for message in messages]}
        try:
            return self._template.render(values | {"add_generation_prompt": add_generation_prompt})
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise UserError(f"{self.origin}: {error}", field="messages") from None

    @cached_property
    def _template(self) -> "Template":
        from jinja2 import TemplateError

        try:
            return environment().from_string(self.source)
        except TemplateError as error:
            raise UserError(f"{self.origin}: not a template: {error}") from None


def environment() -> "Environment":
    """The sandbox in which templates run, with the settings of Transformers."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation_tag(), "jinja2.ext.loopcontrols"]
    )
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _raise
    made.globals[MARK] = lambda *_: None
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without escapes of characters: Jinja's own filter escapes those of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> str:
    """Refuse the messages; templates call it as `raise_exception`."""
    from jinja2 import TemplateError

    raise TemplateError(message)


def _generation_tag() -> "type[Extension]":
    """`{% generation %}...{% endgeneration %}`, which marks what a model is trained on and prints what is within."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 (declared so by its base)

        def parse(self, parser: Parser) -> list[nodes.Node]:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return [mark("generation", line), nodes.Scope(body).set_lineno(line), mark("endgeneration", line)]

    return Generation


def mark(event: str, line: int, *values: "nodes.Expr") -> "nodes.ExprStmt":
    """A statement that prints nothing and tells the function `MARK` of the rendering that an event is reached."""
    from jinja2 import nodes

    arguments: list[nodes.Expr] = [nodes.Const(event), *values]
    call = nodes.Call(nodes.Name(MARK, "load"), arguments, [], None, None)
    statement = nodes.ExprStmt(call).set_lineno(line)
    assert isinstance(statement, nodes.ExprStmt)
    return statement


def named_templates(folder: Path) -> dict[str, str]:
    """The chat templates in a folder by name; `default` is the one without a name."""
    config = read_json(folder / TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).is_file() else {}
    listed = config.get("chat_template") or [] if isinstance(config, dict) else []
    named = [{"name": "default", "template": listed}] if isinstance(listed, str) else listed
    if not isinstance(named, list) or not all(
        isinstance(each, dict) and {"name", "template"} <= each.keys() for each in named
    ):
        accepted = "a text, or a list of texts with names (`name`, `template`)"
        raise UserError(f"{folder / TOKENIZER_CONFIG}: chat_template: expected {accepted}")
    templates = {str(each["name"]): str(each["template"]) for each in named}
    files = {path.stem: path for path in sorted((folder / CHAT_TEMPLATES).glob("*.jinja"))}
    files |= {"default": folder / CHAT_TEMPLATE} if (folder / CHAT_TEMPLATE).is_file() else {}
    return templates | {name: read_text(path) for name, path in files.items()}


def chat_files(folder: Path | None) -> dict[str, str]:
    """The chat template and the special tokens that lie in a model folder itself, as texts by the names of files."""
    names = () if folder is None else (CHAT_TEMPLATE, TOKENIZER_CONFIG)
    return {name: read_text(folder / name) for name in names if folder is not None and (folder / name).is_file()}


def files_of_template(source: str, special_tokens: Mapping[str, str]) -> dict[str, str]:
    """The texts of the files that give a model folder a chat template, by their names."""
    return {CHAT_TEMPLATE: source, TOKENIZER_CONFIG: json.dumps(dict(special_tokens), indent=2) + "\n"}


def special_tokens_of(folder: Path) -> dict[str, str]:
    """The texts of control tokens by name (`bos_token`), from `tokenizer_config.json`."""
    config = read_json(folder / TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).is_file() else {}
    found = {name: config.get(name) for name in SPECIAL_TOKENS} if isinstance(config, dict) else {}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}
