"""The contract of what stands on a residual branch: a token mixer or a feed-forward, its description, state and cost.

A mixer and a feed-forward are the same kind of thing, a sublayer; a layer of the stack is one of each. What is abstract
here has to be written for a new one; what is not has a default that is right, and slow where speed costs more.

Legend: `B` batch, `T` tokens of the chunk, `D` width of the sublayer.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from linnet.core.spec import Extent, Spec
from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy, FullCache
from linnet.layers.state import NoState, State
from linnet.nn.cost import Cost
from linnet.nn.linear import FusedLinear

DecodeStep = Callable[[Tensor, Tensor, int], Tensor]
"""One more token of one stream: the row `[1, D]` that is added to, the row that is read, its position; their sum.

One that computes by functions of `ops.native` alone may be written down when it is first done, and done again from that
(`ops.native.program`): which of them it calls is the same for every token and position.
"""


@dataclass(frozen=True)
class Place:
    """Where a sublayer stands.

    width: of what it reads and gives. context_length: tokens of a training sequence. index: number of the first layer
    that it serves, of `layers` in the stack. whole: it reads whole sequences as prefixes: in an encoder. memory_width:
    of what an encoder hands over (`BatchLayout.memory`).
    """

    width: int
    context_length: int
    index: int = 0
    layers: int = 1
    whole: bool = False
    memory_width: int = 0


@dataclass(frozen=True)
class Traits:
    """What holds for a sublayer, and is tested for it.

    causal: without a state, no output depends on a later token.
    exact_when_split: a stream fed in chunks gives what one pass gives, however it is cut.
    calibrates: it fixes something at its first chunk, the prompt; from then on it is causal and exact when split, and a
        causal evaluation lets it settle on another text. Every sublayer that lacks one of the two traits before says
        so or is refused by an evaluation.
    calibrated_after: of one that settles: so many tokens decide what it fixes. Both traits before hold for all outputs
        from the last of them on, if the first chunk has as many; None where the whole first chunk decides.
    prefix: the tokens of a prefix (`BatchLayout.prefixes`) see all of one another, those behind it all of it.
    constant_state: the bytes of its state do not grow with the number of tokens.
    window: an output depends on so many tokens, its own included; None: on every token before it.
    same_in_training: a pass of training gives what other passes give. Where it does not, what is said here holds for
        the others alone: a token may count for less because of earlier ones, or of the length of its row.
    """

    causal: bool = True
    exact_when_split: bool = True
    calibrates: bool = False
    calibrated_after: int | None = None
    prefix: bool = False
    constant_state: bool = False
    window: int | None = None
    same_in_training: bool = True


@dataclass(frozen=True)
class MuonParameter:
    """A parameter `[rows, columns]` between hidden vectors: one matrix, or several below each other.

    rows: of each.
    """

    parameter: Tensor
    rows: tuple[int, ...]


class Sublayer(nn.Module, ABC):
    """What stands on a residual branch.

    Its starting values are its own: they are set when it is built, and nobody redraws them but the weights of
    `nn.linear.Linear`, whose start the model's description says (a map with a start of its own is a plain
    `torch.nn.Linear`).
    """

    traits: Traits = Traits()

    references: ClassVar[Mapping[str, Callable[..., Any]]] = {}
    """The slow, obvious form of each fast operation, by the attribute that holds the fast one (tests compare)."""

    cache_policies: frozenset[type[CachePolicy]] = frozenset({FullCache})
    """The cache policies that it knows."""

    total: Callable[[Tensor], Tensor] = staticmethod(lambda counts: counts)
    """The sum, over all processes that read parts of a batch, of what a training pass counts in its own; set from
    outside where there are several."""

    penalties: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    """The penalties that training may request, by name, with the default coefficient of each term."""

    @abstractmethod
    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> State:
        """An empty state with room for `capacity` tokens, which keeps the past by one of `retentions`."""

    @abstractmethod
    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        """`[B, T, D] -> [B, T, D]`. With a state: reads it and advances it in place.

        It is called with views that it `supports` alone; `layers.passes.run` takes all others apart.
        """

    def supports(self, layout: BatchLayout, length: int, state: State | None) -> bool:
        """Whether a pass over a chunk of `length` tokens can be done at once; by default where all rows agree."""
        return layout.uniform

    def no_weight_decay(self) -> Iterator[nn.Parameter]:
        """The parameters on which weight decay never acts: by default all but the weights of linear maps."""
        decayed = {id(linear.weight) for linear in linear_maps(self)}
        return (parameter for parameter in self.parameters() if id(parameter) not in decayed)

    def muon_parameters(self) -> Iterator[MuonParameter]:
        """The parameters of which an optimizer for matrices (Muon) has charge, each map of a joined one by itself.

        By default the weights of linear maps, unless they never decay or have one row or column. A layer leaves out
        what is of low rank, or no map between hidden vectors.
        """
        no_weight_decay = {id(parameter) for parameter in self.no_weight_decay()}
        maps = (linear for linear in linear_maps(self) if id(linear.weight) not in no_weight_decay)
        return (muon_parameter_of(linear) for linear in maps if min(linear.weight.shape) > 1)

    def low_lr_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters whose small changes become large ones behind them: none by default.

        A run may give them a learning rate of their own (`optimizer.low_lr`).
        """
        return iter(())

    def skip_quantization(self) -> Iterator[nn.Module]:
        """The parts whose linear maps must not be stored in few bits: none by default."""
        return iter(())

    def output_projections(self) -> Iterator[nn.Linear]:
        """The linear maps behind which nothing but the residual stream comes: by default the one built last."""
        return iter(list(linear_maps(self))[-1:])

    @property
    def bfloat16_decode(self) -> bool:
        """Whether its row step takes weights and a state of bfloat16."""
        return False

    def decode_step(self, state: State | None, record: AuxiliaryOutputs | None = None) -> DecodeStep | None:
        """One more token of the one stream of `state`, in as few operations as can be; None: there is no such form.

        Rows are float32; weights and state are too, but for a sublayer that says `bfloat16_decode`. It holds the
        tensors
        of the state, which nothing else may advance or crop from then on. record: what layers leave for later ones of
        the same step, `[1, 1, ...]` each; its owner empties it before every step.
        """
        return None

    def calibration(self, state: State | None = None) -> dict[str, Tensor]:
        """What was calibrated on a text, by name: from the state of one stream that has read it, or as it is stored.

        Empty for a sublayer that does not calibrate, or whose state has read nothing. Of a sublayer that stores it
        (`SublayerSpec.calibration`) these are its buffers.
        """
        return {}


