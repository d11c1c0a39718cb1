"""Conversations and prompts that are longer than a context: refused, left out, or ended behind an answer that fits."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from linnet.core.errors import UserError
from linnet.data.chat_tokens import ChatEncoder, ChatTokens
from linnet.data.conversations import ChatConversation

LongConversations = Literal["refuse", "drop", "cut"]


@dataclass
class LengthLimit:
    """What becomes of conversations of more than `tokens` tokens, and how many there were.

    long: `refuse` all of the data if there is one, `drop` these conversations, or `cut` each behind its last answer
    that fits; one of which no answer fits is dropped, so no answer is ever shortened. answer: of prompts, the tokens
    that have to be left for an answer; a prompt cannot be cut. pairs: they are two answers to one prompt, which would
    differ if one were cut.
    """

    tokens: int
    long: LongConversations = "refuse"
    answer: int = 0
    pairs: bool = False
    seen: int = 0
    cut: int = 0
    dropped: int = 0
    longest: tuple[int, str] = field(default=(0, ""))

    def __post_init__(self) -> None:
        known = get_args(LongConversations)[: 2 if self.answer else None]
        if self.long == "cut" and self.pairs:
            raise UserError(
                "would make answers differ", field="long_conversations", value="cut", accepted="refuse or drop"
            )
        if self.long not in known:
            of_prompts = " for prompts" if self.answer else ""
            accepted = f"one of {', '.join(known)}{of_prompts}"
            raise UserError(field="long_conversations", value=self.long, accepted=accepted)

    def encode(self, encoder: ChatEncoder, conversation: ChatConversation) -> ChatTokens | None:
        """The tokens of a conversation, or of as many of its messages as fit; None: it is left out."""
        found = encoder.encode(conversation)
        if self.fits(len(found.ids), conversation.place):
            return found
        shorter = self._shorter(encoder, conversation, found) if self.long == "cut" else None
        if shorter is None:
            self.dropped += 1
        else:
            self.cut += 1
        return shorter

    def fits(self, tokens: int, place: str) -> bool:
        """True if so many tokens do; they are counted, and longer ones are remembered."""
        self.seen += 1
        if tokens <= self.tokens - self.answer:
            return True
        self.longest = max(self.longest, (tokens, place), key=lambda each: each[0])
        return False

    def _shorter(self, encoder: ChatEncoder, conversation: ChatConversation, found: ChatTokens) -> ChatTokens | None:
        """The longest beginning of a conversation that ends with an answer and fits; None if there is none."""
        # What a template prints behind the last message may lengthen a beginning, so each is encoded by itself.
        ends = sum(stop <= self.tokens for _, stop in found.spans)
        for answer in reversed(conversation.answers[:ends]):
            shorter = encoder.encode(conversation, answer + 1)
            if len(shorter.ids) <= self.tokens and any(shorter.trained):
                return shorter
        return None

    def check(self) -> None:
        """`UserError` for what is refused, or if nothing is left."""
        count, (tokens, place) = self.cut + self.dropped, self.longest
        if not count or not (self.long == "refuse" or self.dropped == self.seen):
            return
        which = "all" if count == self.seen else f"{count:,} of {self.seen:,}"
        problem = f"{which} {self._too_long}"
        accepted = (
            "a shorter answer, or a model with a longer context" if self.answer else "a model with a longer context"
        )
        if self.long == "refuse":
            cut = "" if self.answer or self.pairs else "cut (behind the last answer that fits), or "
            accepted = f"drop (leaves them out), {cut}{accepted}"
        value, problem = self.long, f"{problem} (up to {tokens}, {place})"
        raise UserError(problem, field="long_conversations", value=value, accepted=accepted)

    def describe(self) -> str | None:
        """What became of long conversations, in a line; None if there were none."""
        if not self.cut + self.dropped:
            return None
        parts = [f"{self.cut:,} cut behind the last answer that fits"] if self.cut else []
        parts += [f"{self.dropped:,} left out"] if self.dropped else []
        return f"{self.cut + self.dropped:,} of {self.seen:,} {self._too_long}: {', '.join(parts)}"

    @property
    def _too_long(self) -> str:
        context = f"the context of {self.tokens} tokens"
        if not self.answer:
            return f"{'pairs of answers' if self.pairs else 'conversations'} are longer than {context}"
        room = self.tokens - self.answer
        return f"prompts are longer than the {room} tokens that {context} leaves beside an answer of {self.answer}"

    def settings(self) -> dict[str, str | int]:
        """What a manifest says of it; nothing if all conversations have to fit."""
        longest = self.tokens - self.answer
        return {} if self.long == "refuse" else {"long_conversations": self.long, "context_length": longest}
