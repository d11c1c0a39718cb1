"""A state-space model with a diagonal matrix, separately for each channel (Gu et al., 2022, arXiv 2206.11893).

    h_t = a h_(t-1) + x_t,   y_t = Re(c . h_t) + d x_t      (eq. 2, discrete, with the input's factors in c)

a, c and h are N complex numbers. `diagonal_ssm_reference` is this recurrence. The outputs are also a convolution of the
inputs with the kernel `K_l = Re(c . a^l)` (eq. 3), which `diagonal_ssm` computes in chunks, all side by side: within a
chunk as a product with a Toeplitz matrix of the kernel, from chunk to chunk by the states. Unlike Fourier transforms of
the whole sequence this is linear in the length, and a sequence can begin with a state. Powers of a are products of
repeated squares; nothing is divided by them, so nothing overflows. The forward pass saves the inputs and the state
before each chunk; the backward pass recomputes the matrices.

Graph formats have no complex numbers: there `diagonal_ssm_real` computes with pairs of real ones, `[..., 2]`.

Legend: `B` batch, `E` channels, `T` tokens, `N` complex numbers of a state, `S` its real numbers, 2 N, `H` chunks,
`C` tokens of one, `R` chunks of all rows, `P` powers.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.support import apply_eagerly, segment_length, segment_slices

CHUNK = 64
"""Tokens of a chunk."""

SEGMENT_FACTOR = 4
"""Segments are longer by this factor than those of other operations, because each reads all matrices."""


def diagonal_ssm_reference(
    x_BET: Tensor, a_EN: Tensor, c_EN: Tensor, d_E: Tensor, h_BEN: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition, step by step: `[B, E, T]`, and the state `[B, E, N]` after the last token.

    a_EN, c_EN, h_BEN: complex. h_BEN: the state before the first token, if not 0.
    """
    h_BEN = a_EN.new_zeros(len(x_BET), *a_EN.shape) if h_BEN is None else h_BEN
    outs = []
    for x_BE in x_BET.unbind(2):
        h_BEN = a_EN * h_BEN + x_BE[..., None]
        outs.append((c_EN * h_BEN).real.sum(-1) + d_E * x_BE)
    return torch.stack(outs, dim=2), h_BEN


