"""How much the targets of a row count in the loss: by the role that wrote them, per token or per row.

A data folder of conversations has for each token the number of the role that wrote it (`ROLE_NUMBERS`). So weights are
a choice of the run that reads the folder, and not of how it was prepared.

Legend: `T` targets of a row, `R` numbers of roles, `D` rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from linnet.core.errors import UserError
from linnet.data.chat_tokens import ChatTokens
from linnet.data.conversations import ASSISTANT, ROLES, ChatConversation
from linnet.data.shards import Tokens, TokenSequence

ROLE_NUMBERS: Mapping[str, int] = MappingProxyType({role: number for number, role in enumerate(ROLES, 1)})
"""What `TokenSequence.roles` holds for a token of each role; 0: one that no weight makes count."""

Weights = NDArray[np.float32]


def role_numbers(conversation: ChatConversation, found: ChatTokens) -> Tokens:
    """The number of each token's role, `[T]`: of an answer where it is trained on, else of the message that printed it.

    0: what the template prints outside messages or around an answer, tokens across the border of an answer, and the
    first token: it is the target behind the conversation before it.
    """
    numbers = np.zeros(len(found.ids), dtype=np.int64)
    for place, message in enumerate(found.messages):
        role = ASSISTANT if message is None else conversation.messages[message].role
        numbers[place] = 0 if role == ASSISTANT else ROLE_NUMBERS[role]
    numbers[found.torn] = 0
    numbers[found.trained] = ROLE_NUMBERS[ASSISTANT]
    numbers[:1] = 0
    return numbers


@dataclass(frozen=True)
class TargetWeights:
    """The weights of the targets of whole rows.

    roles: by role, 0 where it is missing; None: the loss mask says which targets count, each as much. per_row: the
    weights of a row are divided by their sum, so that each row counts as much as another.
    """

    roles: Mapping[str, float] | None = None
    per_row: bool = False

    def applied(self, sequence: TokenSequence) -> TokenSequence:
        """The rows of a sequence, whose targets count so much.

        `UserError` if the data does not tell roles, or for a row of which no target counts.
        """
        if self.roles is not None and sequence.roles is None:
            raise UserError(
                f"training.targets.roles: {sequence.name} does not tell the roles of its tokens; expected conversations"
                " that `linnet prepare --chat` made, again if an earlier linnet did"
            )
        counted = self._by_token(sequence, 1, len(sequence) - 1) != 0
        counts_D = np.add.reduceat(counted, sequence.document_starts, dtype=np.int64)
        if not counts_D.all():
            row = int(counts_D.argmin()) + 1
            raise UserError(f"{sequence.name}: row {row}: no token of it counts in the loss; expected at least one")
        return sequence.weighted(self._read)

    def _by_token(self, sequence: TokenSequence, start: int, count: int) -> Weights:
        if self.roles is None:
            return sequence.read_mask(start, count).astype(np.float32)
        assert sequence.roles is not None
        weights: Weights = self._by_number_R[sequence.roles.read(start, count)]
        return weights

    @cached_property
    def _by_number_R(self) -> Weights:
        roles = self.roles or {}
        return np.array([0.0, *(roles.get(role, 0.0) for role in ROLE_NUMBERS)], dtype=np.float32)

    def _read(self, sequence: TokenSequence, start: int, count: int) -> Weights:
        """The weights of the `count` targets of a row, the first of which is at place `start`, `[T]`."""
        weights = self._by_token(sequence, start, count)
        return weights / weights.sum(dtype=np.float64).astype(np.float32) if self.per_row else weights
