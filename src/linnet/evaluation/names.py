"""Names that persist: how often a model names the right one of those whom a text has mentioned.

Legend: `B` documents, `T` tokens.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.folder import TOKENS_AT_ONCE, ModelOnData
from linnet.evaluation.frozen import frozen_state
from linnet.model.state import rows_of


@dataclass(frozen=True)
class NamesKept:
    """`right` of so many `mentions` of somebody who was mentioned before: the right name was the likeliest token."""

    right: int
    mentions: int

    @property
    def share(self) -> float | None:
        """How often the name was right; None where nobody is mentioned twice."""
        return self.right / self.mentions if self.mentions else None


@torch.no_grad()
def names_kept(model: ModelOnData, names: Sequence[str], documents: int = 300) -> NamesKept:
    """Measure the first `documents` of the split, each up to the context length.

    Of a name that has several tokens the first counts. A model that is not causal by itself is settled as for its bits
    per byte.
    """
    asked = [(tokens, again) for tokens, again in _asked(model, names, documents) if len(again)]
    right, batch = 0, max(1, TOKENS_AT_ONCE // model.context_length)
    for start in range(0, len(asked), batch):
        right += _right(model, asked[start : start + batch])
    return NamesKept(right, sum(len(again) for _, again in asked))


def _asked(
    model: ModelOnData, names: Sequence[str], documents: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The tokens of each document, and which of them begin the name of somebody who was mentioned before."""
    sequence, tokenizer = model.sequence, model.data.tokenizer
    ends = sequence.document_bounds[:documents]
    for start, end in zip([0, *(ends[:-1] + 1)], ends, strict=True):
        tokens = sequence.read(int(start), min(int(end - start), model.context_length + 1))
        yield tokens, _mentioned_again(tokens, names, tokenizer)


def _mentioned_again(tokens: NDArray[np.int64], names: Sequence[str], tokenizer: Tokenizer) -> NDArray[np.int64]:
    text, ends = tokenizer.decode(tokens.tolist()), np.cumsum(tokenizer.token_bytes()[tokens])
    known, starts = set[str](), list[int]()
    for found in re.finditer(rf"\b({'|'.join(map(re.escape, names))})\b", text):
        if found[0] in known:
            starts.append(len(text[: found.start()].encode()))
        known.add(found[0])
    again = np.searchsorted(ends, starts, side="right")
    return again[(again > 0) & (again < len(tokens))]


def _right(model: ModelOnData, asked: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> int:
    """Of how many mentions the first token is the likeliest."""
    decoder, length = model.decoder, max(len(tokens) for tokens, _ in asked)
    tokens_BT = torch.full((len(asked), length), model.data.tokenizer.end_id)
    for row, (tokens, _) in enumerate(asked):
        tokens_BT[row, : len(tokens)] = torch.from_numpy(tokens)
    inputs_BT = tokens_BT[:, :-1].to(decoder.device)
    state = None
    if not decoder.causal:
        state = rows_of(frozen_state(decoder, model.calibration(), 1, length), len(asked))
    likeliest_BT = decoder(inputs_BT, state).argmax(dim=-1).cpu()
    return sum(
        int((likeliest_BT[row, again - 1] == tokens_BT[row, again]).sum()) for row, (_, again) in enumerate(asked)
    )
