"""Two modules that compute the same."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

Names = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]

Ours = TypeVar("Ours", bound=nn.Module)


def as_they_are(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Where ours have the published names."""
    return dict(theirs)


@dataclass(frozen=True)
class Twins(Generic[Ours]):
    """Theirs and ours with weights alike, drawn away from where they start.

    names: ours by name, of their weights or gradients. run, run_ours: `[B, T, D] -> [B, T, D]`, or a model's logits of
    tokens. joined: of our gradients, those of copies of one weight of theirs summed, under one name.
    """

    theirs: nn.Module
    ours: Ours
    names: Names
    run: Callable[..., Tensor]
    run_ours: Callable[..., Tensor]
    joined: Names = as_they_are

    @classmethod
    def of(
        cls, theirs: nn.Module, ours: Ours, names: Names = as_they_are, run: Callable[..., Tensor] | None = None
    ) -> "Twins[Ours]":
        """Layers, with our weights made theirs."""
        ours.load_state_dict(names(theirs.state_dict()))
        return cls(theirs, ours, names, theirs if run is None else run, ours)


def drawn(module: nn.Module, std: float = 0.3, **others: float) -> nn.Module:
    """With every parameter drawn anew: one whose name contains that of `others` with the deviation given there."""
    for name, parameter in module.named_parameters():
        nn.init.normal_(parameter, std=next((own for part, own in others.items() if part in name), std))
    return module


def assert_same_passes(both: Twins[Ours], width: int, length: int, atol: float = 1e-4) -> None:
    """Outputs of two rows, and the gradients of inputs and all weights."""
    x_BTD, upstream = torch.randn(2, length, width), torch.randn(2, length, width)
    found = []
    for module, run in ((both.theirs, both.run), (both.ours, both.run_ours)):
        x = x_BTD.clone().requires_grad_()
        out = run(x)
        out.backward(upstream)
        found.append((out, x.grad, {name: weight.grad for name, weight in module.named_parameters()}))
    (expected, of_x, of_theirs), (out, of_own_x, of_ours) = found
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=atol)
    torch.testing.assert_close(of_own_x, of_x, rtol=1e-4, atol=atol)
    torch.testing.assert_close(of_ours, both.names(of_theirs), rtol=1e-4, atol=atol)