class Mixer(Sublayer):
    """A sublayer that moves information between tokens."""


class RecurrentMixer(Mixer):
    """A mixer whose state has a constant size, and which does not know at which positions its tokens are."""

    traits: Traits = Traits(constant_state=True)

    def supports(self, layout: BatchLayout, length: int, state: State | None) -> bool:
        """Rows at any positions, without padding."""
        return layout.padding is None


class FeedForward(Sublayer):
    """A sublayer that works on each token by itself, unless it has a state (a token shift)."""

    traits: Traits = Traits(constant_state=True)

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> State:
        """Nothing."""
        return NoState()

    def supports(self, layout: BatchLayout, length: int, state: State | None) -> bool:
        """Whatever the layout, where each output depends on its own token alone."""
        return layout.uniform or self.traits.window == 1


class SublayerSpec(Spec, ABC):
    """The description of a sublayer, chosen by `kind`."""

    kind: str

    cache_policies: ClassVar[tuple[type[CachePolicy], ...]] = ()
    """Cache policies that the kind brings, beside keeping everything."""

    @abstractmethod
    def build(self, place: Place) -> Sublayer:
        """The module for a place."""

    @abstractmethod
    def cost(self, place: Place) -> Cost:
        """Exact parameters, forward FLOPs, decode state and training memory, from the description alone."""

    @classmethod
    @abstractmethod
    def examples(cls) -> list[Self]:
        """Small variants that together show what it can be, at width 16; the contract tests build them all."""

    def cross_layer_values(self, width: int) -> Mapping[str, tuple[int, ...]]:
        """Values that it leaves for later layers, or reads (`BatchLayout.leave`): the shape for each token, by the
        field that says so, under whose name they are left. All layers of a model that have one must agree in its shape.
        """
        return {}

    @property
    def needs_cross_layer_gradients(self) -> bool:
        """Whether its gradients need what an earlier layer left."""
        return False

    def cross_layer_cost(self, place: Place) -> Cost:
        """What training keeps more of it, where it is the first to leave values and later gradients need them."""
        return Cost()

    def check(self, width: int) -> None:
        """Raise `ValueError("field: value: what would be accepted")` where it does not fit the width."""

    @property
    def supports_prefix(self) -> bool:
        """Whether the tokens of a prefix see all of one another (`Traits.prefix`); of others, what they do see."""
        return False

    @property
    def prefix_conflict(self) -> str:
        """The field for which it sees the past alone, its value and what would do; empty where that is its kind."""
        return ""

    @property
    def calibration(self) -> Literal["none", "text", "stored"]:
        """Whether it calibrates on the first text that it reads, stores a calibration as buffers, or needs none."""
        return "none"

    def with_calibration(self, where: Literal["text", "stored"]) -> Self:
        """The same description, calibrated on a text or with a stored calibration; unchanged if it needs none."""
        return self

    @classmethod
    def read_calibrations(
        cls, source: str, shapes: Sequence[Mapping[str, Sequence[int]]], origin: str
    ) -> list[dict[str, Tensor]]:
        """A calibration of each shape (by name, as `Sublayer.calibration`), from a file or a name that the kind knows.

        `UserError`, beginning with `origin`, if there is none, or it has other shapes.
        """
        raise NotImplementedError

    @classmethod
    def save_calibrations(cls, layers: Sequence[Mapping[str, Tensor]], path: str | Path) -> None:
        """Write the calibration of each layer that has one; `read_calibrations` reads the file."""
        raise NotImplementedError


class MixerSpec(SublayerSpec):
    """The description of a mixer."""


class FeedForwardSpec(SublayerSpec):
    """The description of a feed-forward; `hidden`: the width within."""

    hidden: Extent


def muon_parameter_of(linear: nn.Linear) -> MuonParameter:
    """The weight of a linear map, the single maps of a joined one apart."""
    return MuonParameter(linear.weight, linear.parts if isinstance(linear, FusedLinear) else (linear.out_features,))


def linear_maps(module: nn.Module) -> Iterator[nn.Linear]:
    """The linear maps below a module, in the order in which they were built."""
    return (part for part in module.modules() if isinstance(part, nn.Linear))


def sublayers_of(module: nn.Module) -> Iterator[Sublayer]:
    """The sublayers below a module, each once, in the order in which they were built; not those within others."""
    for child in module.children():
        if isinstance(child, Sublayer):
            yield child
        else:
            yield from sublayers_of(child)
