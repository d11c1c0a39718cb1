"""Run a sublayer over any chunk: chunks that it does not support at once are split.

Shapes: `B` batch, `T` tokens of the chunk, `D` width, `N` segments that are read together, `L` tokens of the longest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from linnet.layers.batch_layout import AuxiliaryLoss, AuxiliaryOutputs, BatchLayout, Counts, DocumentSegment, to_device
from linnet.layers.contract import Sublayer
from linnet.layers.state import State

CALL_TOKENS, CALL_TOKENS_DEVICE = 128, 2048
"""What a call of a layer costs besides its tokens, in tokens; on a GPU, where many tokens keep it busy, more."""


def run(sublayer: Sublayer, x_BTD: Tensor, state: State | None, layout: BatchLayout) -> Tensor:
    """`[B, T, D] -> [B, T, D]` for any layout: rows at different positions, padding, several documents in a row.

    A state is read and advanced, and holds no graph afterwards; at a document the state of its row, and its position,
    start from the beginning.
    """
    with_graph = state is not None and torch.is_grad_enabled()
    if state is not None and with_graph:
        state.take(state.fork())  # the graph of the chunk before may need its tensors as they are
    if layout.documents is not None:
        if sublayer.traits.window == 1:
            layout = replace(layout, documents=None)
        elif state is None:
            return _run_documents(sublayer, x_BTD, layout)
        else:
            return _run_rows(sublayer, x_BTD, state, layout)
    if layout.in_graph or sublayer.supports(layout, x_BTD.shape[1], state):
        out_BTD: Tensor = sublayer(x_BTD, state, layout)
        if state is not None and with_graph:
            state.take(state.with_tensors({name: tensor.detach() for name, tensor in state.tensors().items()}))
        return out_BTD
    return _run_groups(sublayer, x_BTD, state, layout)


@dataclass(frozen=True)
class SegmentIndices:
    """Where the segments of a chunk `[B, T]` are, to read them as rows `[N, L]` with padding before the shorter ones.

    Or behind them, where no layer that reads them sees it (`padding` is None then, too).

    rows_NL, places_NL: the row and the place in the chunk that is read; at padding any place. real_M: the flat indices
    in `[N, L]` of tokens that are not padding; chunk_M: the flat indices of the same tokens in `[B, T]`. padding: of
    each row; None for none.
    """

    rows_NL: Tensor
    places_NL: Tensor
    real_M: Tensor
    chunk_M: Tensor
    padding: Counts | None

    @classmethod
    def of(
        cls, parts: Sequence[DocumentSegment], length: int, device: torch.device, pads_end: bool = False
    ) -> "SegmentIndices":
        """Each segment as a row. Everything is computed on the CPU, so that nothing waits for the device."""
        longest = max(part.end - part.begin for part in parts)
        parts_N3 = torch.tensor([(part.row, part.begin, part.end) for part in parts])
        rows_N1, begins_N1, ends_N1 = (parts_N3[:, [column]] for column in range(3))
        places_NL = (begins_N1 if pads_end else ends_N1 - longest) + torch.arange(longest)
        real_M = ((places_NL >= begins_N1) & (places_NL < ends_N1)).flatten().nonzero().flatten()
        chunk_M = (rows_N1 * length + places_NL).flatten()[real_M]
        padding = tuple(longest - part.end + part.begin for part in parts)
        return cls(
            to_device(rows_N1.expand_as(places_NL).contiguous(), device),
            to_device(places_NL.clamp(min=0, max=length - 1), device),
            to_device(real_M, device),
            to_device(chunk_M, device),
            padding if any(padding) and not pads_end else None,
        )


@dataclass(frozen=True)
class SegmentOutput:
    """The output `[N, L, D]` of a pass over segments, with the auxiliary outputs of the pass."""

    indices: SegmentIndices
    out_NLD: Tensor
    record: AuxiliaryOutputs | None


def _run_segments(
    sublayer: Sublayer,
    parts: Sequence[DocumentSegment],
    x_BTD: Tensor,
    state: State | None,
    layout: BatchLayout,
    position: int,
    pads_end: bool = False,
) -> SegmentOutput:
    """Run segments that begin at the same position; `state`: the state of their rows. pads_end: padding comes last."""
    length, device = x_BTD.shape[1], x_BTD.device
    # The same for all layers of a pass.
    key = tuple(parts), device, pads_end
    indices = layout.remember(("places", *key), lambda: SegmentIndices.of(parts, length, device, pads_end))
    record = None
    if layout.record is not None:
        values = {name: x[indices.rows_NL, indices.places_NL] for name, x in layout.record.values.items()}
        record = layout.record.own(values)
        if record.outputs is not None:
            record.outputs.append({})
    x_NLD, tokens_NL = x_BTD[indices.rows_NL, indices.places_NL], layout.tokens_BT
    if tokens_NL is not None:
        tokens_BT = tokens_NL
        tokens_NL = layout.remember(("tokens", *key), lambda: tokens_BT[indices.rows_NL, indices.places_NL])
    out_NLD = run(sublayer, x_NLD, state, BatchLayout(position, indices.padding, record=record, tokens_BT=tokens_NL))
    return SegmentOutput(indices, out_NLD, record)


def _merge(pieces: Sequence[SegmentOutput], x_BTD: Tensor, record: AuxiliaryOutputs | None) -> Tensor:
    """The outputs of segments at their places in the chunk, `[B, T, D]`, and the same for their auxiliary outputs.

    Losses become means over the rows of the segments that add them; outputs are concatenated.
    """
    batch, length = x_BTD.shape[:2]

    def placed(values_NL: Sequence[Tensor]) -> Tensor:
        out = values_NL[0].new_zeros(batch * length, *values_NL[0].shape[2:])
        for piece, value_NL in zip(pieces, values_NL, strict=True):
            real = value_NL.flatten(0, 1)[piece.indices.real_M].to(out.dtype)
            out = out.index_put((piece.indices.chunk_M,), real)
        return out.view(batch, length, *out.shape[1:])

    if record is not None:
        records = [piece.record for piece in pieces if piece.record is not None]
        for name in records[0].values:
            record.values[name] = placed([each.values[name] for each in records])
        losses: dict[str, list[tuple[int, AuxiliaryLoss]]] = {}
        for piece, own in zip(pieces, records, strict=True):
            for loss in own.losses:
                losses.setdefault(loss.name, []).append((len(piece.out_NLD), loss))
        for name, terms in losses.items():
            mean = torch.stack([rows * loss.value for rows, loss in terms]).sum() / sum(rows for rows, _ in terms)
            record.losses.append(AuxiliaryLoss(name, mean, terms[0][1].coefficient))
        if record.outputs is not None:
            outputs = [each.outputs[0] for each in records if each.outputs is not None]
            for name in dict.fromkeys(name for each in outputs for name in each):
                record.outputs[-1][name] = torch.cat([each[name] for each in outputs if name in each])
    return placed([piece.out_NLD for piece in pieces])


def _run_documents(sublayer: Sublayer, x_BTD: Tensor, layout: BatchLayout) -> Tensor:
    """Run every document as a row of its own, similar lengths together.

    No token of a causal layer sees the padding behind its document, which so needs no mask; but it would show in
    auxiliary outputs and losses. A layer that turns out to add a loss is run again without any padding.
    """
    watched = layout.record is not None and (layout.record.outputs is not None or layout.record.requested_penalties)
    pads_end = sublayer.traits.causal and not watched
    shape, call_tokens = x_BTD.shape[:2], CALL_TOKENS if x_BTD.device.type == "cpu" else CALL_TOKENS_DEVICE
    groups = layout.remember(("groups", *shape), lambda: similar_lengths(list(layout.parts(*shape)), call_tokens))
    pieces = [_run_segments(sublayer, parts, x_BTD, None, layout, 0, pads_end) for parts in groups]
    if pads_end and any(piece.record is not None and piece.record.losses for piece in pieces):
        alike = layout.remember(("alike", *shape), lambda: similar_lengths(list(layout.parts(*shape)), 0))
        pieces = [_run_segments(sublayer, parts, x_BTD, None, layout, 0) for parts in alike]
    return _merge(pieces, x_BTD, layout.record)


def similar_lengths(parts: Sequence[DocumentSegment], call_tokens: int) -> list[list[DocumentSegment]]:
    """Groups of segments that are padded to the longest of each, so that all cost least together.

    A group costs its tokens, padding included, and `call_tokens` more. Segments of consecutive lengths are together, so
    the best groups of all follow from those of the shorter ones.
    """
    by_length: dict[int, list[DocumentSegment]] = {}
    for part in sorted(parts, key=lambda part: part.end - part.begin):
        by_length.setdefault(part.end - part.begin, []).append(part)
    lengths, costs, firsts = list(by_length), np.zeros(len(by_length) + 1), list[int]()
    before = np.cumsum([0, *(len(alike) for alike in by_length.values())])
    for number, length in enumerate(lengths, 1):
        of_first = costs[:number] + (before[number] - before[:number]) * length + call_tokens
        firsts.append(int(of_first.argmin()))
        costs[number] = of_first[firsts[-1]]
    groups, end = list[list[DocumentSegment]](), len(lengths)
    while end:
        begin = firsts[end - 1]
        groups.append([part for length in lengths[begin:end] for part in by_length[length]])
        end = begin
    return groups


def _run_rows(sublayer: Sublayer, x_BTD: Tensor, state: State, layout: BatchLayout) -> Tensor:
    """Run each row separately, document by document; at a new document the state of the row is emptied."""
    batch, length = x_BTD.shape[:2]
    states = [state.select(torch.tensor([row], device=x_BTD.device)) for row in range(batch)]
    pieces = []
    for part in layout.parts(batch, length):
        if part.fresh:
            states[part.row] = states[part.row].fork()  # gradients may need the state of the last document
            states[part.row].crop(0)
        pieces.append(_run_segments(sublayer, [part], x_BTD, states[part.row], layout, part.position))
    state.take(states[0].join(states[1:]))
    return _merge(pieces, x_BTD, layout.record)


def _run_groups(sublayer: Sublayer, x_BTD: Tensor, state: State | None, layout: BatchLayout) -> Tensor:
    """Run rows at the same position together, one group after the other, without padding.

    The state of a row without tokens does not change.
    """
    batch, length = x_BTD.shape[:2]
    groups: dict[tuple[int, int], list[DocumentSegment]] = {}
    for part in layout.parts(batch, length):
        groups.setdefault((part.position, part.begin), []).append(part)
    pieces, states, order = [], [], []
    for (position, _), parts in groups.items():
        rows = [part.row for part in parts]
        own = None if state is None else state.select(torch.tensor(rows, device=x_BTD.device))
        if len(rows) > 1 and not sublayer.supports(BatchLayout(position), parts[0].end - parts[0].begin, own):
            assert state is not None, "without a state, a sublayer supports rows at one position"
            return _run_rows(sublayer, x_BTD, state, layout)
        pieces.append(_run_segments(sublayer, parts, x_BTD, own, layout, position))
        order += rows
        if own is not None:
            states.append(own)
    if state is not None:
        resting = sorted(set(range(batch)) - set(order))
        if resting:
            states.append(state.select(torch.tensor(resting, device=x_BTD.device)))
        back = torch.tensor(order + resting, device=x_BTD.device).argsort()
        state.take(states[0].join(states[1:]).select(back))
    return _merge(pieces, x_BTD, layout.record)


def check_layout(
    batch: int,
    length: int,
    padding: Counts | None,
    documents: Sequence[Sequence[int]] | None,
    prefixes: Sequence[int] | None = None,
) -> None:
    """`ValueError` for padding, documents or prefixes that do not fit a chunk `[B, T]`."""
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
