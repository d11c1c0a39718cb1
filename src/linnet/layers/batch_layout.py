"""The layout of one pass over a batch: positions, padding, documents, prefixes, and auxiliary losses and outputs.

Shapes: `B` batch, `T` tokens of the chunk.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor

Counts = tuple[int, ...]

EXPERTS_USED = "experts used"
"""The auxiliary output with the number of tokens of each row that each expert of a layer gets, int64 `[B, E]`."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class AuxiliaryLoss:
    """A term of the objective: `coefficient` times the mean of `value` over the sublayers that add it.

    value: a scalar with its graph, a mean over the batch; logged under `name` without the coefficient. A value that is
        only logged has the coefficient 0.
    """

    name: str
    value: Tensor
    coefficient: float


@dataclass
class AuxiliaryOutputs:
    """Losses, auxiliary outputs and values for later layers that sublayers add during one pass.

    training: whether this is a training pass, in which sublayers add their auxiliary losses.
    requested_penalties: the penalties to add, by name, with their coefficients.
    outputs: the auxiliary outputs by name, for each layer in the order of the pass; None if they are not collected.
    values: tensors for later layers, by name.
    """

    requested_penalties: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    outputs: list[dict[str, Tensor]] | None = None
    losses: list[AuxiliaryLoss] = field(default_factory=list)
    values: dict[str, Tensor] = field(default_factory=dict)
    training: bool = False

    def own(self, values: Mapping[str, Tensor]) -> "AuxiliaryOutputs":
        """A record for a part of the pass: the same requests, and only these values."""
        outputs: list[dict[str, Tensor]] | None = None if self.outputs is None else []
        return AuxiliaryOutputs(self.requested_penalties, outputs, values=dict(values), training=self.training)


@dataclass(frozen=True)
class DocumentSegment:
    """The part of a row's chunk in one document, from `begin` to before `end`.

    fresh: whether the document begins at its first token. position: the position of its first token.
    """

    row: int
    begin: int
    end: int
    fresh: bool
    position: int


@dataclass(frozen=True)
class Memory:
    """The output of an encoder for each row's input, `[B, S, E]`, and a mask `[B, S]`, False at padding (None: none).

    `S`: tokens of the longest input, `E`: the encoder's width.
    """

    hidden_BSE: Tensor
    real_BS: Tensor | None = None


