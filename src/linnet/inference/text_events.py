"""From generated tokens to text: one event for each token, with the text that it brought.

A token may end in the middle of a character, and its text may be the beginning of a text at which the stream stops.
Such tokens are held back until it is known what they are: no event shows a part of a character, nothing of a stop text
leaks, and at the end nothing that was held is lost. The texts of all events, one after the other, are the text.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from linnet.core.errors import UserError
from linnet.data.pieces import TextStream
from linnet.data.tokenizer import Tokenizer
from linnet.inference.streams import Event


class TokenChoice(NamedTuple):
    """A token that was chosen, or could have been.

    bytes: what it stands for at its place; none for special tokens. text: these bytes alone, in which parts of a
    character are U+FFFD, or the name of a special token. logprob: its log-probability; None if not requested.
    """

    token: int
    bytes: bytes
    text: str
    logprob: float | None


class TextEvent(NamedTuple):
    """One generated token with its text.

    text: what the token added to the text; empty for special tokens and beginnings of characters. The token that
    completes a character has all of it. choice: the token by itself. top: the likeliest tokens at its place, the
    likeliest first; empty if not requested.
    """

    text: str
    choice: TokenChoice
    top: tuple[TokenChoice, ...] = ()

    @property
    def token(self) -> int:
        """The token id."""
        return self.choice.token

    @property
    def logprob(self) -> float | None:
        """The log-probability of the token; None if not requested."""
        return self.choice.logprob


@dataclass
class _Held:
    """An event that is not certain yet. continues: the character that it ends in is completed by the next one."""

    event: TextEvent
    continues: bool


def stop_texts(stop: str | Sequence[str]) -> tuple[str, ...]:
    """One text or several at which a stream stops, as a tuple; `UserError` for others."""
    texts = (stop,) if isinstance(stop, str) or not isinstance(stop, Sequence) else tuple(stop)
    if not all(isinstance(text, str) and text for text in texts):
        raise UserError(field="stop", value=texts, accepted="texts that are not empty")
    return texts


class TextEvents:
    """The text of one stream: tokens go in one at a time, events come out when their text is certain.

    has_stopped: a stop text has come. Its tokens give no events; of the token in which it begins, the text before it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        behind: Sequence[int] = (),
        stop: Sequence[str] = (),
        *,
        stream: TextStream | None = None,
        ends: bool = True,
    ) -> None:
        """behind: the tokens before the text, such as its prompt. stop: texts before the first of which it ends.

        stream: continue the text of this decoder instead of a new one. ends: nothing follows the last token, so that
        the bytes of an incomplete character become U+FFFD; otherwise they stay in `stream`.
        """
        self.has_stopped = False
        self._tokenizer, self._stop, self._ends = tokenizer, stop, ends
        self._beginnings = tuple(text[:size] for text in stop for size in range(1, len(text)))
        self._stream = tokenizer.stream(behind) if stream is None else stream
        self._held = deque[_Held]()

    def push(self, event: Event) -> list[TextEvent]:
        """The events that are certain with the next token; none behind a stop text."""
        if self.has_stopped:
            return []
        token, logprob, likeliest = event
        top = tuple([self._choice(*other) for other in likeliest]) if likeliest else ()
        piece, text = self._stream.read(token)
        continues = not self._stream.is_complete
        own = piece.decode("utf-8", "replace") if piece else self._tokenizer.token_name(token)
        event_of_text = TextEvent(text, TokenChoice(token, piece, own, logprob), top)
        if not (continues or self._held or (self._stop and self._may_stop(text))):
            return [event_of_text]
        self._held.append(_Held(event_of_text, continues))
        return self._release()

    def finish(self) -> list[TextEvent]:
        """The events that were held back, at the end of the stream."""
        if self._ends and self._held and (rest := self._stream.finish()):
            last = self._held[-1]
            last.event = last.event._replace(text=last.event.text + rest)
        events = self._release()
        if not self.has_stopped:
            events += [held.event for held in self._held]
        self._held.clear()
        return events

    def _may_stop(self, text: str) -> bool:
        """True if a stop text is in a text, or may begin at its end."""
        return text.endswith(self._beginnings) or any(stop in text for stop in self._stop)

    def _release(self) -> list[TextEvent]:
        """Remove from the held events those that are certain; all, if a stop text is among them."""
        text = "".join(held.event.text for held in self._held)
        found = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:  # the one that is complete first, so that the cut does not depend on where tokens end
            return self._stop_at(min(found)[1])
        begun = [len(beginning) for beginning in self._beginnings if text.endswith(beginning)]
        certain, end, ready, count = len(text) - max(begun, default=0), 0, 0, 0
        for held in self._held:
            end, count = end + len(held.event.text), count + 1
            if end > certain:
                break
            if not held.continues:  # tokens that share a character become certain together
                ready = count
        return [self._held.popleft().event for _ in range(ready)]

    def _stop_at(self, length: int) -> list[TextEvent]:
        """The held events up to this length of their text, which is cut off there."""
        self.has_stopped, events = True, list[TextEvent]()
        while length > 0:
            event = self._held.popleft().event
            events.append(event._replace(text=event.text[:length]))
            length -= len(event.text)
        self._held.clear()
        return events

    def _choice(self, token: int, logprob: float | None) -> TokenChoice:
        """A token at the present place, before it is pushed."""
        piece = self._stream.peek(token)
        text = piece.decode("utf-8", "replace") if piece else self._tokenizer.token_name(token)
        return TokenChoice(token, piece, text, logprob)
