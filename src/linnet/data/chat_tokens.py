"""Conversations as tokens, each of which knows the message that made it and whether a model is trained to write it.

Both are read from one rendering, whose parts are noted as the template prints them: a loop over messages notes the
message at hand, `{% generation %}` what is trained on. No prefixes of a conversation are compared. The whole text is
then encoded once, and the places of the tokens in it say which part each is from.

Legend: `T` tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from linnet.core.errors import UserError
from linnet.data.chat_template import MARK, ChatTemplate, environment, mark
from linnet.data.conversations import ChatConversation, ChatTurn
from linnet.data.tokenizer import Tokenizer
from linnet.present.token_view import ShownToken, TokenView

if TYPE_CHECKING:
    from jinja2 import Template, nodes


class Span(NamedTuple):
    """Characters `start` to before `stop` of a rendered text, and the number of the message that printed them.

    message: None: the template itself did, outside a loop over messages.
    """

    start: int
    stop: int
    message: int | None


@dataclass(frozen=True)
class RenderedChat:
    """A rendered conversation: its text, who printed which part of it, and the parts that are trained on."""

    text: str
    parts: tuple[Span, ...]
    trained: tuple[Span, ...]


@dataclass(frozen=True)
class ChatTokens:
    """A conversation as tokens, `[T]` each.

    messages: the number of the message that made a token; None: the template. trained: True where a model is trained to
    write it. offsets: its places in `rendered.text`. torn: places in `ids` of tokens that lie across the border of a
    trained part; they are not trained on. spans: the first token of each trained part and the one behind its last.
    """

    rendered: RenderedChat
    ids: list[int]
    offsets: list[tuple[int, int]]
    messages: list[int | None]
    trained: list[bool]
    torn: list[int]
    spans: list[tuple[int, int]]


def token_view(conversation: ChatConversation, found: ChatTokens, tokenizer: Tokenizer) -> TokenView:
    """The tokens of a conversation for people. Of tokens that share a character the first shows it."""
    shown, before = list[ShownToken](), (-1, -1)
    for place, (token, number) in enumerate(zip(found.ids, found.messages, strict=True)):
        start, stop = found.offsets[place]
        text = found.rendered.text[start:stop] if start < stop else tokenizer.token_name(token)
        text, before = "" if (start, stop) == before else text, (start, stop)
        role = "template" if number is None else conversation.messages[number].role
        shown.append(ShownToken(token, text, role, number, found.trained[place], place in found.torn))
    return TokenView(conversation.place, shown)


@dataclass
class _Recorder:
    """What the marks of a template tell while it renders: the message at hand, and whether it is trained on."""

    numbers: dict[int, int]
    message: int | None = None
    is_trained: bool = False
    enclosing: list[int | None] = field(default_factory=list)
    answers: int = 0

    def __call__(self, event: str, *values: Any) -> None:
        if event == "loop":
            self.enclosing.append(self.message)
        elif event == "endloop":
            self.message = self.enclosing.pop()
        elif event == "item":
            found = [self.numbers[id(value)] for value in values if id(value) in self.numbers]
            self.message = found[0] if found else self.message
        else:
            self.is_trained = event == "generation"
            self.answers += self.is_trained


class ChatEncoder:
    """Turns conversations into tokens by a template and a tokenizer.

    `UserError` for a template that has a `{% generation %}` where its place in the output is unknown, as in a macro.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self.template, self.tokenizer = template, tokenizer.parsing_special()
        self._special = tuple(name for name, is_special in tokenizer.added_tokens.items() if is_special)
        self._traced, self.has_generation = _traced_template(template)

    def render(self, conversation: ChatConversation, messages: int | None = None) -> RenderedChat:
        """Render a conversation, or its first `messages`, without the beginning of another answer behind it.

        A template without `{% generation %}` is trained on the content of each answer and what follows it in the
        output of that message; `UserError` where the content is not found there as it stands.
        """
        from jinja2 import TemplateError

        dicts = [turn.as_dict() for turn in conversation.messages[:messages]]
        recorder = _Recorder({id(each): number for number, each in enumerate(dicts)})
        values = {**self.template.special_tokens, **conversation.variables, "messages": dicts, MARK: recorder}
        text, parts, trained = "", list[Span](), list[Span]()
        answer = 0
        try:
            for chunk in self._traced.generate(values | {"add_generation_prompt": False}):
                span = Span(len(text), len(text) + len(chunk), recorder.message)
                text += chunk
                parts.append(span)
                if recorder.is_trained and trained and recorder.answers == answer:
                    trained[-1] = trained[-1]._replace(stop=span.stop)
                elif recorder.is_trained:
                    trained.append(span)
                    answer = recorder.answers
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise UserError(f"{conversation.place}: {self.template.origin}: {error}") from None
        if not self.has_generation:
            answers = [number for number in conversation.answers if number < len(dicts)]
            marked = _Marked(self.template, conversation, dicts, answers, text)
            trained = [self._answer(conversation, number, text, parts, marked) for number in answers]
        return RenderedChat(text, tuple(parts), tuple(trained))

    def encode_prompt(self, messages: Sequence[ChatTurn], variables: Mapping[str, Any]) -> list[int]:
        """The tokens of the text that asks for an answer to messages, which begins as that of `encode`."""
        text = self.template.render([turn.as_dict() for turn in messages], True, **variables)
        ids = self.tokenizer.encode(text)
        return ids if text.startswith(self._special) else [self.tokenizer.end_id, *ids]

    def encode(self, conversation: ChatConversation, messages: int | None = None) -> ChatTokens:
        """Encode a conversation, or its first `messages`.

        The end token, which begins each document, comes first unless the text begins with a special token.
        """
        rendered = self.render(conversation, messages)
        ids, offsets = self.tokenizer.encode_with_offsets(rendered.text)
        if not rendered.text.startswith(self._special):
            ids, offsets = [self.tokenizer.end_id, *ids], [(0, 0), *offsets]
        owners = list[int | None](_owners(rendered.parts, offsets))
        trained, torn, spans = [False] * len(ids), set[int](), list[tuple[int, int]]()
        for span in rendered.trained:
            touched = [
                place
                for place, (start, stop) in enumerate(offsets)
                if start < span.stop and stop > span.start and start < stop
            ]
            inside = [place for place in touched if offsets[place][0] >= span.start and offsets[place][1] <= span.stop]
            torn.update(set(touched) - set(inside))
            for place in inside:
                trained[place] = True
            if inside:
                spans.append((inside[0], inside[-1] + 1))
        return ChatTokens(rendered, ids, offsets, owners, trained, sorted(torn), spans)

    def _answer(
        self, conversation: ChatConversation, number: int, text: str, parts: list[Span], marked: "_Marked"
    ) -> Span:
        """The content of an answer and what its message prints behind it, without white space at the end."""
        content = (conversation.messages[number].content or "").strip()
        own = [part for part in parts if part.message == number]
        alone = [part for part in own if content and text[part.start : part.stop].strip() == content]
        printed = text[own[0].start : own[-1].stop] if own else ""
        if alone:  # a role may read like the content, and stands before it
            start, stop = alone[-1].start, alone[-1].stop
        elif content and printed.count(content) == 1:
            start = own[0].start + printed.index(content)
            stop = start + len(content)
        elif content and own and (place := marked.places.get(number)) is not None:
            start, stop = place
        else:
            accepted = f"{{% generation %}} around answers in {self.template.origin}"
            problem = "what the template prints does not show which part is its content"
            raise UserError(f"{conversation.place}: message {number}: {problem}; expected {accepted}")
        return Span(start, max(stop, start + len(text[start : own[-1].stop].rstrip())), number)