def diagonal_ssm(
    x_BET: Tensor, a_EN: Tensor, c_EN: Tensor, d_E: Tensor, h_BEN: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`diagonal_ssm_reference`, fast: time and memory linear in the length, parallel over it. Differentiable once."""
    if x_BET.shape[2] == 1:
        return diagonal_ssm_reference(x_BET, a_EN, c_EN, d_E, h_BEN)
    h_BEN = a_EN.new_zeros(len(x_BET), *a_EN.shape) if h_BEN is None else h_BEN
    out_BET, end_BEN = apply_eagerly(_DiagonalSsm, x_BET, a_EN, c_EN, d_E, h_BEN)
    return out_BET, end_BEN


def diagonal_ssm_real(
    x_BET: Tensor, a_EN2: Tensor, c_EN2: Tensor, d_E: Tensor, h_BEN2: Tensor
) -> tuple[Tensor, Tensor]:
    """`diagonal_ssm` as one chunk, of complex numbers as pairs of real ones: for exported graphs."""
    tokens = x_BET.shape[2]
    a_EPN2 = complex_powers(a_EN2, tokens + 1)
    read_EPN2 = complex_mul(a_EPN2, c_EN2[:, None])
    ages_CC = torch.arange(tokens, device=x_BET.device) - torch.arange(tokens, device=x_BET.device)[:, None]
    kernel_EC = read_EPN2[:, :tokens, :, 0].sum(-1)
    near_ECC = kernel_EC[:, ages_CC.clamp(min=0)] * (ages_CC >= 0) + d_E[:, None, None] * (ages_CC == 0)
    read_ECS = (read_EPN2[:, 1:] * _conjugate(x_BET)).flatten(2)  # the real part of a product
    x_EBT, h_EBN2 = x_BET.transpose(0, 1), h_BEN2.transpose(0, 1)
    out_EBT = x_EBT @ near_ECC + h_EBN2.flatten(2) @ read_ECS.mT
    added_EBS = x_EBT @ a_EPN2[:, :tokens].flip(1).flatten(2)
    end_EBN2 = complex_mul(a_EPN2[:, tokens, None], h_EBN2) + added_EBS.view(h_EBN2.shape)
    return out_EBT.transpose(0, 1), end_EBN2.transpose(0, 1)


class _Matrices(NamedTuple):
    """The matrices of a chunk, or their gradients.

    near_ECC: from its inputs to its outputs (source, reader). read_ECS: from the state before it to its outputs.
    feed_ECS: from its inputs to the state after it. a_EPN: powers of a; the last is the decay of the state before it.
    """

    near_ECC: Tensor
    read_ECS: Tensor
    feed_ECS: Tensor
    a_EPN: Tensor

    def of_chunk(self, tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Views for a chunk of fewer tokens; of the powers only the last, `[E, N]`."""
        feed_ECS = self.feed_ECS[:, self.feed_ECS.shape[1] - tokens :]
        return self.near_ECC[:, :tokens, :tokens], self.read_ECS[:, :tokens], feed_ECS, self.a_EPN[:, tokens]


def _chunk_matrices(chunk: int, a_EN: Tensor, c_EN: Tensor, d_E: Tensor) -> _Matrices:
    """The matrices for chunks of a number of tokens."""
    a_EPN = _powers(a_EN, chunk + 1)
    read_EPN = a_EPN * c_EN[:, None]
    kernel_EC = read_EPN[:, :chunk].real.sum(-1)
    kernel_EC[:, 0] += d_E
    read_EPN.imag.neg_()  # Re(u v) is the scalar product of conj(u) and v
    # The kernel at the distance of each source and reader, 0 for later sources.
    near_ECC = F.pad(kernel_EC, (chunk - 1, 0)).unfold(1, chunk, 1).flip(1)
    return _Matrices(near_ECC, _real(read_EPN)[:, 1:], _real(a_EPN[:, :chunk].flip(1)), a_EPN)


class _DiagonalSsm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_BET: Tensor, a_EN: Tensor, c_EN: Tensor, d_E: Tensor, h_BEN: Tensor
    ) -> tuple[Tensor, Tensor]:
        batch, channels, length = x_BET.shape
        out_EBT, starts, h_EBN = torch.empty_like(x_BET).transpose(0, 1), [], h_BEN.transpose(0, 1)
        matrices = _chunk_matrices(min(CHUNK, length), a_EN, c_EN, d_E)
        for place, chunk in _segments(x_BET):
            near_ECC, read_ECS, feed_ECS, share_EN = matrices.of_chunk(chunk)
            x_ERC = x_BET[:, :, place].transpose(0, 1).reshape(channels, -1, chunk)
            added_EBHN = torch.unflatten(_complex(torch.bmm(x_ERC, feed_ECS)), 1, (batch, -1))
            before_EBHN = torch.empty_like(added_EBHN)
            for index, added_EBN in enumerate(added_EBHN.unbind(2)):
                before_EBHN[:, :, index] = h_EBN
                h_EBN = torch.addcmul(added_EBN, share_EN[:, None], h_EBN)
            starts.append(_real(before_EBHN).flatten(1, 2))
            out_ERC = torch.baddbmm(torch.bmm(starts[-1], read_ECS.mT), x_ERC, near_ECC)
            out_EBT[:, :, place] = out_ERC.view(channels, batch, -1)
        ctx.save_for_backward(x_BET, a_EN, c_EN, d_E, *starts)
        return out_EBT.transpose(0, 1), h_EBN.transpose(0, 1).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y_BET: Tensor, grad_h_BEN: Tensor) -> tuple[Tensor, ...]:
        x_BET, a_EN, c_EN, d_E, *starts = ctx.saved_tensors
        batch, channels, length = x_BET.shape
        grad_x_EBT, grad_h_EBN = torch.empty_like(x_BET).transpose(0, 1), grad_h_BEN.transpose(0, 1)
        matrices = _chunk_matrices(min(CHUNK, length), a_EN, c_EN, d_E)
        grads = _Matrices(*map(torch.zeros_like, matrices))
        for (place, chunk), before_ERS in reversed(list(zip(_segments(x_BET), starts, strict=True))):
            near_ECC, read_ECS, feed_ECS, share_EN = matrices.of_chunk(chunk)
            x_ERC, grad_y_ERC = (
                part_BET[:, :, place].transpose(0, 1).reshape(channels, -1, chunk) for part_BET in (x_BET, grad_y_BET)
            )
            grad_before_EBHN = torch.unflatten(_complex(torch.bmm(grad_y_ERC, read_ECS)), 1, (batch, -1))
            grad_added_EBHN, share_E1N = torch.empty_like(grad_before_EBHN), share_EN[:, None].conj().resolve_conj()
            for index in reversed(range(grad_before_EBHN.shape[2])):
                grad_added_EBHN[:, :, index] = grad_h_EBN
                grad_h_EBN = torch.addcmul(grad_before_EBHN[:, :, index], share_E1N, grad_h_EBN)
            grad_added_ERS = _real(grad_added_EBHN).flatten(1, 2)
            grad_x_ERC = torch.baddbmm(torch.bmm(grad_added_ERS, feed_ECS.mT), grad_y_ERC, near_ECC.mT)
            grad_x_EBT[:, :, place] = grad_x_ERC.view(channels, batch, -1)
            grad_near_ECC, grad_read_ECS, grad_feed_ECS, grad_share_EN = grads.of_chunk(chunk)
            grad_near_ECC += x_ERC.mT @ grad_y_ERC
            grad_read_ECS += grad_y_ERC.mT @ before_ERS
            grad_feed_ECS += x_ERC.mT @ grad_added_ERS
            grad_share_EN += (_complex(before_ERS).conj() * _complex(grad_added_ERS)).sum(1)
        coefficient_gradients = _coefficient_gradients(matrices.a_EPN, c_EN, grads)
        return grad_x_EBT.transpose(0, 1), *coefficient_gradients, grad_h_EBN.transpose(0, 1).contiguous()


