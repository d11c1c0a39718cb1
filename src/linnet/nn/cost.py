"""The exact cost of a part of a model, as functions of the number of tokens, so that costs of parts add up."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self


@dataclass(frozen=True)
class Cost:
    """Parameters, FLOPs, decode state and training memory of a part of a model.

    buffers: elements that are stored with the weights but not trained.
    matrices: inputs and outputs of each linear map that tokens pass; fused maps are listed separately.
    inactive_experts: those among `matrices` that a token does not pass, as it passes other experts of the same shape.
    flops: FLOPs of a forward pass, 2 per multiply-add of matrix products (projections, scores, sums over tokens);
    element-wise work (norms, activations, softmax) is not counted. Query-key pairs are counted in full, not halved for
    causality. flops_by_length: functions of the number of tokens, for FLOPs that are no polynomial of it.
    untrained_flops_per_token: those among `flops_per_token` whose matrix is not trained.
    state: elements of the decode state, in the model's precision; calibrated_elements: those that are computed once
    from a prompt. state_fixed_bytes, state_bytes_per_token: the part that has its own precision.
    state_narrow_per_token: those of state_elements_per_token that can have a lower precision (`state_bytes`).
    activations: float32 elements that the forward pass keeps for the backward pass. activation_memory: functions of the
    numbers of sequences and of tokens, for elements that are not proportional to both.
    """

    parameters: int = 0
    buffers: int = 0
    matrices: tuple[tuple[int, int], ...] = ()
    inactive_experts: tuple[tuple[int, int], ...] = ()
    flops_per_sequence: int = 0
    flops_per_token: int = 0
    flops_per_pair: int = 0
    flops_by_length: tuple[Callable[[int], int], ...] = ()
    untrained_flops_per_token: int = 0
    state_elements: int = 0
    state_elements_per_token: int = 0
    state_narrow_per_token: int = 0
    state_bytes_per_token: int = 0
    state_fixed_bytes: int = 0
    calibrated_elements: int = 0
    activations_per_sequence: int = 0
    activations_per_token: int = 0
    activation_memory: tuple[Callable[[int, int], int], ...] = ()

    def __add__(self, other: Self) -> "Cost":
        return Cost(*map(operator.add, _values(self), _values(other)))

    def repeated(self, times: int, shared: bool = False) -> "Cost":
        """The cost of `times` such parts in sequence; with `shared` weights there is one set of them."""
        values = {f.name: value * times for f, value in zip(fields(self), _values(self), strict=True)}
        if shared:
            values |= {name: getattr(self, name) for name in ("parameters", "buffers", "matrices", "inactive_experts")}
        return Cost(**values)

    @property
    def active_parameters(self) -> int:
        """The number of parameters that one token uses."""
        return self.parameters - sum(inputs * outputs for inputs, outputs in self.inactive_experts)

    @property
    def active_matrices(self) -> tuple[tuple[int, int], ...]:
        """The matrices that one token passes, in order."""
        active = list(self.matrices)
        for shape in self.inactive_experts:
            active.remove(shape)
        return tuple(active)

    def without_state(self) -> "Cost":
        """The cost of a part that reads whole sequences only, and so needs no state."""
        names = (f.name for f in fields(self) if f.name.startswith("state_") or f.name == "calibrated_elements")
        zeros: dict[str, Any] = dict.fromkeys(names, 0)
        return replace(self, **zeros)

    def flops(self, tokens: int) -> int:
        """Forward FLOPs of one pass over one sequence of `tokens` tokens."""
        polynomial = self.flops_per_sequence + self.flops_per_token * tokens + self.flops_per_pair * tokens * tokens
        return polynomial + sum(flops(tokens) for flops in self.flops_by_length)

    def training_flops(self, tokens: int) -> int:
        """FLOPs of forward and backward pass over one sequence: three times those of the forward pass.

        Each product has two in the backward pass, one for the gradient of each factor; a matrix that is not trained
        needs none. Recomputation that saves memory is not counted.
        """
        return 3 * self.flops(tokens) - self.untrained_flops_per_token * tokens

    def state_bytes(self, tokens: int, element_bytes: int = 4, narrow_bytes: int | None = None) -> int:
        """Bytes of the decode state of one sequence with a capacity of `tokens` tokens.

        element_bytes: bytes of an element in the model's precision. narrow_bytes: bytes of an element of keys and
        values, if they have a lower precision (with quantized weights).
        """
        narrow = 0 if narrow_bytes is None else self.state_narrow_per_token * tokens * (element_bytes - narrow_bytes)
        elements = self.calibrated_elements + self.state_elements + self.state_elements_per_token * tokens
        return elements * element_bytes - narrow + self.state_fixed_bytes + self.state_bytes_per_token * tokens

    def activation_elements(self, sequences: int, tokens: int) -> int:
        """Elements kept for the backward pass of a batch of `sequences` of `tokens` tokens each."""
        each = self.activations_per_sequence + self.activations_per_token * tokens
        return sequences * each + sum(kept(sequences, tokens) for kept in self.activation_memory)


_values = operator.attrgetter(*(f.name for f in fields(Cost)))
"""All values of a cost. A search adds up millions of costs, so the names are collected once."""


def linear_cost(inputs: int, outputs: int, bias: bool) -> Cost:
    """The cost of an affine map applied to every token; the caller counts the input that it keeps."""
    return Cost(
        parameters=inputs * outputs + outputs * bias,
        matrices=((inputs, outputs),),
        flops_per_token=2 * inputs * outputs,
    )
