"""AdamW in PyTorch's fused form."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from linnet.training.optimizers.groups import Group, Optimizer, decay_where_agreed, with_gradients
from linnet.training.processes.shards import local


class AdamW(Optimizer):
    """The update of `torch.optim.AdamW(fused=True)`, bit for bit (Loshchilov and Hutter, arXiv 1711.05101).

    It works on each element by itself: a process updates the shard that it holds.

    cautious: weight decay where update and weight agree alone (`decay_where_agreed`). state: of each parameter `step`,
    `exp_avg` and `exp_avg_sq`, as PyTorch names them.
    """

    def __init__(self, groups: Sequence[Group], betas: tuple[float, float], eps: float, cautious: bool = False) -> None:
        super().__init__(groups)
        self._betas, self._eps, self._cautious = betas, eps, cautious

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            parameters, gradients = with_gradients(group)
            states = [self._moments(parameter) for parameter in parameters]
            if self._cautious:
                self._decay(group, parameters, gradients, states)
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

    def _decay(
        self, group: Group, parameters: list[Tensor], gradients: list[Tensor], states: list[dict[str, Tensor]]
    ) -> None:
        """Before the update, whose signs are those of the mean gradient that it will have."""
        amount = group["lr"] * group["weight_decay"]
        for parameter, gradient, state in zip(parameters, gradients, states, strict=True):
            if amount:
                moved = local(state["exp_avg"]).lerp(local(gradient), 1 - self._betas[0])
                decay_where_agreed(local(parameter), moved, amount)

    def _moments(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state