@dataclass(frozen=True)
class _Marked:
    """Finds answers that a template joins with other text before it prints them, as that of Llama 3 does.

    Such a template is rendered once more, with a character around each content that no text has; what is left without
    these characters has to be the text of the first rendering.
    """

    template: ChatTemplate
    conversation: ChatConversation
    dicts: list[dict[str, Any]]
    answers: list[int]
    text: str

    @cached_property
    def places(self) -> dict[int, tuple[int, int]]:
        """Where the content of each answer begins and ends in the text; empty if the template shows it otherwise."""
        mark = next((chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in self.text), None)
        marked, wanted = [dict(each) for each in self.dicts], list[int]()
        for number in self.answers:
            content = self.conversation.messages[number].content or ""
            inner = content.strip()
            if inner and mark is not None:  # white space around a content stays outside, where templates remove it
                begin = content.index(inner)
                behind = content[begin + len(inner) :]
                marked[number]["content"] = f"{content[:begin]}{mark}{inner}{mark}{behind}"
                wanted.append(number)
        if mark is None or not wanted:
            return {}
        try:
            pieces = self.template.render(marked, False, **self.conversation.variables).split(mark)
        except UserError:
            return {}
        if len(pieces) != 2 * len(wanted) + 1 or "".join(pieces) != self.text:
            return {}
        ends = list(accumulate(map(len, pieces)))
        found = {number: (ends[2 * place], ends[2 * place + 1]) for place, number in enumerate(wanted)}
        contents = {number: (self.conversation.messages[number].content or "").strip() for number in wanted}
        return {number: place for number, place in found.items() if self.text[slice(*place)] == contents[number]}


