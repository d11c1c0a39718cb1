"""Name recall: how often a model predicts the right name of a person whom the text has mentioned before.

Shapes: `B` documents, `T` tokens.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.models import TOKENS_AT_ONCE, ModelOnData, frozen_state
from linnet.model.state import rows_of


@dataclass(frozen=True)
class NameRecall:
    """Repeated mentions of names, and how many of them have the right name as the likeliest token."""

    right: int
    mentions: int

    @property
    def share(self) -> float | None:
        """Share of right names; None if no name is mentioned twice."""
        return self.right / self.mentions if self.mentions else None


@torch.no_grad()
def measure_name_recall(model: ModelOnData, names: Sequence[str], documents: int = 300) -> NameRecall:
    """Measure the first `documents` of the split, each up to the context length.

    For a name of several tokens, the first one counts. A model that is not causal by itself is calibrated as for its
    bits per byte.
    """
    decoder, sequence, tokenizer = model.decoder, model.sequence, model.data.tokenizer
    ends = sequence.document_bounds[:documents]
    asked: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for start, end in zip([0, *(ends[:-1] + 1)], ends, strict=True):
        tokens = sequence.read(int(start), min(int(end - start), model.context_length + 1))
        repeated = repeated_mentions(tokens, names, tokenizer)
        if len(repeated):
            asked.append((tokens, repeated))

    right, batch_size = 0, max(1, TOKENS_AT_ONCE // model.context_length)
    for first in range(0, len(asked), batch_size):
        batch = asked[first : first + batch_size]
        length = max(len(tokens) for tokens, _ in batch)
        tokens_BT = torch.full((len(batch), length), tokenizer.end_id)
        for row, (tokens, _) in enumerate(batch):
            tokens_BT[row, : len(tokens)] = torch.from_numpy(tokens)
        state = None
        if not decoder.causal:
            state = rows_of(frozen_state(decoder, model.calibration(), 1, length), len(batch))
        likeliest_BT = decoder(tokens_BT[:, :-1].to(decoder.device), state).argmax(dim=-1).cpu()
        for row, (_, repeated) in enumerate(batch):
            right += int((likeliest_BT[row, repeated - 1] == tokens_BT[row, repeated]).sum())
    return NameRecall(right, sum(len(repeated) for _, repeated in asked))


def repeated_mentions(tokens: NDArray[np.int64], names: Sequence[str], tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Indices of the tokens that begin a name that was mentioned before."""
    text, reader = tokenizer.decode(tokens.tolist()), tokenizer.byte_reader()
    ends = np.cumsum([len(reader.bytes_of(token)) for token in tokens.tolist()])
    known, starts = set[str](), list[int]()
    for found in re.finditer(rf"\b({'|'.join(map(re.escape, names))})\b", text):
        if found[0] in known:
            starts.append(len(text[: found.start()].encode()))
        known.add(found[0])
    repeated = np.searchsorted(ends, starts, side="right")
    return repeated[(repeated > 0) & (repeated < len(tokens))]
