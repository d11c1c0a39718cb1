"""Complex numbers as pairs of real ones, `[..., 2]`: for graphs, whose formats and runtimes have no others."""

import torch
from torch import Tensor


def complex_mul(u: Tensor, w: Tensor) -> Tensor:
    """`u w`."""
    (u_re, u_im), (w_re, w_im) = u.unbind(-1), w.unbind(-1)
    return torch.stack([u_re * w_re - u_im * w_im, u_re * w_im + u_im * w_re], dim=-1)


def complex_div(u: Tensor, w: Tensor) -> Tensor:
    """`u / w`."""
    return complex_mul(u, w * w.new_tensor([1.0, -1.0])) / w.square().sum(-1, keepdim=True)


def complex_exp(u: Tensor) -> Tensor:
    """`exp(u)`."""
    re, im = u.unbind(-1)
    return re.exp()[..., None] * torch.stack([im.cos(), im.sin()], dim=-1)


def complex_expm1(u: Tensor) -> Tensor:
    """`exp(u) - 1` with all the digits of a small u: ONNX has no `expm1`, but a hyperbolic tangent that keeps them."""
    re, im = u.unbind(-1)
    half = (re / 2).tanh()
    grown = 2 * half / (1 - half)
    return torch.stack([grown * im.cos() - 2 * (im / 2).sin().square(), (1 + grown) * im.sin()], dim=-1)


def complex_powers(a_EN2: Tensor, count: int) -> Tensor:
    """`a^0` to `a^(count - 1)`, `[E, P, N, 2]`, from repeated squares."""
    a_EPN2 = torch.stack([torch.ones_like(a_EN2[..., 0]), torch.zeros_like(a_EN2[..., 0])], dim=-1)[:, None]
    square_E1N2 = a_EN2[:, None]
    while a_EPN2.shape[1] < count:
        a_EPN2 = torch.cat([a_EPN2, complex_mul(a_EPN2, square_E1N2)], dim=1)
        square_E1N2 = complex_mul(square_E1N2, square_E1N2)
    return a_EPN2[:, :count]