@dataclass(frozen=True)
class BatchLayout:
    """The layout of a pass over a chunk `[B, T]`. The decoder makes it; it alone advances positions.

    starts: the position of each row's first token that is not padding; one number if it is the same in all rows.
    padding: the number of padding tokens at the start of each row of the chunk; None for none.
    documents: for each row, the places in the chunk where a new document begins, ascending.
    prefixes: the number of first tokens of each row, without padding, that see all of one another; None for none.
    memory: the encoder's output for each row; None without an encoder, or if a state holds it already.
    record: collects losses and outputs; None if they are not needed.
    tokens_BT: the token ids of the chunk, int64 `[B, T]`, for layers that look them up (`token_ids`).
    """

    starts: int | Counts = 0
    padding: Counts | None = None
    documents: tuple[Counts, ...] | None = None
    prefixes: Counts | None = None
    memory: Memory | None = None
    record: AuxiliaryOutputs | None = None
    tokens_BT: Tensor | None = field(default=None, compare=False, repr=False)

    @cached_property
    def uniform(self) -> bool:
        """True if all rows are at the same position and there is no padding."""
        return isinstance(self.starts, int) and self.padding is None

    @property
    def in_graph(self) -> bool:
        """True in a captured graph: rows at positions that are a tensor (`positions`, `offsets_B`), without padding."""
        return False

    @property
    def functional(self) -> bool:
        """True in a graph that may not write states in place, so that it returns new tensors (ONNX)."""
        return False

    @property
    def start(self) -> int:
        """The position at which all rows begin."""
        assert isinstance(self.starts, int), "rows are at different positions"
        return self.starts

    def starts_of(self, batch: int) -> Counts:
        """The position at which each row begins."""
        return (self.starts,) * batch if isinstance(self.starts, int) else self.starts

    def padding_of(self, batch: int) -> Counts:
        """The padding of each row."""
        return self.padding or (0,) * batch

    def padding_B(self, device: torch.device) -> Tensor | None:
        """The padding as a tensor, int64 `[B]`; None for none."""
        return None if self.padding is None else torch.tensor(self.padding, device=device)

    def parts(self, batch: int, length: int) -> Iterator[DocumentSegment]:
        """The document segments of all rows of a chunk, row by row, without padding."""
        documents = self.documents or ((),) * batch
        rows = zip(documents, self.padding_of(batch), self.starts_of(batch), strict=True)
        for row, (begins, padding, start) in enumerate(rows):
            bounds = sorted({padding, *(begin for begin in begins if begin > padding), length})
            for begin, end in pairwise(bounds):
                fresh = begin > padding or any(place <= padding for place in begins)
                yield DocumentSegment(row, begin, end, fresh, 0 if fresh else start)

    def positions_after(self, batch: int, length: int) -> Counts:
        """The position of each row after a chunk; a document begins at 0."""
        if self.padding is None and self.documents is None:
            return tuple(start + length for start in self.starts_of(batch))
        after = list(self.starts_of(batch))
        for part in self.parts(batch, length):
            after[part.row] = part.position + part.end - part.begin
        return tuple(after)

    def end(self, length: int) -> int:
        """The largest position after the last token of a row or document, those without a token here among them."""
        starts = (self.starts,) if isinstance(self.starts, int) else self.starts
        if self.padding is None and self.documents is None:
            return max(starts) + length

        def largest() -> int:
            batch = max(len(rows) for rows in (self.documents or (), self.padding or (), starts))
            ends, resting = list[int](), dict(enumerate(self.starts_of(batch)))
            for part in self.parts(batch, length):
                ends.append(part.position + part.end - part.begin)
                resting.pop(part.row, None)
            return max([*ends, *resting.values()])

        return self.remember(("end", length), largest)

    def remember(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the result of `make`, computed once for all layers of the pass."""
        if key not in self._memory:
            self._memory[key] = make()
        value: Value = self._memory[key]
        return value

    @cached_property
    def _memory(self) -> dict[Hashable, Any]:
        return {}

    def offsets_B(self, device: torch.device) -> Tensor:
        """The position of each row's first place in the chunk, padding included; int64 `[B]`, or `[1]` if equal."""
        starts = (self.starts,) if isinstance(self.starts, int) else self.starts
        batch = max(len(starts), len(self.padding or ()))
        pairs = zip(self.starts_of(batch), self.padding_of(batch), strict=True)
        return self.remember(("offsets", device), lambda: torch.tensor([a - b for a, b in pairs], device=device))

    def positions(self, length: int, device: torch.device) -> Tensor:
        """The positions of a chunk's tokens: `[T]` if rows agree, else `[B, T]`; of padding, any earlier position."""
        documents = self.documents
        if documents is None and self.uniform:
            return torch.arange(self.start, self.start + length, device=device)

        def positions_BT() -> Tensor:
            if documents is None:
                index_T = torch.arange(length, device=device)
                return (index_T + self.offsets_B(device)[:, None]).clamp(min=0)
            # Computed on the CPU and copied once per pass, so that no row waits for the device.
            batch = len(documents)
            rows_N, begins_N, ends_N, positions_N = torch.tensor(
                [(part.row, part.begin, part.end, part.position) for part in self.parts(batch, length)]
            ).unbind(1)
            lengths_N = ends_N - begins_N
            within = torch.arange(int(lengths_N.sum())) - (lengths_N.cumsum(0) - lengths_N).repeat_interleave(lengths_N)
            places = (rows_N * length + begins_N).repeat_interleave(lengths_N) + within
            positions = torch.zeros(batch * length, dtype=torch.int64)
            positions[places] = positions_N.repeat_interleave(lengths_N) + within
            return to_device(positions.view(batch, length), device)

        return self.remember(("positions", length, device), positions_BT)

    def real(self, length: int, device: torch.device) -> Tensor | None:
        """`[B, T]` bool, False at padding; None without padding."""
        padding_B = self.padding_B(device)
        return None if padding_B is None else torch.arange(length, device=device) >= padding_B[:, None]

    def whole(self, length: int) -> bool:
        """True if each row of a chunk, without padding, is one prefix."""
        if self.prefixes is None:
            return False
        paddings = self.padding_of(len(self.prefixes))
        return all(prefix == length - pad for prefix, pad in zip(self.prefixes, paddings, strict=True))

    def last_in_prefix(self, length: int, device: torch.device) -> Tensor | None:
        """The place in the chunk of the last token that each token sees, int64 `[B, T]`; None if no row has a prefix.

        That is its own place, or for a token of a prefix the place of the prefix's last token.
        """
        if self.prefixes is None:
            return None
        paddings = self.padding_of(len(self.prefixes))
        ends = [prefix + padding for prefix, padding in zip(self.prefixes, paddings, strict=True)]
        places_T = torch.arange(length, device=device)
        return self.remember(
            ("prefix", length, device),
            lambda: torch.maximum(places_T, torch.tensor(ends, device=device)[:, None] - 1),
        )

    def token_ids(self, x_BTD: Tensor) -> Tensor:
        """The token ids of a chunk, int64 `[B, T]`; any at padding, and 0 for a sublayer outside a model."""
        if self.tokens_BT is None:
            return torch.zeros(x_BTD.shape[:2], dtype=torch.int64, device=x_BTD.device)
        return self.tokens_BT

    def save_cross_layer_value(self, name: str, value: Tensor) -> None:
        """Save a value for later layers, `[B, T, ...]`; `layers.passes` splits and joins it with the batch."""
        if self.record is not None:
            self.record.values[name] = value

    def cross_layer_value(self, name: str) -> Tensor | None:
        """The value that an earlier layer saved; None if none did."""
        return None if self.record is None else self.record.values.get(name)

    @property
    def collects_outputs(self) -> bool:
        """True if auxiliary outputs are collected."""
        return self.record is not None and self.record.outputs is not None

    def add_output(self, name: str, value: Tensor) -> None:
        """Add an auxiliary output of the current layer."""
        if self.record is not None and self.record.outputs is not None:
            self.record.outputs[-1][name] = value

    @property
    def training(self) -> bool:
        """True if this is a training pass."""
        return self.record is not None and self.record.training

    def requested_penalties(self, penalty: str) -> Mapping[str, float]:
        """The coefficients of a requested penalty; empty if it is not requested."""
        return {} if self.record is None else self.record.requested_penalties.get(penalty, {})

    def add_loss(self, name: str, value: Tensor, coefficient: float) -> None:
        """Add a term to the objective (`AuxiliaryLoss`)."""
        if self.record is not None:
            self.record.losses.append(AuxiliaryLoss(name, value, coefficient))


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to a device; a copy to a GPU is asynchronous."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def layout_at(
    starts: Sequence[int], padding: Sequence[int] | None = None, record: AuxiliaryOutputs | None = None
) -> BatchLayout:
    """The layout of rows at the positions `starts`; uniform if they are equal and there is no padding."""
    equal = len(set(starts)) == 1
    padded = tuple(padding) if padding is not None and any(padding) else None
    return BatchLayout(starts[0] if equal else tuple(starts), padded, record=record)
