"""The interface of optimizers, and AdamW in PyTorch's fused form.

`torch.optim.Optimizer` imports `torch.compile` with everything that belongs to it, which takes a second at the start of
every run (`benchmarks/start_up.py`), compiled or not.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from linnet.training.distributed import local
from linnet.training.timing import Stopwatch


class Group(TypedDict):
    """Parameters with the same learning rate and weight decay. scale: relative to the scheduled learning rate."""

    params: list[nn.Parameter]
    lr: float
    scale: float
    weight_decay: float


class Optimizer(ABC):
    """state: of each updated parameter its tensors by name, which together with the weights suffice to continue.

    orthogonalizing: the time that this process has spent in Muon's iteration.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self.param_groups = list(groups)
        self.state: dict[Tensor, dict[str, Tensor]] = defaultdict(dict)
        self.orthogonalizing = Stopwatch()

    @abstractmethod
    def step(self) -> None:
        """Update every parameter that has a gradient."""

    def zero_grad(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def cautious_decay(weight: Tensor, update: Tensor, amount: float) -> None:
    """Cautious weight decay (Chen et al., arXiv 2510.12402): `w -= amount * w` where update and weight have one sign.

    There the update, which is subtracted, makes the weight smaller as well. Only the signs of the update count.
    """
    weight -= (weight * amount).masked_fill_(update * weight < 0, 0.0)


class AdamW(Optimizer):
    """The update of `torch.optim.AdamW(fused=True)`, bit for bit (Loshchilov and Hutter, arXiv 1711.05101).

    It acts on each element by itself, so a process updates its own shard. cautious: weight decay as in
    `cautious_decay`. state: `step`, `exp_avg` and `exp_avg_sq` of each parameter, as PyTorch names them.
    """

    def __init__(self, groups: Sequence[Group], betas: tuple[float, float], eps: float, cautious: bool = False) -> None:
        super().__init__(groups)
        self._betas, self._eps, self._cautious = betas, eps, cautious

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            gradients = [parameter.grad for parameter in parameters]
            states = [self.state[parameter] for parameter in parameters]
            for parameter, state in zip(parameters, states, strict=True):
                if not state:
                    state["step"] = torch.zeros((), device=parameter.device)
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            amount = group["lr"] * group["weight_decay"]
            if self._cautious and amount:
                # Before the update, with the signs of the mean gradient that it will have.
                for parameter, gradient, state in zip(parameters, gradients, states, strict=True):
                    moved = local(state["exp_avg"]).lerp(local(gradient), 1 - self._betas[0])
                    cautious_decay(local(parameter), moved, amount)
            adamw(
                list(map(local, parameters)),
                list(map(local, gradients)),
                [local(state["exp_avg"]) for state in states],
                [local(state["exp_avg_sq"]) for state in states],
                [],
                [state["step"] for state in states],
                fused=True,
                amsgrad=False,
                beta1=self._betas[0],
                beta2=self._betas[1],
                lr=group["lr"],
                weight_decay=0.0 if self._cautious else group["weight_decay"],
                eps=self._eps,
                maximize=False,
            )
