"""A decoder's states as a flat list of tensors by name, and back: what a graph takes and gives.

Legend: `T` tokens of the chunk, `V` vocabulary.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from linnet.inference.cache_policy import CachePolicies, cache_policy_state
from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout, Made
from linnet.layers.cache_policy import FULL
from linnet.layers.key_value import WindowState
from linnet.layers.state import CachePolicyState, State
from linnet.model.decoder import Decoder
from linnet.model.stack import run_blocks
from linnet.model.state import DecoderState, LayerStates


@dataclass(frozen=True)
class GraphBatchLayout(BatchLayout):
    """The layout of one stream in a graph, whose position is a tensor `[1]`, and its places a number of the graph.

    Layers take it as rows that stand at different positions, which know them as tensors alone.
    """

    position_B: Tensor | None = None
    places: int = 0

    @cached_property
    def uniform(self) -> bool:
        """Never: no layer may read a position as a number."""
        return False

    @property
    def start(self) -> int:
        """There is none that could be known."""
        raise NotImplementedError("the position is a tensor in a graph")

    def end(self, length: int) -> int:
        """All places that there are, so that layers mask those behind the position."""
        return self.places

    def remember(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Made anew: a length may be a symbol, which is no key, and runtimes compute what is the same but once."""
        return make()

    def offsets_B(self, device: torch.device) -> Tensor:
        """See `BatchLayout`."""
        assert self.position_B is not None
        return self.position_B

    def positions(self, length: int, device: torch.device) -> Tensor:
        """See `BatchLayout`: `[1, T]`."""
        return self.offsets_B(device)[:, None] + torch.arange(length, device=device)


class Flat:
    """Names, and the places where the tensors of a state of one stream stand."""

    def __init__(self, state: DecoderState) -> None:
        """`state`: as it begins; fields without a tensor stay without one."""
        self.begins = state
        self.tensors = {
            prefix + field: tensor for prefix, part in state.named() for field, tensor in part.tensors().items()
        }
        self.growing = {
            prefix + field: part.room.get(field, 1)
            for prefix, part in state.named()
            for field in part.tensors()
            if field in part.room or field in part.any_length
        }
        self.has_room = {prefix + field for prefix, part in state.named() for field in part.room} & set(self.tensors)

    @property
    def needs_whole_pieces(self) -> bool:
        """Whether some layer takes pieces of one length alone: a bank its chunks."""
        kept = (part.cache_policy for _, part in self.begins.named() if isinstance(part, CachePolicyState))
        return any(cache_policy != FULL for cache_policy in kept)

    @classmethod
    def of(cls, decoder: Decoder, capacity: int, cache_policy: CachePolicies) -> "Flat":
        """Of an empty state of one stream."""
        return cls(cache_policy_state(decoder, 1, capacity, cache_policy))

    def filled(self, tensors: Sequence[Tensor]) -> list[LayerStates]:
        """The states of each layer with these tensors, in the order of the names."""
        by_name = dict(zip(self.tensors, tensors, strict=True))
        parts = {prefix: part.with_tensors(_below(by_name, prefix, part)) for prefix, part in self.begins.named()}
        each = list(parts.values())
        layers = len(self.begins.layers)
        return [LayerStates(*each[index::layers]) for index in range(layers)]

    def taken(self, layers: Sequence[LayerStates]) -> list[Tensor]:
        """The tensors of these states, in the order of the names."""
        parts = [part for column in zip(*layers, strict=True) for part in column]
        named = zip(self.begins.named(), parts, strict=True)
        by_name = {
            prefix + field: tensor
            for (prefix, _), part in named
            if isinstance(part, State)
            for field, tensor in part.tensors().items()
        }
        if by_name.keys() != self.tensors.keys():
            changed = sorted(by_name.keys() ^ self.tensors.keys())
            raise ValueError(f"a step changes which tensors a state has: {changed}")
        return [by_name[name] for name in self.tensors]


def _below(by_name: Mapping[str, Tensor], prefix: str, part: State) -> dict[str, Tensor]:
    return {field: by_name[prefix + field] for field in part.tensors()}


class Step(nn.Module):
    """A decoder as a function: tokens `[1, T]`, position `[1]` and states to logits `[1, T, V]` and states."""

    def __init__(self, decoder: Decoder, flat: Flat) -> None:
        super().__init__()
        self.decoder, self.flat = decoder, flat

    @property
    def takes_any_number(self) -> bool:
        """Whether one graph can read any number of tokens: a recurrence goes over as many as it was traced with."""
        kept = zip(self.decoder.mixers, self.flat.begins.layers, strict=True)
        recurs = any(mixer.traits.constant_state and not isinstance(state, WindowState) for mixer, state in kept)
        return not recurs and not self.flat.needs_whole_pieces

    def forward(self, tokens_BT: Tensor, position_B: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Logits and the states behind the tokens."""
        layers = self.flat.filled(states)
        named = zip(self.flat.tensors, states, strict=True)
        rooms = (x.shape[self.flat.growing[name]] for name, x in named if name in self.flat.has_room)
        places = next(rooms, tokens_BT.shape[1])
        layout = GraphBatchLayout(record=AuxiliaryOutputs(), position_B=position_B, places=places)
        x_BTD = run_blocks(self.decoder.blocks, self.decoder.embedding(tokens_BT, layout), layers, layout)
        return self.decoder.logits(self.decoder.after_blocks(x_BTD)), self.flat.taken(layers)
