"""The state of a draft model between two continuations of a session, so that it reads no token twice."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from linnet.inference.speculative import DraftModel, Speculation
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState


@dataclass
class KeptDraft:
    """A draft model, the first tokens of the session that it has read, and its state behind them."""

    decoder: Decoder
    tokens: list[int]
    state: DecoderState

    @classmethod
    def of(cls, speculation: Speculation | None, tokens: Sequence[int]) -> Self | None:
        """What the draft of a continuation that has ended has read of `tokens`; None without a draft or a state."""
        drafts = (one for one in (speculation.proposers if speculation else ()) if isinstance(one, DraftModel))
        draft = next(drafts, None)
        read = None if draft is None else draft.settle(tokens)
        return cls(draft.decoder, list(tokens[:read]), draft.reader.state) if draft is not None and read else None

    def fork(self) -> Self:
        """An independent copy."""
        return type(self)(self.decoder, list(self.tokens), self.state.fork())

    def state_before(self, tokens: Sequence[int]) -> DecoderState | None:
        """The state, which has read a beginning of `tokens` without the last; None if it cannot go back there."""
        most = min(len(self.tokens), len(tokens) - 1)
        same = (index for index in range(most) if self.tokens[index] != tokens[index])
        common = next(same, most)
        length = self.state.position - (len(self.tokens) - common)
        if common == len(self.tokens):
            return self.state
        if common == 0 or not self.state.can_crop(length):
            return None
        self.state.crop(length)
        return self.state
