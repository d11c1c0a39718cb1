"""What every optimizer is: groups of parameters, a state of each parameter, an update.

`torch.optim.Optimizer` brings in `torch.compile` with all that belongs to it: a second at the start of every run
(`benchmarks/start_up.py`), compiled or not.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import TypedDict

from torch import Tensor, nn


class Group(TypedDict):
    """Parameters that share learning rate and weight decay. scale: of the scheduled learning rate."""

    params: list[nn.Parameter]
    lr: float
    scale: float
    weight_decay: float


class Optimizer(ABC):
    """state: the tensors of each parameter that was updated, by name; with the weights, all that going on needs."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.param_groups = list(groups)
        self.state: dict[Tensor, dict[str, Tensor]] = defaultdict(dict)

    @abstractmethod
    def step(self) -> None:
        """Update every parameter that has a gradient."""

    @property
    def orthogonalizing_s(self) -> float:
        """Seconds that went into matrices made orthogonal, so far in this process."""
        return 0.0

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def with_gradients(group: Group) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters of a group that have a gradient, and these."""
    found = [(parameter, parameter.grad) for parameter in group["params"] if parameter.grad is not None]
    return [parameter for parameter, _ in found], [gradient for _, gradient in found]


def decay_where_agreed(weight: Tensor, update: Tensor, amount: float) -> None:
    """Cautious weight decay (Chen et al., arXiv 2510.12402): `w -= amount * w` where update and weight agree.

    Where they have one sign, the update, which is subtracted, makes the weight smaller as well. The update counts by
    its signs alone.
    """
    weight -= (weight * amount).masked_fill_(update * weight < 0, 0.0)
