"""What kernels are worth on the device at hand: a small problem, before they serve there, beside plain PyTorch."""

from collections.abc import Callable

import torch
from torch import Tensor

LARGEST_ERROR = 1e-2
"""Relative to the largest number of a tensor: a wrong kernel is off by far more, products in TF32 by less."""

Form = Callable[..., tuple[Tensor, ...]]


def problem(forms: Callable[[bool], None], device: torch.device) -> str | None:
    """What is wrong with them there, in words; None: nothing. `forms(True)` turns to kernels, `forms(False)` back.

    They are tried in float32, also where who asks is under autocast.
    """
    try:
        with torch.inference_mode(False), torch.autocast(device.type, enabled=False):
            errors = {name: _error(form, tensors, forms) for name, (form, tensors) in _problems(device).items()}
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        forms(False)
    wrong = {name: error for name, error in errors.items() if not error <= LARGEST_ERROR}
    return ", ".join(f"{name} is off by {error:.1e}" for name, error in wrong.items()) or None


def _problems(device: torch.device) -> dict[str, tuple[Form, list[Tensor]]]:
    """Operations, and what they are asked: 130 tokens, in chunks that are not all full."""
    from linnet.ops.decay.chunked import decay_chunked
    from linnet.ops.gated_delta import gated_delta

    def decay(rates: Tensor, v: Tensor) -> tuple[Tensor]:
        return (decay_chunked(rates, v, v.shape[1]),)

    draw = torch.Generator().manual_seed(0)
    rates, v = torch.rand(1, 130, 2, generator=draw), torch.randn(1, 130, 2, 16, generator=draw)
    q, k, values = (torch.randn(1, 2, 130, 16, generator=draw) / 4 for _ in range(3))
    log_alpha, beta = -torch.rand(1, 2, 130, 1, generator=draw), torch.rand(1, 2, 130, generator=draw)
    asked: dict[str, tuple[Form, list[Tensor]]] = {
        "decay": (decay, [rates, v]),
        "gated_delta": (gated_delta, [q, k, values, log_alpha, beta]),
    }
    return {name: (form, [x.to(device) for x in tensors]) for name, (form, tensors) in asked.items()}


def _error(form: Form, tensors: list[Tensor], forms: Callable[[bool], None]) -> float:
    """The largest of outputs and of all gradients."""
    found = []
    for by_kernels in (True, False):
        forms(by_kernels)
        asked = [x.clone().requires_grad_() for x in tensors]
        with torch.enable_grad():
            outputs = form(*asked)
            gradients = torch.autograd.grad([out.square().sum() for out in outputs], asked)
        found.append([*outputs, *gradients])
    pairs = [(x.detach().double(), y.detach().double()) for x, y in zip(*found, strict=True)]
    return max(float((x - y).abs().max() / y.abs().max().clamp(min=1e-30)) for x, y in pairs)