def _owners(parts: tuple[Span, ...], offsets: list[tuple[int, int]]) -> Iterator[int | None]:
    """The message in whose part each token begins; both are in ascending order."""
    place = 0
    for start, _ in offsets:
        while place + 1 < len(parts) and parts[place].stop <= start:
            place += 1
        yield parts[place].message if parts else None


def _traced_template(template: ChatTemplate) -> tuple["Template", bool]:
    """The template with marks at loops and answers, and whether it has `{% generation %}`."""
    from jinja2 import TemplateError, nodes
    from jinja2.visitor import NodeTransformer

    class Marks(NodeTransformer):
        def visit_For(self, node: nodes.For) -> list[nodes.Node]:
            self.generic_visit(node)
            targets = [node.target, *node.target.find_all(nodes.Name)]  # a tuple of names, or one name
            loads = [nodes.Name(each.name, "load") for each in targets if isinstance(each, nodes.Name)]
            node.body.insert(0, mark("item", node.lineno, *loads))
            return [mark("loop", node.lineno), node, mark("endloop", node.lineno)]

        def visit_Output(self, node: nodes.Output) -> nodes.Node:
            node.nodes = [part for each in node.nodes for part in _summands(each)]
            return node

    made = environment()
    try:
        tree = made.parse(template.source)
        _refuse_buffered(tree, template.origin)
        has_generation = any(_is_generation(each) for each in tree.find_all(nodes.ExprStmt))
        traced = Marks().visit(tree)
        traced.set_environment(made)
        return made.from_string(traced), has_generation
    except TemplateError as error:
        raise UserError(f"{template.origin}: not a template: {error}") from None


def _summands(node: "nodes.Expr") -> "list[nodes.Expr]":
    """The parts of a printed sum of texts, `'<user>' + content`, each of which is then printed by itself."""
    from jinja2 import nodes

    if isinstance(node, nodes.Concat):
        return [part for each in node.nodes for part in _summands(each)]
    parts, rest = list[nodes.Expr](), node
    while isinstance(rest, nodes.Add):
        parts.insert(0, rest.right)
        rest = rest.left
    parts.insert(0, rest)
    is_text = any(isinstance(part, nodes.Const) and isinstance(part.value, str) for part in parts)
    return parts if is_text else [node]  # a sum of numbers is one


def _is_generation(statement: "nodes.ExprStmt") -> bool:
    from jinja2 import nodes

    call = statement.node
    if not (isinstance(call, nodes.Call) and isinstance(call.node, nodes.Name) and call.node.name == MARK):
        return False
    event = call.args[0]
    return isinstance(event, nodes.Const) and event.value == "generation"


def _refuse_buffered(tree: "nodes.Template", origin: str) -> None:
    """`UserError` for an answer in a part whose output is printed later, or changed, so that its place is unknown."""
    from jinja2 import nodes

    for part in tree.find_all((nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock)):
        if any(_is_generation(each) for each in part.find_all(nodes.ExprStmt)):
            accepted = "it outside macros, call, filter and set blocks"
            raise UserError(f"{origin}: line {part.lineno}: {{% generation %}} in a block; expected {accepted}")
