"""The scalar memory of xLSTM: a recurrent network with exponential gates, whose heads mix their own channels.

Beck et al., 2024 (arXiv 2405.04517), section 2.2 with the stabilizer m of eqs. 15 to 17, the forget gate a sigmoid as
in the published code. With x_t what the token adds to the logits, for each channel of a head:

    [i_t, f_t, z_t, o_t] = x_t + R h_(t-1)
    m_t = max(log sigmoid(f_t) + m_(t-1), i_t),   i'_t = exp(i_t - m_t),   f'_t = exp(log sigmoid(f_t) + m_(t-1) - m_t)
    c_t = f'_t c_(t-1) + i'_t tanh(z_t),   n_t = f'_t n_(t-1) + i'_t,   h_t = sigmoid(o_t) c_t / n_t

Before the first token m is minus infinity, all else 0; n is never below 1 after it. `slstm_reference` is the
definition. As h_(t-1) stands within the gates of t, no form is parallel over the tokens: `slstm` goes token after token
too, in a dozen operations each, without a graph. h does not depend on m, by which c and n are both divided, so
gradients pass it by; what they are multiplied by is made for a segment of tokens at once, and the way back is six
operations for each token. The gradient of R is one product for a segment.

Legend: `B` batch, `T` tokens, `N` heads, `P` channels of one, `G` = 4 P: logits of its gates, in the order i, f, z, o.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from linnet.ops.support import segment_length, segment_slices

GATES = 4
NUMBERS = 12
"""For each channel of a token that the way back works with."""

Memory = tuple[Tensor, Tensor, Tensor, Tensor]
"""h, c, n and m, `[B, N, P]` each."""


def empty_memory(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Memory:
    """Before the first token; shape: `(B, N, P)`."""
    h, c, n = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(3))
    return h, c, n, torch.full(shape, -torch.inf, device=device, dtype=dtype)


def slstm_reference(x_BT4NP: Tensor, weight_NPG: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
    """The definition, token by token: h, `[B, T, N, P]`, and the memory behind the last token.

    weight_NPG: R of each head. memory: before the first token, if there is one before.
    """
    batch, _, gates, heads, width = x_BT4NP.shape
    h, c, n, m = memory or empty_memory((batch, heads, width), x_BT4NP.device, x_BT4NP.dtype)
    outs = []
    for x_B4NP in x_BT4NP.unbind(1):
        mixed_NBG = h.transpose(0, 1) @ weight_NPG
        i, f, z, o = (x_B4NP + torch.unflatten(mixed_NBG, -1, (gates, width)).permute(1, 2, 0, 3)).unbind(1)
        faded = F.logsigmoid(f) + m
        m = torch.maximum(faded, i)
        share, kept = (i - m).exp(), (faded - m).exp()
        c, n = kept * c + share * z.tanh(), kept * n + share
        h = o.sigmoid() * c / n
        outs.append(h)
    return torch.stack(outs, dim=1), (h, c, n, m)


def slstm(x_BT4NP: Tensor, weight_NPG: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
    """The same, faster. Differentiable once; not with respect to the memory, nor from the one behind the last token."""
    batch, length, _, heads, width = x_BT4NP.shape
    memory = memory or empty_memory((batch, heads, width), x_BT4NP.device, x_BT4NP.dtype)
    if length == 1:
        return slstm_reference(x_BT4NP, weight_NPG, memory)
    h_BTNP, *behind = _as_it_is(x_BT4NP, weight_NPG, *memory)
    return h_BTNP, (h_BTNP[:, -1].detach(), *behind)


@_disable_dynamo  # `torch.compiler.disable` imports the whole compiler, a second, wherever this file is read
def _as_it_is(*inputs: Tensor) -> Any:
    """Also in a compiled model: its loop over tokens would be another graph for every length."""
    return _Slstm.apply(*inputs)  # type: ignore[no-untyped-call]


class _Slstm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BT4NP: Tensor, weight_NPG: Tensor, *memory: Tensor) -> tuple[Tensor, ...]:
        logits_TNBG = x_BT4NP.permute(1, 3, 0, 2, 4).flatten(3).clone(memory_format=torch.contiguous_format)
        h_NBP, c_NBP, n_NBP, m_NBP = (part.transpose(0, 1) for part in memory)
        tokens, *shape = torch.unflatten(logits_TNBG, -1, (GATES, -1))[..., 0, :].shape
        h_TNBP = logits_TNBG.new_empty(tokens, *shape)
        cells_T2NBP = logits_TNBG.new_empty(tokens + 1, 2, *shape)
        peaks_TNBP = logits_TNBG.new_empty(tokens + 1, *shape)
        cells_T2NBP[0, 0], cells_T2NBP[0, 1], peaks_TNBP[0] = c_NBP, n_NBP, m_NBP
        _forward(logits_TNBG, weight_NPG, h_NBP.contiguous(), h_TNBP, cells_T2NBP, peaks_TNBP)
        h_BTNP = h_TNBP.permute(2, 0, 1, 3).contiguous()
        ctx.save_for_backward(logits_TNBG, weight_NPG, memory[0], h_BTNP, cells_T2NBP, peaks_TNBP)
        behind = [part.transpose(0, 1) for part in (*cells_T2NBP[-1].clone(), peaks_TNBP[-1].clone())]
        ctx.mark_non_differentiable(*behind)
        return h_BTNP, *behind

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_h_BTNP: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        logits_TNBG, weight_NPG, first_BNP, h_BTNP, cells_T2NBP, peaks_TNBP = ctx.saved_tensors
        h_TNBP = torch.cat([first_BNP[:, None], h_BTNP], dim=1).permute(1, 2, 0, 3)
        of_h_TNBP = of_h_BTNP.permute(1, 2, 0, 3)
        of_logits_TNBG, of_weight_NPG = torch.empty_like(logits_TNBG), torch.zeros_like(weight_NPG)
        passed = torch.zeros_like(peaks_TNBP[0]), torch.zeros_like(cells_T2NBP[0])
        segment = segment_length(1, NUMBERS * peaks_TNBP[0].numel(), 1, logits_TNBG.device.type)
        for place in reversed(segment_slices(len(logits_TNBG), segment)):
            both = slice(place.start, place.stop + 1)
            slopes = _slopes(logits_TNBG[place], h_TNBP[both][1:], cells_T2NBP[both], peaks_TNBP[both])
            found_TNBG = of_logits_TNBG[place]
            passed = _back(slopes, weight_NPG, of_h_TNBP[place], passed, found_TNBG)
            of_weight_NPG += torch.einsum("tnbp,tnbg->npg", h_TNBP[place], found_TNBG)
        of_x_TNB4P = torch.unflatten(of_logits_TNBG, -1, (GATES, -1))
        return of_x_TNB4P.permute(2, 0, 3, 1, 4), of_weight_NPG, None, None, None, None


def _forward(
    logits_TNBG: Tensor, weight_NPG: Tensor, h_NBP: Tensor, h_TNBP: Tensor, cells_T2NBP: Tensor, peaks_TNBP: Tensor
) -> None:
    """All tokens: adds what the recurrence does to the logits, and fills h, c and n, and m, which begin behind the
    memory before the first token.
    """
    i_T, f_T, z_T, o_T = (part.unbind(0) for part in torch.unflatten(logits_TNBG, -1, (GATES, -1)).unbind(-2))
    cells, peaks, (c_T, n_T) = cells_T2NBP.unbind(0), peaks_TNBP.unbind(0), (x.unbind(0) for x in cells_T2NBP.unbind(1))
    shares_2NBP, fed_2NBP = torch.empty_like(cells[0]), torch.ones_like(cells[0])
    (share, kept), (z_NBP, _), o_NBP = shares_2NBP, fed_2NBP, torch.empty_like(h_NBP)
    for token, (logits_NBG, next_NBP) in enumerate(zip(logits_TNBG.unbind(0), h_TNBP.unbind(0), strict=True)):
        torch.baddbmm(logits_NBG, h_NBP, weight_NPG, out=logits_NBG)
        faded, m = F.logsigmoid(f_T[token]).add_(peaks[token]), peaks[token + 1]
        torch.maximum(i_T[token], faded, out=m)
        torch.sub(i_T[token], m, out=share)
        torch.sub(faded, m, out=kept)
        shares_2NBP.exp_()
        torch.tanh(z_T[token], out=z_NBP)
        torch.addcmul(fed_2NBP * share, cells[token], kept, out=cells[token + 1])
        torch.sigmoid(o_T[token], out=o_NBP)
        h_NBP = torch.div(c_T[token + 1], n_T[token + 1], out=next_NBP).mul_(o_NBP)


def _slopes(logits_TNBG: Tensor, h_TNBP: Tensor, cells_T2NBP: Tensor, peaks_TNBP: Tensor) -> tuple[Tensor, ...]:
    """What gradients of a segment's tokens are multiplied by: those of h for c and n; of c for i, f and z; of n for i
    and f; of h for o; of c and n for those before. c, n and m begin behind the token before.
    """
    i, f, z, o = torch.unflatten(logits_TNBG, -1, (GATES, -1)).unbind(-2)
    z, o, before_m, m = z.tanh(), o.sigmoid(), peaks_TNBP[:-1], peaks_TNBP[1:]
    share, kept = (i - m).exp(), (F.logsigmoid(f) + before_m - m).exp()
    (before_c, before_n), n = cells_T2NBP[:-1].unbind(1), cells_T2NBP[1:, 1]
    of_f = kept * (-f).sigmoid()
    for_cells = torch.stack([o / n, -h_TNBP / n], dim=1)
    of_c = torch.stack([share * z, of_f * before_c, share * (1 - z * z)], dim=-2)
    of_n = torch.stack([share, of_f * before_n], dim=-2)
    return for_cells, of_c, of_n, h_TNBP * (1 - o), kept


def _back(
    slopes: tuple[Tensor, ...], weight_NPG: Tensor, of_h_TNBP: Tensor, passed: tuple[Tensor, Tensor], out_TNBG: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of a segment's logits, into `out`; gives those of h, and of c and n, of the token before.

    passed: the same of its last token, from the tokens behind.
    """
    back_NGP, (passed_NBP, of_cells_2NBP) = weight_NPG.mT.contiguous(), passed
    out_TNB4P = torch.unflatten(out_TNBG, -1, (GATES, -1))
    outs = (out_TNBG, out_TNB4P[..., :3, :], out_TNB4P[..., :2, :], out_TNB4P[..., 3, :])
    steps = zip(*(x.unbind(0)[::-1] for x in (of_h_TNBP, *slopes, *outs)), strict=True)
    for of_h, for_cells, of_c, of_n, for_o, kept, of_NBG, of_ifz, of_if, of_o in steps:
        of_h_NBP = of_h + passed_NBP
        of_cells_2NBP = torch.addcmul(of_cells_2NBP, of_h_NBP, for_cells)
        c_NB1P, n_NB1P = of_cells_2NBP.unsqueeze(-2).unbind(0)
        torch.mul(of_c, c_NB1P, out=of_ifz)
        of_if.addcmul_(of_n, n_NB1P)
        torch.mul(for_o, of_h_NBP, out=of_o)
        of_cells_2NBP.mul_(kept)
        passed_NBP = of_NBG @ back_NGP
    return passed_NBP, of_cells_2NBP
