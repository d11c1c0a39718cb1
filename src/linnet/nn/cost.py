"""What a part costs, exactly, as functions of the number of tokens, so that costs of parts simply add up."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True)
class Cost:
    """Parameters, forward FLOPs and decode state of a part of a model.

    FLOPs count 2 per multiply-add of matrix products (projections, scores, sums over tokens); element-wise work
    (norms, activations, softmax) is not counted. Query-key pairs are counted in full, not halved for causality.
    `flops_by_length`: functions of the number of tokens, for FLOPs that are no polynomial of it; they add up as well.
    """

    parameters: int = 0
    flops_per_sequence: int = 0
    flops_per_token: int = 0
    flops_per_pair: int = 0
    flops_by_length: tuple[Callable[[int], int], ...] = ()
    state_elements: int = 0
    state_elements_per_token: int = 0
    state_bytes_per_token: int = 0

    def __add__(self, other: Self) -> "Cost":
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def repeated(self, times: int, shared: bool = False) -> "Cost":
        """The cost of `times` such parts in a row; with `shared` weights the parameters are counted once."""
        values = {f.name: getattr(self, f.name) * times for f in fields(self)}
        if shared:
            values["parameters"] = self.parameters
        return Cost(**values)

    def flops(self, tokens: int) -> int:
        """Forward FLOPs of one pass over one sequence of `tokens` tokens."""
        polynomial = self.flops_per_sequence + self.flops_per_token * tokens + self.flops_per_pair * tokens * tokens
        return polynomial + sum(flops(tokens) for flops in self.flops_by_length)

    def state_bytes(self, tokens: int, element_bytes: int = 4) -> int:
        """Bytes of decode state of one sequence with room for `tokens` tokens, its elements of `element_bytes` each.

        `state_bytes_per_token` is the part whose precision is fixed whatever the model's (decay rates).
        """
        elements = self.state_elements + self.state_elements_per_token * tokens
        return elements * element_bytes + self.state_bytes_per_token * tokens


def linear_cost(inputs: int, outputs: int, bias: bool) -> Cost:
    """The cost of an affine map applied to every token."""
    return Cost(parameters=inputs * outputs + outputs * bias, flops_per_token=2 * inputs * outputs)
