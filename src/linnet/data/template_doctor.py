"""Checks of a chat template with its tokenizer, on conversations: what would go wrong in training without a word."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from linnet.data.chat_template import ChatTemplate
from linnet.data.chat_tokens import ChatEncoder, ChatTokens
from linnet.data.conversations import ChatConversation
from linnet.data.tokenizer import Tokenizer

_SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class TemplateFinding:
    """A check that failed. place: the first conversation that shows it. conversations: how many do."""

    check: str
    problem: str
    place: str
    conversations: int = 1


@dataclass(frozen=True)
class ChatCase:
    """A conversation as the checks read it."""

    encoder: ChatEncoder
    conversation: ChatConversation
    tokens: ChatTokens

    @property
    def text(self) -> str:
        return self.tokens.rendered.text


def doctor(
    template: ChatTemplate, tokenizer: Tokenizer, conversations: Iterable[ChatConversation]
) -> list[TemplateFinding]:
    """Run every check of `CHECKS` on the conversations; an empty list if the template passes all.

    Each check that failed is one finding. `UserError` for a template that cannot be rendered.
    """
    encoder = ChatEncoder(template, tokenizer)
    found: dict[str, TemplateFinding] = {}
    for conversation in conversations:
        case = ChatCase(encoder, conversation, encoder.encode(conversation))
        for check, look in CHECKS.items():
            problem = next(look(case), None)
            if problem is not None and check in found:
                found[check] = replace(found[check], conversations=found[check].conversations + 1)
            elif problem is not None:
                found[check] = TemplateFinding(check, problem, conversation.place)
    return [found[check] for check in CHECKS if check in found]


def _earlier_turns(case: ChatCase) -> Iterator[str]:
    """A message must print the same whatever follows it: else the model is asked with other texts than it learned."""
    for answer in case.conversation.answers:
        shorter = _texts_of_messages(case, answer + 1)
        for number, text in _texts_of_messages(case, None).items():
            if number in shorter and shorter[number] != text:
                before = _shown(shorter[number])
                yield f"message {number} prints {before}, and {_shown(text)} when the conversation goes on"


def _texts_of_messages(case: ChatCase, messages: int | None) -> dict[int, str]:
    rendered, texts = case.encoder.render(case.conversation, messages), dict[int, str]()
    for part in rendered.parts:
        if part.message is not None:
            texts[part.message] = texts.get(part.message, "") + rendered.text[part.start : part.stop]
    return texts


def _prefixes(case: ChatCase) -> Iterator[str]:
    """The tokens up to an answer must not change when the conversation goes on: sessions keep what they have read."""
    for answer in case.conversation.answers:
        shorter = case.encoder.encode(case.conversation, answer + 1)
        if case.tokens.ids[: len(shorter.ids)] != shorter.ids:
            what = "tokens" if case.text.startswith(shorter.rendered.text) else "text"
            yield f"the {what} of the first {answer + 1} messages is not the beginning of that of all"


def _stops(case: ChatCase) -> Iterator[str]:
    """The last token of every answer must be one that ends a text: else the model never learns to stop."""
    tokenizer, ids = case.encoder.tokenizer, case.tokens.ids
    answers, spans = case.conversation.answers, case.tokens.spans
    if len(spans) != len(answers):
        yield f"{len(spans)} of {len(answers)} answers are trained on"
    for number, (_, stop) in enumerate(spans):
        if ids[stop - 1] not in tokenizer.end_ids:
            ends = ", ".join(map(tokenizer.token_name, tokenizer.end_ids))
            yield f"answer {number} ends with {tokenizer.describe_token(ids[stop - 1])}; expected a stop token: {ends}"


def _beginnings(case: ChatCase) -> Iterator[str]:
    """At most one token begins the text."""
    bos, eos = (case.encoder.template.special_tokens.get(name) for name in ("bos_token", "eos_token"))
    if bos and bos != eos and case.text.count(bos) > 1:
        yield f"{bos} is printed {case.text.count(bos)} times"
    first = case.tokens.ids[:2]
    if len(first) == 2 and first[0] == first[1] and not case.encoder.tokenizer.pieces.table[first[0]]:
        yield f"{case.encoder.tokenizer.token_name(first[0])} begins the text twice"


def _seams(case: ChatCase) -> Iterator[str]:
    """No token lies across the border of an answer, and the tokens before it are those of the text before it."""
    tokenizer, tokens = case.encoder.tokenizer, case.tokens
    for place in tokens.torn:
        yield f"token {tokenizer.describe_token(tokens.ids[place])} lies across the border of an answer"
    for span, (start, _) in zip(tokens.rendered.trained, tokens.spans, strict=False):
        before = tokenizer.encode(case.text[: span.start])
        if tokens.ids[:start][-len(before) :] != before and before:
            yield f"the text before {_shown(case.text[span.start : span.stop])} has other tokens by itself"


def _forged(case: ChatCase) -> Iterator[str]:
    """The name of a control token in the text of a message becomes that token, and may end or begin a message."""
    names = [name for name in case.encoder.tokenizer.special_ids if len(name) > 1]
    for number, turn in enumerate(case.conversation.messages):
        found = [name for name in names if name in (turn.content or "")]
        if found:
            yield f"message {number} contains {found[0]}, which is read as that token"


def _padding(case: ChatCase) -> Iterator[str]:
    """Programs that leave pad tokens out of the loss would leave out the stop token with them."""
    names = case.encoder.template.special_tokens
    pad = names.get("pad_token")
    if pad and pad == names.get("eos_token"):
        yield f"pad_token is the eos_token, {pad}: programs that mask pads never train on it (linnet does)"


def _prompts(case: ChatCase) -> Iterator[str]:
    """The text that asks for an answer must be the text before it in training."""
    dicts = [turn.as_dict() for turn in case.conversation.messages]
    for answer, span in zip(case.conversation.answers, case.tokens.rendered.trained, strict=False):
        asked = case.encoder.template.render(dicts[:answer], True, **case.conversation.variables)
        before = case.text[: span.start]
        if asked != before:
            yield f"message {answer} is asked for by {_tail(asked)}, and trained on behind {_tail(before)}"


CHECKS: dict[str, Callable[[ChatCase], Iterator[str]]] = {
    "no rewrite of earlier turns": _earlier_turns,
    "prefix-stable over turns": _prefixes,
    "stop token trained after every answer": _stops,
    "one token begins the text": _beginnings,
    "no merge across the seam": _seams,
    "pad is not the stop token": _padding,
    "generation prompt equals the training prefix": _prompts,
    "no control token within a message": _forged,
}
"""The checks by name."""

FATAL = ("stop token trained after every answer",)
"""Checks without which nothing is prepared to train on; the others are told."""


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")


def _tail(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"...{text[-_SHOWN_CHARACTERS:]}")
