"""The interface of sublayers, the modules on a residual branch: token mixers and feed-forwards, with their specs.

A layer of the stack has one of each. A new sublayer must implement the abstract methods; the other methods have
defaults that are correct, but may be slow.

Shapes: `B` batch, `T` tokens of the chunk, `D` width of the sublayer.
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
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy, FullCache
from linnet.layers.state import NoState, State
from linnet.nn.cost import Cost
from linnet.nn.linear import FusedLinear


@dataclass(frozen=True)
class Place:
    """The place of a sublayer in a model.

    width: the width of its inputs and outputs. context_length: the number of tokens of a training sequence. index: the
    index of its layer (the first, if it is shared) among the `layers` of the stack. whole: whether it reads whole
    sequences as prefixes, in an encoder. memory_width: the width of the encoder's output (`BatchLayout.memory`).
    """

    width: int
    context_length: int
    index: int = 0
    layers: int = 1
    whole: bool = False
    memory_width: int = 0


@dataclass(frozen=True)
class Traits:
    """Properties of a sublayer; the contract tests check them.

    causal: without a state, no output depends on a later token, but for rounding: a form by FFT may have gradients of
        later tokens of up to 1e-14 of the largest, in float64.
    exact_when_split: a stream gives the same outputs however it is split into chunks.
    calibrates: it computes something from its first chunk (the prompt) and keeps it; after that it is causal and exact
        when split. Evaluation calibrates it on another text. A sublayer that lacks one of the two traits above must
        calibrate; evaluation refuses any other.
    calibrated_after: the number of first tokens that it calibrates on; both traits above hold from the last of them on
        if the first chunk has at least as many. None: the whole first chunk.
    prefix: the tokens of a prefix (`BatchLayout.prefixes`) see all of one another; later tokens see all of it.
    constant_state: the size of its state does not grow with the number of tokens.
    window: the number of tokens that an output depends on, including its own; None: all earlier tokens.
    same_in_training: outputs are the same in training. If not, the traits hold outside training only.
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
    """A parameter `[rows, columns]` that maps between hidden vectors: one or several stacked matrices.

    rows: the number of rows of each matrix.
    """

    parameter: Tensor
    rows: tuple[int, ...]


