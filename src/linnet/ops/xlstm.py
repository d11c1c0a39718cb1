"""The two memories of xLSTM (Beck et al., 2024, arXiv 2405.04517): mLSTM, a matrix, and sLSTM, a recurrent network.

mLSTM (section 2.3 with the stabilizer m of its appendix, read as in xLSTM 7B, Beck et al., 2025, arXiv 2503.13427) is
linear attention with gates; the input gate is an exponential. With logits i and f of the gates, queries
divided by sqrt(K), and u_t = [v_t, 1]:

    m_t = max(log sigmoid(f_t) + m_(t-1), i_t)
    S_t = exp(log sigmoid(f_t) + m_(t-1) - m_t) S_(t-1) + exp(i_t - m_t) k_t u_t^T
    [r_t, n_t] = S_t^T q_t,   h_t = r_t / (max(|n_t|, exp(-m_t)) + eps)

`mlstm` takes segments, cut into chunks: within a chunk all pairs of tokens, from chunk to chunk the memories. With F_t
the sum of log sigmoid(f) up to t, a_j = i_j - F_j, and b_t the largest of a_j up to t, the weight of token j at token t
is exp(a_j - b_t), at most 1, and m_t = b_t + F_t. Sums and maxima are float64, so that their differences keep the
digits of float32 however long the stream. As a_j occurs only in the weights of key j, and b_t only in those of query t,
their gradients are k_j . dk_j and -(h_t . dh_t) eps / denominator: the gradient of a pair's weight is never needed. The
forward pass saves its inputs, its output, the normalizer of each token and the memory before each segment.

sLSTM (section 2.2 with the stabilizer of eqs. 15 to 17, the forget gate a sigmoid as in the published code): heads mix
their own channels. With x_t the token's part of the logits, for each channel of a head:

    [i_t, f_t, z_t, o_t] = x_t + R h_(t-1)
    m_t = max(log sigmoid(f_t) + m_(t-1), i_t),   i'_t = exp(i_t - m_t),   f'_t = exp(log sigmoid(f_t) + m_(t-1) - m_t)
    c_t = f'_t c_(t-1) + i'_t tanh(z_t),   n_t = f'_t n_(t-1) + i'_t,   h_t = sigmoid(o_t) c_t / n_t

Before the first token m is minus infinity, all else 0; n is never below 1 after it. As the gates of t depend on
h_(t-1), no form is parallel over the tokens: `slstm` goes token by token too, in a dozen operations each, without a
graph. h does not depend on m, by which c and n are both divided, so gradients bypass it. The derivatives are computed
for a segment of tokens at once, and the backward pass is six operations for each token. The gradient of R is one
product per segment.

The `..._reference` functions are the definitions.

Legend: `B` batch, `N` heads, `T` tokens, `K` width of queries and keys, `V` width of values, `U` = V + 1: values and
the normalizer; `H` chunks, `C` tokens of one; `P` channels of an sLSTM head, `G` = 4 P: logits of its gates, in the
order i, f, z, o.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.support import apply_eagerly, is_exporting, segment_length, segment_slices, states_before, widen

CHUNK = 64
"""Tokens of a chunk of mLSTM."""
EPS = 1e-6
"""Added to the normalizer, as published."""
GATES = 4
"""Gates of an sLSTM cell: input, forget, candidate, output."""
SLSTM_ELEMENTS = 12
"""Intermediate elements of the sLSTM's backward pass for each channel of a token."""

Memory = tuple[Tensor, Tensor, Tensor, Tensor]
"""The sLSTM's h, c, n and m, `[B, N, P]` each."""


