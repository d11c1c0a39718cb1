"""A pass of a sublayer over any chunk: what it cannot take at once is taken apart.

Shapes: `B` batch, `T` tokens of the chunk, `D` width, `N` rows or documents taken together, `L` tokens of the longest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from linnet.layers.batch_layout import AuxiliaryLoss, AuxiliaryOutputs, BatchLayout, Counts, DocumentSegment, to_device
from linnet.layers.contract import Sublayer
from linnet.layers.state import State


def run(sublayer: Sublayer, x_BTD: Tensor, state: State | None, layout: BatchLayout) -> Tensor:
    """`[B, T, D] -> [B, T, D]`, whatever the layout: rows at different positions, padding, several documents in a row.

    With a state: reads it and advances it. A row begins anew at a document; so does its position.
    """
    if layout.documents is not None:
        if sublayer.traits.window == 1:
            layout = replace(layout, documents=None)
        elif state is None:
            return _documents_alone(sublayer, x_BTD, layout)
        else:
            return _rows_by_documents(sublayer, x_BTD, state, layout)
    if sublayer.supports(layout, x_BTD.shape[1], state):
        out_BTD: Tensor = sublayer(x_BTD, state, layout)
        return out_BTD
    return _by_groups(sublayer, x_BTD, state, layout)


@dataclass(frozen=True)
class Places:
    """Places of a chunk `[B, T]` that are read together as rows `[N, L]`, padding before the shorter ones.

    rows_NL, places_NL: where in the chunk each one is read; at padding anywhere. real_M: the flat numbers of those that
    are no padding among `N * L`; chunk_M: the same places among `B * T`. padding: of each row; None for none.
    """

    rows_NL: Tensor
    places_NL: Tensor
    real_M: Tensor
    chunk_M: Tensor
    padding: Counts | None

    @classmethod
    def of(cls, parts: Sequence[DocumentSegment], length: int, device: torch.device) -> "Places":
        """Each part as a row. Everything is computed on the CPU, so that nothing waits for the device."""
        longest = max(part.end - part.begin for part in parts)
        parts_N3 = torch.tensor([(part.row, part.begin, part.end) for part in parts])
        rows_N1, begins_N1, ends_N1 = (parts_N3[:, [column]] for column in range(3))
        places_NL = ends_N1 - longest + torch.arange(longest)
        real_M = (places_NL >= begins_N1).flatten().nonzero().flatten()
        chunk_M = (rows_N1 * length + places_NL).flatten()[real_M]
        padding = tuple(longest - part.end + part.begin for part in parts)
        return cls(
            to_device(rows_N1.expand_as(places_NL).contiguous(), device),
            to_device(places_NL.clamp(min=0), device),
            to_device(real_M, device),
            to_device(chunk_M, device),
            padding if any(padding) else None,
        )


@dataclass
class Piece:
    """Places of a chunk that are read together, and what came of them, `[N, L, D]`."""

    places: Places
    record: AuxiliaryOutputs | None
    out_NLD: Tensor

    @classmethod
    def of(cls, places: Places, x_BTD: Tensor, record: AuxiliaryOutputs | None) -> "Piece":
        """What is to be read, `out_NLD`, with the values that earlier layers left for it."""
        piece = cls(places, None, x_BTD[places.rows_NL, places.places_NL])
        if record is not None:
            values = {name: value[places.rows_NL, places.places_NL] for name, value in record.values.items()}
            piece.record = record.own(values)
            piece.record.begin_layer()
        return piece


def _together(pieces: Sequence[Piece], x_BTD: Tensor, record: AuxiliaryOutputs | None) -> Tensor:
    """What pieces gave, each at its places, `[B, T, D]`; what they left in their records goes into `record`."""
    if record is not None:
        _gather(pieces, x_BTD, record)
    return _placed(pieces, [piece.out_NLD for piece in pieces], x_BTD)


def _placed(pieces: Sequence[Piece], values_NL: Sequence[Tensor], x_BTD: Tensor) -> Tensor:
    batch, length = x_BTD.shape[:2]
    out = values_NL[0].new_zeros(batch * length, *values_NL[0].shape[2:])
    for piece, value_NL in zip(pieces, values_NL, strict=True):
        real = value_NL.flatten(0, 1)[piece.places.real_M].to(out.dtype)
        out = out.index_put((piece.places.chunk_M,), real)
    return out.view(batch, length, *out.shape[1:])


def _gather(pieces: Sequence[Piece], x_BTD: Tensor, record: AuxiliaryOutputs) -> None:
    """Values at their places; of the rows that have them, losses as means, outputs one after another."""
    records = [piece.record for piece in pieces if piece.record is not None]
    for name in records[0].values:
        record.values[name] = _placed(pieces, [each.values[name] for each in records], x_BTD)
    by_name: dict[str, list[tuple[int, AuxiliaryLoss]]] = {}
    for piece, own in zip(pieces, records, strict=True):
        for loss in own.losses:
            by_name.setdefault(loss.name, []).append((len(piece.out_NLD), loss))
    for name, losses in by_name.items():
        mean = torch.stack([rows * loss.value for rows, loss in losses]).sum() / sum(rows for rows, _ in losses)
        record.losses.append(AuxiliaryLoss(name, mean, losses[0][1].coefficient))
    if record.outputs is not None:
        shown = [each.outputs[0] for each in records if each.outputs is not None]
        for name in dict.fromkeys(name for each in shown for name in each):
            record.outputs[-1][name] = torch.cat([each[name] for each in shown if name in each])


def _read(
    sublayer: Sublayer,
    parts: Sequence[DocumentSegment],
    x_BTD: Tensor,
    state: State | None,
    layout: BatchLayout,
    position: int,
) -> Piece:
    """A pass over parts that stand at one position; `state`: of their rows."""
    length, device = x_BTD.shape[1], x_BTD.device
    # The same for all layers of a pass.
    places = layout.remember(("places", tuple(parts), device), lambda: Places.of(parts, length, device))
    piece = Piece.of(places, x_BTD, layout.record)
    own = BatchLayout(position, places.padding, record=piece.record)
    piece.out_NLD = run(sublayer, piece.out_NLD, state, own)
    return piece


def _documents_alone(sublayer: Sublayer, x_BTD: Tensor, layout: BatchLayout) -> Tensor:
    """Every document as a row of its own, those of like lengths together: at most half of such a batch is padding."""
    by_size: dict[int, list[DocumentSegment]] = {}
    for part in layout.parts(*x_BTD.shape[:2]):
        by_size.setdefault((part.end - part.begin).bit_length(), []).append(part)
    pieces = [_read(sublayer, parts, x_BTD, None, layout, 0) for parts in by_size.values()]
    return _together(pieces, x_BTD, layout.record)


def _rows_by_documents(sublayer: Sublayer, x_BTD: Tensor, state: State, layout: BatchLayout) -> Tensor:
    """Row after row, document after document; a document begins with nothing in its row's state."""
    batch, length = x_BTD.shape[:2]
    states = [state.select(torch.tensor([row], device=x_BTD.device)) for row in range(batch)]
    pieces = []
    for part in layout.parts(batch, length):
        if part.fresh:
            states[part.row] = states[part.row].fork()  # what was read of the last document may be needed for gradients
            states[part.row].crop(0)
        pieces.append(_read(sublayer, [part], x_BTD, states[part.row], layout, part.position))
    state.take(states[0].join(states[1:]))
    return _together(pieces, x_BTD, layout.record)


