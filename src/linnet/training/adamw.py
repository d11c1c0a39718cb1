"""AdamW in PyTorch's fused form, without `torch.optim.Optimizer`.

That class brings in `torch.compile` with all that belongs to it: a second at the start of every run
(`benchmarks/start_up.py`), compiled or not.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw


class Group(TypedDict):
    """Parameters that share learning rate and weight decay."""

    params: list[nn.Parameter]
    lr: float
    weight_decay: float


class AdamW:
    """The update of `torch.optim.AdamW(fused=True)`, bit for bit (Loshchilov and Hutter, arXiv 1711.05101).

    state: of each parameter that was updated `step`, `exp_avg` and `exp_avg_sq`, as PyTorch names them.
    """

    def __init__(self, groups: Sequence[Group], betas: tuple[float, float], eps: float) -> None:
        self.param_groups = list(groups)
        self.state: dict[nn.Parameter, dict[str, Tensor]] = defaultdict(dict)
        self._betas, self._eps = betas, eps

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            states = [self._moments(parameter) for parameter in parameters]
            adamw(
                list[Tensor](parameters),
                [parameter.grad for parameter in parameters if parameter.grad is not None],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=True,
                amsgrad=False,
                beta1=self._betas[0],
                beta2=self._betas[1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=self._eps,
                maximize=False,
            )

    def _moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state
