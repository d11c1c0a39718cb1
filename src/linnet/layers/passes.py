"""A pass of a sublayer over any chunk: what it cannot take at once is taken apart.

Legend: `B` batch, `T` tokens of the chunk, `D` width, `N` documents taken together, `L` tokens of the longest of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.layers.contract import Sublayer
from linnet.layers.state import State
from linnet.layers.view import View, at


def run(sublayer: Sublayer, x_BTD: Tensor, state: State | None, view: View) -> Tensor:
    """`[B, T, D] -> [B, T, D]`, whatever the view: rows at different positions, padding, several documents in a row.

    With a state: reads it and advances it. A row begins anew at a document; so does its position.
    """
    if view.documents is not None:
        if sublayer.traits.window == 1:
            view = replace(view, documents=None)
        else:
            apart = _documents_alone if state is None else _rows_by_documents
            return apart(sublayer, x_BTD, state, view)
    if sublayer.takes(view, x_BTD.shape[1], state):
        out_BTD: Tensor = sublayer(x_BTD, state, view)
        return out_BTD
    return _by_groups(sublayer, x_BTD, state, view)


def _by_groups(sublayer: Sublayer, x_BTD: Tensor, state: State | None, view: View) -> Tensor:
    """Rows that stand alike together, one group after the other, padding left out."""
    batch = len(x_BTD)
    outs, states, order = [], [], []
    for (start, padding), rows in _groups(view, batch).items():
        index = torch.tensor(rows, device=x_BTD.device)
        own = None if state is None else state.select(index)
        out = x_BTD.new_zeros(len(rows), 0, x_BTD.shape[2])
        if padding < x_BTD.shape[1]:
            out = sublayer(x_BTD[index, padding:], own, replace(view, starts=start, padding=None))
        outs.append(F.pad(out, (0, 0, padding, 0)))
        order += rows
        if own is not None:
            states.append(own)
    back = torch.tensor(order, device=x_BTD.device).argsort()
    if state is not None:
        state.take(states[0].join(states[1:]).select(back))
    return torch.cat(outs)[back]


def _groups(view: View, batch: int) -> dict[tuple[int, int], list[int]]:
    """The rows by position and padding."""
    found: dict[tuple[int, int], list[int]] = {}
    for row, key in enumerate(zip(view.starts_of(batch), view.padding_of(batch), strict=True)):
        found.setdefault(key, []).append(row)
    return found


@dataclass(frozen=True)
class DocumentPart:
    """A part of a row's chunk in which no document begins but at its first token, if it is `fresh`."""

    row: int
    begin: int
    end: int
    fresh: bool


def document_parts(view: View, batch: int, length: int) -> Iterator[DocumentPart]:
    """The parts of all rows, in order."""
    documents = view.documents or ((),) * batch
    for row, (begins, padding) in enumerate(zip(documents, view.padding_of(batch), strict=True)):
        bounds = sorted({padding, *(begin for begin in begins if begin > padding), length})
        for begin, end in pairwise(bounds):
            yield DocumentPart(row, begin, end, begin in begins)


def _documents_alone(sublayer: Sublayer, x_BTD: Tensor, _: State | None, view: View) -> Tensor:
    """Every document as a row of its own, those of like lengths together: at most half of such a batch is padding."""
    by_size: dict[int, list[DocumentPart]] = {}
    for segment in document_parts(view, *x_BTD.shape[:2]):
        by_size.setdefault((segment.end - segment.begin).bit_length(), []).append(segment)
    out_BTD = torch.zeros_like(x_BTD)
    for group in by_size.values():
        rows_NL, places_NL, padding = _places(group, x_BTD.device)
        alone_NLD = run(sublayer, x_BTD[rows_NL, places_NL], None, at([0] * len(group), padding, view.record))
        real_NL = torch.arange(rows_NL.shape[1], device=x_BTD.device) >= torch.tensor(padding)[:, None].to(x_BTD.device)
        where = (rows_NL[real_NL], places_NL[real_NL])
        out_BTD = out_BTD.index_put(where, alone_NLD[real_NL].to(out_BTD.dtype))
    return out_BTD


def _places(group: Sequence[DocumentPart], device: torch.device) -> tuple[Tensor, Tensor, list[int]]:
    """Row and place of each token of each segment, int64 `[N, L]`, and the padding before the shorter ones."""
    longest = max(segment.end - segment.begin for segment in group)
    ends_N1 = torch.tensor([segment.end for segment in group], device=device)[:, None]
    rows_N1 = torch.tensor([segment.row for segment in group], device=device)[:, None]
    places_NL = (ends_N1 - longest + torch.arange(longest, device=device)).clamp(min=0)
    padding = [longest - (segment.end - segment.begin) for segment in group]
    return rows_N1.expand_as(places_NL), places_NL, padding


def _rows_by_documents(sublayer: Sublayer, x_BTD: Tensor, state: State | None, view: View) -> Tensor:
    """Row after row, document after document; a document begins with nothing in its row's state."""
    assert state is not None
    batch, length = x_BTD.shape[:2]
    starts = list(view.starts_of(batch))
    rows = [state.select(torch.tensor([row], device=x_BTD.device)) for row in range(batch)]
    outs: list[list[Tensor]] = [[x_BTD.new_zeros(1, padding, x_BTD.shape[2])] for padding in view.padding_of(batch)]
    for segment in document_parts(view, batch, length):
        own = rows[segment.row]
        if segment.fresh:
            own.crop(0)
            starts[segment.row] = 0
        part = x_BTD[segment.row : segment.row + 1, segment.begin : segment.end]
        alone = View(starts[segment.row], record=view.record)
        outs[segment.row].append(sublayer(part, own, alone))
        starts[segment.row] += segment.end - segment.begin
    state.take(rows[0].join(rows[1:]))
    return torch.cat([torch.cat(parts, dim=1) for parts in outs])


def positions_after(view: View, batch: int, length: int) -> tuple[int, ...]:
    """Where each row stands behind a chunk; a document begins at 0."""
    after = list(view.starts_of(batch))
    for segment in document_parts(view, batch, length):
        after[segment.row] = (0 if segment.fresh else after[segment.row]) + segment.end - segment.begin
    return tuple(after)