def _by_groups(sublayer: Sublayer, x_BTD: Tensor, state: State | None, layout: BatchLayout) -> Tensor:
    """Rows that stand alike together, one group after the other, padding left out; a row without a token stays."""
    batch, length = x_BTD.shape[:2]
    groups: dict[tuple[int, int], list[DocumentSegment]] = {}
    for part in layout.parts(batch, length):
        groups.setdefault((part.position, part.begin), []).append(part)
    pieces, states, order = [], [], []
    for (position, _), parts in groups.items():
        rows = [part.row for part in parts]
        own = None if state is None else state.select(torch.tensor(rows, device=x_BTD.device))
        if len(rows) > 1 and not sublayer.supports(BatchLayout(position), parts[0].end - parts[0].begin, own):
            assert state is not None, "without a state rows at one position are taken together"
            return _rows_by_documents(sublayer, x_BTD, state, layout)
        pieces.append(_read(sublayer, parts, x_BTD, own, layout, position))
        order += rows
        if own is not None:
            states.append(own)
    if state is not None:
        resting = sorted(set(range(batch)) - set(order))
        if resting:
            states.append(state.select(torch.tensor(resting, device=x_BTD.device)))
        back = torch.tensor(order + resting, device=x_BTD.device).argsort()
        state.take(states[0].join(states[1:]).select(back))
    return _together(pieces, x_BTD, layout.record)


def check_layout(
    batch: int,
    length: int,
    padding: Counts | None,
    documents: Sequence[Sequence[int]] | None,
    prefixes: Sequence[int] | None = None,
) -> None:
    """`ValueError` for padding, documents or prefixes that no chunk `[B, T]` can have."""
    if padding is not None and (len(padding) != batch or not all(0 <= pad <= length for pad in padding)):
        raise ValueError(f"padding: {list(padding)}: expected {batch} numbers from 0 to {length}")
    paddings = padding or (0,) * batch
    if prefixes is not None and (
        len(prefixes) != batch or not all(0 <= p <= length - pad for p, pad in zip(prefixes, paddings, strict=True))
    ):
        raise ValueError(f"prefixes: {list(prefixes)}: expected {batch} numbers of tokens of the chunk, 0 to {length}")
    if documents is None:
        return
    if prefixes is not None and any(documents):
        raise ValueError("documents: a row with a prefix is one document; leave them out")
    if len(documents) != batch or not all(0 <= begin < length for begins in documents for begin in begins):
        raise ValueError(f"documents: expected {batch} lists of places below {length}")
