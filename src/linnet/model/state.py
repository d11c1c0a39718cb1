"""The decode state of a whole decoder: its layers' states and one position."""

from dataclasses import dataclass

import torch
from torch import Tensor

from linnet.layers.contract import Span, State


@dataclass
class DecoderState:
    """What a decoder keeps of a batch of streams. It belongs to the caller; only the decoder advances `position`.

    layers: the state of each layer, in order. position: tokens seen so far, padding included. capacity: tokens there is
    room for. padding_B: left padding of each row, int64 `[B]`, or None.
    """

    layers: tuple[State, ...]
    capacity: int
    position: int = 0
    padding_B: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all layers' states, as allocated."""
        return sum(layer.nbytes for layer in self.layers)

    def span(self) -> Span:
        """Where the next chunk lies."""
        return Span(self.position, self.padding_B)

    def fork(self) -> "DecoderState":
        """An independent copy."""
        layers = tuple(layer.fork() for layer in self.layers)
        return DecoderState(layers, self.capacity, self.position, self.padding_B)

    def select(self, rows: Tensor) -> "DecoderState":
        """A copy with the given rows of the batch (int64 `[B']`; a row may repeat)."""
        layers = tuple(layer.select(rows) for layer in self.layers)
        padding_B = None if self.padding_B is None else self.padding_B[rows]
        return DecoderState(layers, self.capacity, self.position, padding_B)

    def crop(self, length: int) -> None:
        """Go back to the first `length` tokens; `ValueError` if fewer were seen."""
        if not 0 <= length <= self.position:
            raise ValueError(f"cannot crop a state of {self.position} tokens to {length}")
        for layer in self.layers:
            layer.crop(length)
        self.position = length

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name (`layer.3.keys`), with position, capacity and padding: all that saving needs."""
        named = {
            f"layer.{index}.{name}": tensor
            for index, layer in enumerate(self.layers)
            for name, tensor in layer.tensors().items()
        }
        named["position"], named["capacity"] = torch.tensor(self.position), torch.tensor(self.capacity)
        if self.padding_B is not None:
            named["padding"] = self.padding_B
        return named

    def with_tensors(self, named: dict[str, Tensor]) -> "DecoderState":
        """A state of the same kind that holds what `tensors` gave."""
        layers = tuple(layer.with_tensors(_below(named, f"layer.{index}.")) for index, layer in enumerate(self.layers))
        return DecoderState(layers, int(named["capacity"]), int(named["position"]), named.get("padding"))


def _below(named: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in named.items() if name.startswith(prefix)}