class Sublayer(nn.Module, ABC):
    """A module on a residual branch.

    It initializes its parameters when it is built. Only the weights of `nn.linear.Linear` are initialized again, by the
    model's spec; a linear layer with its own initialization is a plain `torch.nn.Linear`. A buffer that is computed
    from the spec is registered with `persistent=False`: it is not stored, and `Cost.buffers` does not count it.
    """

    traits: Traits = Traits()

    references: ClassVar[Mapping[str, Callable[..., Any]]] = {}
    """The slow reference of each fast operation, by the attribute that holds the fast one; tests compare them."""

    cache_policies: frozenset[type[CachePolicy]] = frozenset({FullCache})
    """The cache policies that it supports."""

    total: Callable[[Tensor], Tensor] = staticmethod(lambda counts: counts)
    """Sums counts of a training pass over all processes; set from outside if there are several.

    Each process has the auxiliary losses of its own rows, and gradients are averaged by tokens. That equals one process
    for a loss that is a mean over tokens. A loss that is not, such as a product of two means over the batch, takes all
    factors but one from counts that `total` has summed; they carry no gradient (`feed_forwards.experts`).
    """

    penalties: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    """The penalties that training may request, by name, with the default coefficient of each term."""

    @abstractmethod
    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> State:
        """An empty state with a capacity of `capacity` tokens and one of `cache_policies`."""

    @abstractmethod
    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        """`[B, T, D] -> [B, T, D]`; a state is read and advanced in place.

        It is only called with layouts that it `supports`; `layers.passes.run` splits all others.
        """

    def supports(self, layout: BatchLayout, length: int, state: State | None) -> bool:
        """True if one call can process a chunk of `length` tokens; by default if the layout is uniform.

        An exported graph has one stream and does not ask; its layout is not uniform, because the position is a tensor.
        """
        return layout.uniform

    def no_weight_decay(self) -> Iterator[nn.Parameter]:
        """The parameters without weight decay: by default all except the weights of linear layers."""
        decayed = {id(linear.weight) for linear in linear_maps(self)}
        return (parameter for parameter in self.parameters() if id(parameter) not in decayed)

    def muon_parameters(self) -> Iterator[MuonParameter]:
        """The parameters that Muon optimizes, each matrix of a fused one separately.

        By default the weights of linear layers, unless they have no weight decay or only one row or column. Exclude
        matrices of low rank and those that are not between hidden vectors.
        """
        no_weight_decay = {id(parameter) for parameter in self.no_weight_decay()}
        maps = (linear for linear in linear_maps(self) if id(linear.weight) not in no_weight_decay)
        found = (muon_parameter_of(linear) for linear in maps)
        return (one for one in found if min(*one.rows, one.parameter.shape[1]) > 1)

    def low_lr_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that need a lower learning rate (`optimizer.low_lr`), as small changes have large effects."""
        return iter(())

    def skip_quantization(self) -> Iterator[nn.Module]:
        """The modules whose linear layers must not be quantized: none by default."""
        return iter(())

    def output_projections(self) -> Iterator[nn.Linear]:
        """The linear layers directly before the residual stream: by default the one built last."""
        return iter(list(linear_maps(self))[-1:])

    def calibration(self, state: State | None = None) -> dict[str, Tensor]:
        """The calibration by name: from the state of one stream that has read a text, or as it is stored.

        Empty for a sublayer that does not calibrate, or whose state has read nothing. For a sublayer that stores its
        calibration (`SublayerSpec.calibration`) these are its buffers.
        """
        return {}


class Mixer(Sublayer):
    """A sublayer that moves information between tokens."""


class RecurrentMixer(Mixer):
    """A mixer with a state of constant size that does not depend on the positions of its tokens."""

    traits: Traits = Traits(constant_state=True)

    def supports(self, layout: BatchLayout, length: int, state: State | None) -> bool:
        return layout.padding is None


class FeedForward(Sublayer):
    """A sublayer that processes each token separately, unless it has a state (a token shift)."""

    traits: Traits = Traits(constant_state=True)

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> State:
        return NoState()

    def supports(self, layout: BatchLayout, length: int, state: State | None) -> bool:
        # If each output depends on its own token only, any layout is supported.
        return layout.uniform or self.traits.window == 1


class SublayerSpec(Spec, ABC):
    """The spec of a sublayer, chosen by `kind`."""

    kind: str

    cache_policies: ClassVar[tuple[type[CachePolicy], ...]] = ()
    """The cache policies that the kind adds to the full cache."""

    @abstractmethod
    def build(self, place: Place) -> Sublayer:
        """The module for a place in a model."""

    @abstractmethod
    def cost(self, place: Place) -> Cost:
        """Exact parameters, forward FLOPs, decode state and training memory, from the description alone."""

    @classmethod
    @abstractmethod
    def examples(cls) -> list[Self]:
        """Small variants of width 16 that cover all features; the contract tests build them all."""

    def cross_layer_values(self, width: int) -> Mapping[str, tuple[int, ...]]:
        """The shapes, per token, of values that it saves for later layers or reads from earlier ones.

        The keys are the names of the fields that turn them on. All layers of a model must agree on a shape.
        """
        return {}

    @property
    def needs_cross_layer_gradients(self) -> bool:
        """True if its gradients need values of an earlier layer."""
        return False

    def cross_layer_cost(self, place: Place) -> Cost:
        """The additional cost of training if it is the first layer to save values that later gradients need."""
        return Cost()

    def check(self, width: int) -> None:
        """Raise `ValueError("field: value: what is accepted")` if it does not fit the width."""

    @property
    def supports_prefix(self) -> bool:
        """True if the tokens of a prefix see all of one another (`Traits.prefix`)."""
        return False

    @property
    def prefix_conflict(self) -> str:
        """If one field prevents prefixes: the field, its value and what is accepted; empty otherwise."""
        return ""

    @property
    def calibration(self) -> Literal["none", "text", "stored"]:
        """`text` if it calibrates on the first text that it reads, `stored` if it stores a calibration as buffers."""
        return "none"

    def with_calibration(self, where: Literal["text", "stored"]) -> Self:
        """The same description, calibrated on a text or with a stored calibration; unchanged if it needs none."""
        return self

    @classmethod
    def read_calibrations(
        cls, source: str, shapes: Sequence[Mapping[str, Sequence[int]]], origin: str
    ) -> list[dict[str, Tensor]]:
        """A calibration for each layer, from a file or from a name that the kind knows.

        shapes: for each layer, the shapes by name (see `Sublayer.calibration`). `UserError`, beginning with `origin`,
        if the source has no calibration or other shapes.
        """
        raise NotImplementedError

    @classmethod
    def save_calibrations(cls, layers: Sequence[Mapping[str, Tensor]], path: str | Path) -> None:
        """Write the calibration of each layer that has one; `read_calibrations` reads the file."""
        raise NotImplementedError


class MixerSpec(SublayerSpec):
    """The spec of a mixer."""


class FeedForwardSpec(SublayerSpec):
    """The spec of a feed-forward; `hidden`: its hidden width."""

    hidden: Extent


def muon_parameter_of(linear: nn.Linear) -> MuonParameter:
    """The weight of a linear layer, with the matrices of a fused one."""
    return MuonParameter(linear.weight, linear.parts if isinstance(linear, FusedLinear) else (linear.out_features,))


def linear_maps(module: nn.Module) -> Iterator[nn.Linear]:
    """All linear layers in a module, in the order in which they were built."""
    return (part for part in module.modules() if isinstance(part, nn.Linear))


def sublayers_of(module: nn.Module) -> Iterator[Sublayer]:
    """All outermost sublayers in a module, each once, in the order in which they were built."""
    for child in module.children():
        if isinstance(child, Sublayer):
            yield child
        else:
            yield from sublayers_of(child)
