"""The decode state of a whole decoder: its sublayers' states and the position of each row."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from linnet.layers.batch_layout import Counts
from linnet.layers.cross_attention import MemoryState
from linnet.layers.state import NoState, State


class LayerStates(NamedTuple):
    """The states of one layer's sublayers; None for a pass without states."""

    mixer: State | None = None
    feed_forward: State | None = None
    cross_attention: State | None = None


@dataclass
class DecoderState:
    """The decode state of a batch of streams. It belongs to the caller; only the decoder advances `positions`.

    layers, feed_forwards: the state of each layer's mixer and feed-forward, in order. cross_attentions: the state of
    each layer's cross-attention, with the keys and values of the encoder's output. positions: the number of tokens of
    each row so far, or of its current document if rows have several. capacity: the number of tokens that fit in a row.
    """

    layers: tuple[State, ...]
    feed_forwards: tuple[State, ...]
    cross_attentions: tuple[State, ...]
    capacity: int
    positions: Counts

    @classmethod
    def from_layers(cls, layers: Sequence[LayerStates], capacity: int, positions: Counts) -> "DecoderState":
        """From the states of each layer."""
        mixers, feed_forwards, cross_attentions = (
            tuple(NoState() if state is None else state for state in states) for states in zip(*layers, strict=True)
        )
        return cls(mixers, feed_forwards, cross_attentions, capacity, positions)

    def by_layer(self) -> list[LayerStates]:
        """The states of each layer."""
        parts = zip(self.layers, self.feed_forwards, self.cross_attentions, strict=True)
        return [LayerStates(*states) for states in parts]

    @property
    def sublayers(self) -> tuple[State, ...]:
        """The states of all sublayers: mixers, then feed-forwards, then cross-attentions."""
        return self.layers + self.feed_forwards + self.cross_attentions

    @property
    def position(self) -> int:
        """The number of tokens of the longest row."""
        return max(self.positions)

    @property
    def form(self) -> list[tuple[object, ...]]:
        """What two states must have in common to be joined: everything but the sizes and values of tensors."""
        return [
            (
                type(part),
                {name: tensor.dtype for name, tensor in part.tensors().items()},
                {name: value for name, value in vars(part).items() if not isinstance(value, Tensor | None)},
            )
            for part in self.sublayers
        ]

    @property
    def has_memory(self) -> bool:
        """True if the output of an encoder has been read."""
        return all(state.real.shape[1] > 0 for state in self.cross_attentions if isinstance(state, MemoryState))

    @property
    def nbytes(self) -> int:
        """Bytes of all states, as allocated."""
        return sum(state.nbytes for state in self.sublayers)

    def held_nbytes(self, tokens: int) -> int:
        """Bytes that `tokens` tokens of one row take, without unused capacity."""
        return sum(state.held_nbytes(tokens) for state in self.sublayers)

    def fork(self) -> "DecoderState":
        """An independent copy."""
        return self._map(lambda state: state.fork(), self.capacity, self.positions)

    def forget(self) -> "DecoderState":
        """A copy that has seen no token, but keeps what was calibrated on the prompt."""
        return self._map(lambda state: state.forget(), self.capacity, (0,) * len(self.positions))

    def select(self, rows: Tensor | Sequence[int]) -> "DecoderState":
        """A copy with the given rows of the batch (int64 `[B']`; a row may repeat)."""
        numbers = rows.tolist() if isinstance(rows, Tensor) else rows
        index = rows if isinstance(rows, Tensor) else torch.tensor(rows)
        return self._map(lambda state: state.select(index), self.capacity, tuple(self.positions[n] for n in numbers))

    def take_rows(self, rows: Sequence[int]) -> "DecoderState":
        """A state with the given rows in the memory of this one, which is not used any more: few rows are copied.

        Each row stands at its own place, or is moved from behind the others (`rows_to_take`).
        """
        count = len(rows)
        moved = [(place, row) for place, row in enumerate(rows) if place != row]
        assert all(row >= count for _, row in moved), "a row may only move from behind the others"
        self.copy_rows(moved)
        positions = self.positions[:count]
        return self._map(
            lambda part: part.with_tensors({name: tensor[:count] for name, tensor in part.tensors().items()}),
            self.capacity,
            positions,
        )

    def copy_rows(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Let the first row of each pair become a copy of the second one, in place and in order."""
        if not pairs:
            return
        for tensor in (tensor for part in self.sublayers for tensor in part.tensors().values()):
            for place, row in pairs:
                tensor[place] = tensor[row]
        positions = list(self.positions)
        for place, row in pairs:
            positions[place] = positions[row]
        self.positions = tuple(positions)

    def grown(self, capacity: int) -> "DecoderState":
        """A copy with a larger capacity, in tokens."""
        return self._map(lambda state: state.grown(capacity), capacity, self.positions)

    def join(self, *others: "DecoderState") -> "DecoderState":
        """A copy with the streams of the others after its own, with the largest capacity."""
        first, *rest = (replace(state) for state in (self, *others))
        return first.absorb(*rest)

    def absorb_nbytes(self, *others: "DecoderState", frees: bool = True) -> int:
        """Bytes that `absorb` allocates at most beside those of the states themselves.

        frees: the memory of a state is free when the state is; it is not where recorded steps keep it as their buffers.
        """
        most = grown = 0
        for first, *rest in zip(self.sublayers, *(state.sublayers for state in others), strict=True):
            joined = first.join_nbytes(rest)
            most = max(most, grown + 2 * joined)  # a layer may make copies first, which have as many places
            grown += joined - frees * sum(state.nbytes for state in (first, *rest))
        return most

    def absorb(self, *others: "DecoderState") -> "DecoderState":
        """`join` without a second copy of everything: what is joined is freed sublayer by sublayer.

        None of the states may be used afterwards, also after an error; they are left empty.
        """
        together, layers = (self, *others), len(self.layers)
        parts = [list(state.sublayers) for state in together]
        for state in together:
            state.layers = state.feed_forwards = state.cross_attentions = ()
        joined = list[State]()
        for number in range(len(parts[0])):
            first, *rest = (sublayers[number] for sublayers in parts)
            for sublayers in parts:
                sublayers[number] = NoState()
            joined.append(first.join(rest))
        positions = tuple(position for state in together for position in state.positions)
        capacity = max(state.capacity for state in together)
        return DecoderState(
            tuple(joined[:layers]), tuple(joined[layers:-layers]), tuple(joined[-layers:]), capacity, positions
        )

    def _map(self, change: Callable[[State], State], capacity: int, positions: Counts) -> "DecoderState":
        return self._replace(map(change, self.sublayers), capacity, positions)

    def _replace(self, states: Iterable[State], capacity: int, positions: Counts) -> "DecoderState":
        """A state of the same layers with other states, in the order of `sublayers`."""
        states, layers = tuple(states), len(self.layers)
        return DecoderState(states[:layers], states[layers:-layers], states[-layers:], capacity, positions)

    @property
    def is_croppable(self) -> bool:
        """True if it can return to any of its earlier lengths."""
        return all(state.can_crop(1) for state in self.sublayers)

    def can_crop(self, length: int) -> bool:
        """True if `crop` can shorten every row to its first `length` tokens."""
        return 0 <= length <= min(self.positions) and all(state.can_crop(length) for state in self.sublayers)

    def crop(self, length: int) -> None:
        """Shorten every row to its first `length` tokens; `ValueError` if one is shorter.

        `NotImplementedError`, before anything is changed, if some layer cannot do it (`can_crop`).
        """
        if not 0 <= length <= min(self.positions):
            raise ValueError(f"cannot crop a state of {min(self.positions)} tokens to {length}")
        for state in sorted(self.sublayers, key=lambda state: state.can_crop(length)):  # one that refuses comes first
            state.crop(length)
        self.positions = (length,) * len(self.positions)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name (`layer.3.keys`), with positions and capacity: everything to be saved."""
        named = {prefix + name: tensor for prefix, state in self.named() for name, tensor in state.tensors().items()}
        named["positions"], named["capacity"] = torch.tensor(self.positions), torch.tensor(self.capacity)
        return named

    def with_tensors(self, named: dict[str, Tensor]) -> "DecoderState":
        """A state of the same kind with the tensors that `tensors` returned."""
        states = []
        for prefix, state in self.named():
            own = {name.removeprefix(prefix): tensor for name, tensor in named.items() if name.startswith(prefix)}
            # The prefix of a mixer is the beginning of the prefixes of the other sublayers of its layer.
            states.append(state.with_tensors({name: tensor for name, tensor in own.items() if "." not in name}))
        return self._replace(states, int(named["capacity"]), tuple(named["positions"].tolist()))

    def named(self) -> Iterator[tuple[str, State]]:
        """Every state, in the order of `sublayers`, and the prefix of the names of its tensors."""
        for states, name in (
            (self.layers, ""),
            (self.feed_forwards, "feed_forward."),
            (self.cross_attentions, "cross_attention."),
        ):
            for index, state in enumerate(states):
                yield f"layer.{index}.{name}", state


def rows_to_take(kept: Sequence[int]) -> list[int]:
    """Rows in an order for `DecoderState.take_rows`: the last ones at the places of those that are not kept."""
    count = len(kept)
    last = [row for row in kept if row >= count]
    own = set(kept)
    return [place if place in own else last.pop() for place in range(count)]


def rows_of(state_of_one: DecoderState, batch: int) -> DecoderState:
    """A copy of a state of one stream for `batch` streams."""
    return state_of_one.select(torch.zeros(batch, dtype=torch.int64))


def padding_counts(padding: Sequence[int] | Tensor | None) -> Counts | None:
    """The padding of each row, in tokens; None if no row has any."""
    if padding is None:
        return None
    lengths = tuple(padding.tolist() if isinstance(padding, Tensor) else padding)
    return lengths if any(lengths) else None