def _coefficient_gradients(a_EPN: Tensor, c_EN: Tensor, grads: _Matrices) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a, c and d from those of the matrices."""
    channels, chunk, _ = grads.near_ECC.shape
    # The gradient of the kernel sums over diagonals, which are columns once each row is shifted by one.
    skewed = F.pad(grads.near_ECC.flip(1), (0, chunk)).flatten(1)[:, :-chunk].view(channels, chunk, -1)
    grad_kernel_EC, grad_powers_EPN = skewed[:, :, chunk - 1 :].sum(1), grads.a_EPN
    grad_read_EPN = F.pad(_complex(grads.read_ECS).conj(), (0, 0, 1, 0))
    grad_read_EPN[:, :-1] += grad_kernel_EC[..., None]
    grad_powers_EPN[:, :-1] += _complex(grads.feed_ECS).flip(1)
    grad_powers_EPN += grad_read_EPN * c_EN[:, None].conj()
    grad_c_EN = (grad_read_EPN * a_EPN.conj()).sum(1)
    order_P1 = torch.arange(1, a_EPN.shape[1], device=a_EPN.device, dtype=grad_kernel_EC.dtype)[:, None]
    grad_a_EN = (grad_powers_EPN[:, 1:] * a_EPN[:, :-1].conj() * order_P1).sum(1)  # a^p grows by p a^(p - 1)
    return grad_a_EN, grad_c_EN, grad_kernel_EC[:, 0]


def _segments(x_BET: Tensor) -> list[tuple[slice, int]]:
    """Segments of whole chunks, and the remaining tokens, each with the length of its chunks."""
    batch, channels, length = x_BET.shape
    whole = length // CHUNK * CHUNK
    segment = segment_length(batch, -(-channels // SEGMENT_FACTOR), CHUNK, x_BET.device.type)
    segments = [(place, CHUNK) for place in segment_slices(whole, segment)]
    return segments + [(slice(whole, length), length - whole)] * (whole < length)


def _powers(a_EN: Tensor, count: int) -> Tensor:
    """`a^0` to `a^(count - 1)`, `[E, P, N]`, from repeated squares."""
    a_EPN = a_EN.new_empty(a_EN.shape[0], count, a_EN.shape[1])
    a_EPN[:, 0] = 1
    square_E1N, filled = a_EN[:, None], 1
    while filled < count:
        more = min(filled, count - filled)
        torch.mul(a_EPN[:, :more], square_E1N, out=a_EPN[:, filled : filled + more])
        square_E1N, filled = square_E1N * square_E1N, filled + more
    return a_EPN


def _real(x: Tensor) -> Tensor:
    """Complex `[..., N] -> [..., 2 N]`."""
    return torch.view_as_real(x).flatten(-2)


def _complex(x: Tensor) -> Tensor:
    """`[..., 2 N] ->` complex `[..., N]`."""
    return torch.view_as_complex(torch.unflatten(x, -1, (-1, 2)))


def complex_mul(u: Tensor, w: Tensor) -> Tensor:
    """`u w`."""
    (u_re, u_im), (w_re, w_im) = u.unbind(-1), w.unbind(-1)
    return torch.stack([u_re * w_re - u_im * w_im, u_re * w_im + u_im * w_re], dim=-1)


def complex_div(u: Tensor, w: Tensor) -> Tensor:
    """`u / w`."""
    return complex_mul(u, w * _conjugate(w)) / w.square().sum(-1, keepdim=True)


def complex_exp(u: Tensor) -> Tensor:
    """`exp(u)`."""
    re, im = u.unbind(-1)
    return re.exp()[..., None] * torch.stack([im.cos(), im.sin()], dim=-1)


def complex_expm1(u: Tensor) -> Tensor:
    """`exp(u) - 1`, exact for small u: ONNX has no `expm1`, but a hyperbolic tangent that is exact there."""
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


def diagonal_ssm_flops(tokens: int, channels: int, state: int) -> int:
    """FLOPs of `diagonal_ssm` for one sequence with `state` complex numbers for each channel.

    2 per multiply-add of its matrix products; a single token has none.
    """
    if tokens == 1:
        return 0
    rest = tokens % CHUNK
    whole = tokens - rest
    return 2 * channels * (whole * (CHUNK + 4 * state) + rest * (rest + 4 * state))


def diagonal_ssm_saved_elements(tokens: int, state: int) -> int:
    """Elements that `diagonal_ssm` saves for a channel of one sequence besides its inputs: states before chunks.

    state: real numbers of a state.
    """
    return 0 if tokens == 1 else -(-tokens // CHUNK) * state


def _conjugate(like: Tensor) -> Tensor:
    """`[1, -1]`, made on the device: a recorded step cannot copy it there."""
    return 1 - 2 * torch.arange(2, dtype=like.dtype, device=like.device)