def mlstm_reference(
    q_BNTK: Tensor,
    k_BNTK: Tensor,
    v_BNTV: Tensor,
    input_BNT: Tensor,
    forget_BNT: Tensor,
    memory_BNKU: Tensor | None = None,
    peak_BN: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The definition, token by token: `[B, N, T, V]`; the memory `[B, N, K, U]` after the last one, and m, `[B, N]`.

    input_BNT, forget_BNT: logits of the gates. memory_BNKU, peak_BN: the memory and m before the first token, if not 0.
    """
    if memory_BNKU is None:
        memory_BNKU = v_BNTV.new_zeros(*v_BNTV.shape[:2], k_BNTK.shape[3], v_BNTV.shape[3] + 1)
    peak_BN = v_BNTV.new_zeros(v_BNTV.shape[:2]) if peak_BN is None else peak_BN
    q_BNTK, u_BNTU = q_BNTK * q_BNTK.shape[3] ** -0.5, F.pad(v_BNTV, (0, 1), value=1.0)
    decay_BNT, outs = F.logsigmoid(forget_BNT), []
    for token in range(v_BNTV.shape[2]):
        faded_BN, input_BN = decay_BNT[..., token] + peak_BN, input_BNT[..., token]
        peak_BN = torch.maximum(faded_BN, input_BN)
        key_BNK = k_BNTK[:, :, token] * (input_BN - peak_BN).exp()[..., None]
        memory_BNKU = memory_BNKU * (faded_BN - peak_BN).exp()[..., None, None]
        memory_BNKU = memory_BNKU + key_BNK[..., None] * u_BNTU[:, :, token, None]
        read_BNU = (q_BNTK[:, :, token, None] @ memory_BNKU)[..., 0, :]
        outs.append(read_BNU[..., :-1] / _denominator(read_BNU[..., -1], peak_BN)[..., None])
    return torch.stack(outs, dim=2), memory_BNKU, peak_BN


def mlstm(
    q_BNTK: Tensor,
    k_BNTK: Tensor,
    v_BNTV: Tensor,
    input_BNT: Tensor,
    forget_BNT: Tensor,
    memory_BNKU: Tensor | None = None,
    peak_BN: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`mlstm_reference`, fast: time and memory linear in the length. Differentiable once."""
    if memory_BNKU is None:
        memory_BNKU = v_BNTV.new_zeros(*v_BNTV.shape[:2], k_BNTK.shape[3], v_BNTV.shape[3] + 1)
    peak_BN = v_BNTV.new_zeros(v_BNTV.shape[:2]) if peak_BN is None else peak_BN
    if v_BNTV.shape[2] == 1:
        return mlstm_reference(q_BNTK, k_BNTK, v_BNTV, input_BNT, forget_BNT, memory_BNKU, peak_BN)
    inputs = (q_BNTK, k_BNTK, v_BNTV, input_BNT, forget_BNT, memory_BNKU, peak_BN)
    h_BTNV, memory_BNKU, peak_BN = apply_eagerly(_Mlstm, *inputs)
    return h_BTNV.transpose(1, 2), memory_BNKU, peak_BN


def _denominator(normalizer: Tensor, peak: Tensor) -> Tensor:
    return torch.maximum(normalizer.abs(), (-peak).exp()) + EPS


class _Mlstm(torch.autograd.Function):
    """The output is laid out `[B, T, N, V]` in memory, as the map after the heads reads it."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_BNTK, k_BNTK, v_BNTV, input_BNT, forget_BNT, memory_BNKU, peak_BN = inputs
        above, largest, sums = _logs(input_BNT, forget_BNT, peak_BN)
        batch, heads, length, width = v_BNTV.shape
        h_BTNV, normalizer_BNT = v_BNTV.new_empty(batch, length, heads, width), v_BNTV.new_empty(batch, heads, length)
        starts = []
        for place in segment_slices(length, mlstm_segment_length(batch, heads, width, v_BNTV.device.type)):
            starts.append(memory_BNKU)
            segment = _mlstm_segment(place, (q_BNTK, k_BNTK, v_BNTV), (above, largest, peak_BN))
            before, memory_BNKU = segment.memories(memory_BNKU)
            scores = (segment.q @ segment.k.mT).mul_(segment.pairs)
            read = scores @ segment.u + (segment.q * segment.from_start) @ before
            r, n = torch.split(read.flatten(2, 3)[:, :, : place.stop - place.start], [width, 1], dim=-1)
            normalizer_BNT[:, :, place] = n[..., 0]
            peaks = (largest + sums)[:, :, place, None].to(n.dtype)
            torch.div(r, _denominator(n, peaks), out=h_BTNV[:, place].transpose(1, 2))
        ctx.save_for_backward(*inputs[:5], peak_BN, h_BTNV, normalizer_BNT, torch.stack([*starts, memory_BNKU]))
        return h_BTNV, memory_BNKU, (largest[..., -1] + sums[..., -1]).to(peak_BN.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_h_BTNV: Tensor, grad_memory: Tensor, grad_peak: Tensor) -> tuple[Tensor, ...]:
        q, k, v, *gates, peak_BN, h_BTNV, normalizer_BNT, starts = ctx.saved_tensors
        with torch.enable_grad(), torch.autocast(v.device.type, enabled=False):
            leaves = [x.detach().requires_grad_() for x in (*gates, peak_BN)]
            logs = _logs(*leaves)
        above, largest, sums = (x.detach() for x in logs)
        grad_read, grad_largest, grad_sums = _read_gradients(grad_h_BTNV, h_BTNV, normalizer_BNT, largest + sums)
        grad_largest[..., -1] += grad_peak - (grad_memory * starts[-1]).sum((-1, -2))
        grad_sums[..., -1] += grad_peak
        grad_q, grad_k, grad_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        batch, heads, length, width = v.shape
        places = segment_slices(length, mlstm_segment_length(batch, heads, width, v.device.type))
        for place, start in reversed(list(zip(places, starts[:-1], strict=True))):
            segment = _mlstm_segment(place, (q, k, v), (above, largest, peak_BN))
            *segment_gradients, grad_memory = segment.gradients(grad_read[:, :, place], start, grad_memory)
            for gradient, segment_gradient in zip((grad_q, grad_k, grad_v), segment_gradients, strict=True):
                gradient[:, :, place] = segment_gradient
        grad_logs = widen((k * grad_k).sum(-1)), grad_largest, grad_sums
        grad_gates = list(torch.autograd.grad(logs, leaves, grad_logs))
        grad_gates[-1] += (grad_memory * starts[0]).sum((-1, -2))
        return grad_q, grad_k, grad_v, *grad_gates[:-1], grad_memory, grad_gates[-1]


def _logs(input_BNT: Tensor, forget_BNT: Tensor, peak_BN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """a, b and F of each token, float64 `[B, N, T]`."""
    sums_BNT = F.logsigmoid(widen(forget_BNT)).cumsum(-1)
    above_BNT = widen(input_BNT) - sums_BNT
    if is_exporting():  # ONNX has no running maximum
        largest_BNT, reach, length = above_BNT, 1, above_BNT.shape[-1]
        while reach < length:
            shifted_BNT = F.pad(largest_BNT[..., :-reach], (reach, 0), value=-torch.inf)
            largest_BNT, reach = torch.maximum(largest_BNT, shifted_BNT), 2 * reach
    else:
        largest_BNT = above_BNT.cummax(-1).values
    return above_BNT, torch.maximum(largest_BNT, widen(peak_BN)[..., None]), sums_BNT


def _read_gradients(
    grad_h_BTNV: Tensor, h_BTNV: Tensor, normalizer_BNT: Tensor, peaks_BNT: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of what is read, `[B, N, T, U]`; of b, which cancels except for eps; of F, only through exp(-m)."""
    peaks_BNT = peaks_BNT.to(h_BTNV.dtype)
    denominator_BNT = _denominator(normalizer_BNT, peaks_BNT)
    along_BNT = torch.linalg.vecdot(grad_h_BTNV, h_BTNV).transpose(1, 2)
    share_BNT, normalized_BNT = EPS / denominator_BNT, normalizer_BNT.abs() >= (-peaks_BNT).exp()
    grad_n_BNT = -(normalizer_BNT.sign() * normalized_BNT) * along_BNT / denominator_BNT
    grad_r_BNTV = grad_h_BTNV.transpose(1, 2) / denominator_BNT[..., None]
    grad_sums_BNT = along_BNT * ((1 - share_BNT) * ~normalized_BNT)
    grad_read_BNTU = torch.cat([grad_r_BNTV, grad_n_BNT[..., None]], dim=-1)
    return grad_read_BNTU, widen(-(along_BNT * share_BNT)), widen(grad_sums_BNT)


class _MlstmSegment(NamedTuple):
    """Chunks that are computed side by side: queries, keys `[B, N, H, C, K]`, values and a 1 `[B, N, H, C, U]`.

    pairs: the weight of each token at each later one of its chunk (reader, source), `[B, N, H, C, C]`, 0 at earlier
    ones. to_end: its weight at the end of the chunk; from_start: the weight at each token of the memory before the
    chunk, `[B, N, H, C, 1]`.
    """

    q: Tensor
    k: Tensor
    u: Tensor
    pairs: Tensor
    to_end: Tensor
    from_start: Tensor

    def memories(self, memory_BNKU: Tensor) -> tuple[Tensor, Tensor]:
        """The memory before each chunk, `[B, N, H, K, U]`, and after the last."""
        added = (self.k * self.to_end).mT @ self.u
        before, memory_BNKU = states_before(added.unbind(2), self.from_start[..., -1:, :].unbind(2), memory_BNKU)
        return torch.stack(before, dim=2), memory_BNKU

    def gradients(
        self, grad_read_BNTU: Tensor, start_BNKU: Tensor, grad_memory: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of the tokens' queries, keys and values, `[B, N, T, ...]`, and of the memory before the segment."""
        length, grad_read = grad_read_BNTU.shape[2], _chunked(grad_read_BNTU, self.q.shape[3])
        before, _ = self.memories(start_BNKU)
        grad_start, factors = (self.q * self.from_start).mT @ grad_read, self.from_start[..., -1:, :]
        grad_ends, grad_memory = states_before(grad_start.unbind(2)[::-1], factors.unbind(2)[::-1], grad_memory)
        grad_end = torch.stack(grad_ends[::-1], dim=2)
        grad_scores = (grad_read @ self.u.mT).mul_(self.pairs)
        grad_q = torch.addcmul(grad_scores @ self.k, grad_read @ before.mT, self.from_start) * self.q.shape[-1] ** -0.5
        grad_k = torch.addcmul(grad_scores.mT @ self.q, self.u @ grad_end.mT, self.to_end)
        scores = (self.q @ self.k.mT).mul_(self.pairs)
        grad_u = scores.mT @ grad_read + (self.k * self.to_end) @ grad_end
        grad_q, grad_k, grad_v = (x.flatten(2, 3)[:, :, :length] for x in (grad_q, grad_k, grad_u[..., :-1]))
        return grad_q, grad_k, grad_v, grad_memory


def _mlstm_segment(
    place: slice, of_tokens: tuple[Tensor, Tensor, Tensor], logs: tuple[Tensor, Tensor, Tensor]
) -> _MlstmSegment:
    """A segment of all queries, keys and values; logs: all a and b, and b before the first token."""
    chunk, (above_BNT, largest_BNT, peak_BN) = min(CHUNK, of_tokens[2].shape[2]), logs
    q, k, v = (_chunked(x[:, :, place], chunk) for x in of_tokens)
    short = -(place.stop - place.start) % chunk
    above = torch.unflatten(F.pad(above_BNT[:, :, place], (0, short), value=-torch.inf), -1, (-1, chunk))
    largest = torch.unflatten(F.pad(largest_BNT[:, :, place], (0, short), mode="replicate"), -1, (-1, chunk))
    first_BN1 = largest_BNT[:, :, place.start - 1, None] if place.start else widen(peak_BN)[..., None]
    entry = torch.cat([first_BN1, largest[..., :-1, -1]], dim=-1)
    pairs = (above[..., None, :] - largest[..., None]).to(q.dtype)
    later_CC = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).triu(1)
    to_end = (above - largest[..., -1:]).to(q.dtype).exp()[..., None]
    from_start = (entry[..., None] - largest).to(q.dtype).exp()[..., None]
    pairs = pairs.masked_fill_(later_CC, -torch.inf).exp_()
    return _MlstmSegment(q * q.shape[-1] ** -0.5, k, F.pad(v, (0, 1), value=1.0), pairs, to_end, from_start)


def _chunked(x_BNTK: Tensor, chunk: int) -> Tensor:
    """`[B, N, T, K] -> [B, N, H, C, K]`, padded with zeros."""
    batch, heads, length, width = x_BNTK.shape
    padded = F.pad(x_BNTK, (0, 0, 0, -length % chunk)) if length % chunk else x_BNTK
    return padded.reshape(batch, heads, -1, chunk, width).contiguous()


def mlstm_segment_length(batch: int, heads: int, width: int, device: str = "cpu") -> int:
    """Tokens of a segment, whose values and pairs stay in the processor's cache."""
    return segment_length(batch, heads * (width + CHUNK), CHUNK, device)


def mlstm_flops(tokens: int, heads: int, keys: int, values: int) -> int:
    """FLOPs of `mlstm` for one sequence: 2 per multiply-add of its matrix products.

    keys, values: widths of one.
    """
    if tokens == 1:
        return 2 * heads * keys * (values + 1)
    chunk = min(CHUNK, tokens)
    flops_of_token = 2 * chunk * (keys + values + 1) + 4 * keys * (values + 1)
    return -(-tokens // chunk) * chunk * heads * flops_of_token


def empty_memory(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Memory:
    """The memory before the first token; shape: `(B, N, P)`."""
    h, c, n = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(3))
    return h, c, n, torch.full(shape, -torch.inf, device=device, dtype=dtype)


def slstm_reference(x_BT4NP: Tensor, weight_NPG: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
    """The definition, token by token: h, `[B, T, N, P]`, and the memory after the last token.

    weight_NPG: R of each head. memory: before the first token, if any.
    """
    batch, _, gates, heads, width = x_BT4NP.shape
    h, c, n, m = memory or empty_memory((batch, heads, width), x_BT4NP.device, x_BT4NP.dtype)
    outs = []
    for x_B4NP in x_BT4NP.unbind(1):
        mixed_NBG = h.transpose(0, 1) @ weight_NPG
        i, f, z, o = (x_B4NP + torch.unflatten(mixed_NBG, -1, (gates, width)).permute(1, 2, 0, 3)).unbind(1)
        faded = F.logsigmoid(f) + m
        m = torch.maximum(faded, i)
        share, decay = (i - m).exp(), (faded - m).exp()
        c, n = decay * c + share * z.tanh(), decay * n + share
        h = o.sigmoid() * c / n
        outs.append(h)
    return torch.stack(outs, dim=1), (h, c, n, m)


def slstm(x_BT4NP: Tensor, weight_NPG: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
    """`slstm_reference`, faster. Differentiable once, except with respect to the memory and from the last memory."""
    batch, length, _, heads, width = x_BT4NP.shape
    memory = memory or empty_memory((batch, heads, width), x_BT4NP.device, x_BT4NP.dtype)
    if length == 1:
        return slstm_reference(x_BT4NP, weight_NPG, memory)
    h_BTNP, *last = apply_eagerly(_Slstm, x_BT4NP, weight_NPG, *memory)
    return h_BTNP, (h_BTNP[:, -1].detach(), *last)


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
        _slstm_forward(logits_TNBG, weight_NPG, h_NBP.contiguous(), h_TNBP, cells_T2NBP, peaks_TNBP)
        h_BTNP = h_TNBP.permute(2, 0, 1, 3).contiguous()
        ctx.save_for_backward(logits_TNBG, weight_NPG, memory[0], h_BTNP, cells_T2NBP, peaks_TNBP)
        last = [part.transpose(0, 1) for part in (*cells_T2NBP[-1].clone(), peaks_TNBP[-1].clone())]
        ctx.mark_non_differentiable(*last)
        return h_BTNP, *last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_h_BTNP: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        logits_TNBG, weight_NPG, first_BNP, h_BTNP, cells_T2NBP, peaks_TNBP = ctx.saved_tensors
        h_TNBP = torch.cat([first_BNP[:, None], h_BTNP], dim=1).permute(1, 2, 0, 3)
        grad_h_TNBP = grad_h_BTNP.permute(1, 2, 0, 3)
        grad_logits_TNBG, grad_weight_NPG = torch.empty_like(logits_TNBG), torch.zeros_like(weight_NPG)
        carried = torch.zeros_like(peaks_TNBP[0]), torch.zeros_like(cells_T2NBP[0])
        segment = segment_length(1, SLSTM_ELEMENTS * peaks_TNBP[0].numel(), 1, logits_TNBG.device.type)
        for place in reversed(segment_slices(len(logits_TNBG), segment)):
            both = slice(place.start, place.stop + 1)
            slopes = _slstm_slopes(logits_TNBG[place], h_TNBP[both][1:], cells_T2NBP[both], peaks_TNBP[both])
            segment_TNBG = grad_logits_TNBG[place]
            carried = _slstm_backward(slopes, weight_NPG, grad_h_TNBP[place], carried, segment_TNBG)
            grad_weight_NPG += torch.einsum("tnbp,tnbg->npg", h_TNBP[place], segment_TNBG)
        grad_x_TNB4P = torch.unflatten(grad_logits_TNBG, -1, (GATES, -1))
        return grad_x_TNB4P.permute(2, 0, 3, 1, 4), grad_weight_NPG, None, None, None, None


def _slstm_forward(
    logits_TNBG: Tensor, weight_NPG: Tensor, h_NBP: Tensor, h_TNBP: Tensor, cells_T2NBP: Tensor, peaks_TNBP: Tensor
) -> None:
    """Add the recurrence to the logits of all tokens, and fill h, c and n, and m.

    cells and peaks begin with the memory before the first token.
    """
    i_T, f_T, z_T, o_T = (part.unbind(0) for part in torch.unflatten(logits_TNBG, -1, (GATES, -1)).unbind(-2))
    cells, peaks, (c_T, n_T) = cells_T2NBP.unbind(0), peaks_TNBP.unbind(0), (x.unbind(0) for x in cells_T2NBP.unbind(1))
    shares_2NBP, fed_2NBP = torch.empty_like(cells[0]), torch.ones_like(cells[0])
    (share, decay), (z_NBP, _), o_NBP = shares_2NBP, fed_2NBP, torch.empty_like(h_NBP)
    for token, (logits_NBG, next_NBP) in enumerate(zip(logits_TNBG.unbind(0), h_TNBP.unbind(0), strict=True)):
        torch.baddbmm(logits_NBG, h_NBP, weight_NPG, out=logits_NBG)
        faded, m = F.logsigmoid(f_T[token]).add_(peaks[token]), peaks[token + 1]
        torch.maximum(i_T[token], faded, out=m)
        torch.sub(i_T[token], m, out=share)
        torch.sub(faded, m, out=decay)
        shares_2NBP.exp_()
        torch.tanh(z_T[token], out=z_NBP)
        torch.addcmul(fed_2NBP * share, cells[token], decay, out=cells[token + 1])
        torch.sigmoid(o_T[token], out=o_NBP)
        h_NBP = torch.div(c_T[token + 1], n_T[token + 1], out=next_NBP).mul_(o_NBP)


def _slstm_slopes(logits_TNBG: Tensor, h_TNBP: Tensor, cells_T2NBP: Tensor, peaks_TNBP: Tensor) -> tuple[Tensor, ...]:
    """Derivatives at the tokens of a segment; c, n and m begin with the token before.

    In this order: of h by c and n; of c by i, f and z; of n by i and f; of h by o; of c and n by those of the token
    before.
    """
    i, f, z, o = torch.unflatten(logits_TNBG, -1, (GATES, -1)).unbind(-2)
    z, o, before_m, m = z.tanh(), o.sigmoid(), peaks_TNBP[:-1], peaks_TNBP[1:]
    share, decay = (i - m).exp(), (F.logsigmoid(f) + before_m - m).exp()
    (before_c, before_n), n = cells_T2NBP[:-1].unbind(1), cells_T2NBP[1:, 1]
    grad_f = decay * (-f).sigmoid()
    for_cells = torch.stack([o / n, -h_TNBP / n], dim=1)
    grad_c = torch.stack([share * z, grad_f * before_c, share * (1 - z * z)], dim=-2)
    grad_n = torch.stack([share, grad_f * before_n], dim=-2)
    return for_cells, grad_c, grad_n, h_TNBP * (1 - o), decay


def _slstm_backward(
    slopes: tuple[Tensor, ...],
    weight_NPG: Tensor,
    grad_h_TNBP: Tensor,
    carried: tuple[Tensor, Tensor],
    out_TNBG: Tensor,
) -> tuple[Tensor, Tensor]:
    """Write the gradients of a segment's logits to `out`; returns those of h, and of c and n, of the token before.

    carried: the gradients of h, and of c and n, of its last token that come from later tokens.
    """
    back_NGP, (carried_NBP, grad_cells_2NBP) = weight_NPG.mT.contiguous(), carried
    out_TNB4P = torch.unflatten(out_TNBG, -1, (GATES, -1))
    outs = (out_TNBG, out_TNB4P[..., :3, :], out_TNB4P[..., :2, :], out_TNB4P[..., 3, :])
    steps = zip(*(x.unbind(0)[::-1] for x in (grad_h_TNBP, *slopes, *outs)), strict=True)
    for grad_h, for_cells, grad_c, grad_n, for_o, decay, grad_NBG, grad_ifz, grad_if, grad_o in steps:
        grad_h_NBP = grad_h + carried_NBP
        grad_cells_2NBP = torch.addcmul(grad_cells_2NBP, grad_h_NBP, for_cells)
        c_NB1P, n_NB1P = grad_cells_2NBP.unsqueeze(-2).unbind(0)
        torch.mul(grad_c, c_NB1P, out=grad_ifz)
        grad_if.addcmul_(grad_n, n_NB1P)
        torch.mul(for_o, grad_h_NBP, out=grad_o)
        grad_cells_2NBP.mul_(decay)
        carried_NBP = grad_NBG @ back_NGP
    return carried_NBP, grad_cells_2NBP
