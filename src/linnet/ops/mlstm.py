"""The matrix memory of xLSTM: linear attention with gates, of which that of the input is an exponential.

Beck et al., 2024 (arXiv 2405.04517), section 2.3 with the stabilizer m of its appendix, read as in xLSTM 7B (Beck et
al., 2025, arXiv 2503.13427). With logits i and f of the gates, queries divided by sqrt(K), and u_t = [v_t, 1]:

    m_t = max(log sigmoid(f_t) + m_(t-1), i_t)
    S_t = exp(log sigmoid(f_t) + m_(t-1) - m_t) S_(t-1) + exp(i_t - m_t) k_t u_t^T
    [r_t, n_t] = S_t^T q_t,   h_t = r_t / (max(|n_t|, exp(-m_t)) + eps)

`mlstm_reference` is the definition; `mlstm` takes segments, cut into chunks: within a chunk all pairs of tokens, from
chunk to chunk the memories. With F_t the sum of log sigmoid(f) up to t, a_j = i_j - F_j, and b_t the largest of a_j up
to t, the weight of token j at token t is exp(a_j - b_t), at most 1, and m_t = b_t + F_t. Sums and largest are float64,
so that their differences keep the digits of float32 however long the stream. As a_j stands in the weights of key j
alone, and b_t in those of query t, their gradients are k_j . dk_j and -(h_t . dh_t) eps / denominator: no gradient of a
pair's weight is ever made. Forward keeps its inputs, what it gives, the normalizer of each token and the memory before
each segment.

Legend: `B` batch, `N` heads, `T` tokens, `K` width of queries and keys, `V` width of values, `U` = V + 1: values and
the normalizer; `H` chunks, `C` tokens of one.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from linnet.ops.support import is_exporting, segment_length, segment_slices

CHUNK = 64
"""Tokens of a chunk."""
EPS = 1e-6
"""Added to the normalizer, as published."""


def mlstm_reference(
    q_BNTK: Tensor,
    k_BNTK: Tensor,
    v_BNTV: Tensor,
    input_BNT: Tensor,
    forget_BNT: Tensor,
    memory_BNKU: Tensor | None = None,
    peak_BN: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The definition, token by token: `[B, N, T, V]`; the memory `[B, N, K, U]` behind the last one, and m, `[B, N]`.

    input_BNT, forget_BNT: logits of the gates. memory_BNKU, peak_BN: before the first token, if not 0.
    """
    memory_BNKU, peak_BN = _begun(memory_BNKU, peak_BN, k_BNTK, v_BNTV)
    q_BNTK, u_BNTU = q_BNTK * q_BNTK.shape[3] ** -0.5, F.pad(v_BNTV, (0, 1), value=1.0)
    kept_BNT, outs = F.logsigmoid(forget_BNT), []
    for token in range(v_BNTV.shape[2]):
        faded_BN, input_BN = kept_BNT[..., token] + peak_BN, input_BNT[..., token]
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
    """The same, fast: in time and memory linear in the length. Differentiable once."""
    memory_BNKU, peak_BN = _begun(memory_BNKU, peak_BN, k_BNTK, v_BNTV)
    if v_BNTV.shape[2] == 1:
        return mlstm_reference(q_BNTK, k_BNTK, v_BNTV, input_BNT, forget_BNT, memory_BNKU, peak_BN)
    h_BTNV, memory_BNKU, peak_BN = _as_it_is(q_BNTK, k_BNTK, v_BNTV, input_BNT, forget_BNT, memory_BNKU, peak_BN)
    return h_BTNV.transpose(1, 2), memory_BNKU, peak_BN


def _begun(memory_BNKU: Tensor | None, peak_BN: Tensor | None, k_BNTK: Tensor, v_BNTV: Tensor) -> tuple[Tensor, Tensor]:
    """What is before the first token."""
    heads = v_BNTV.shape[:2]
    if memory_BNKU is None:
        memory_BNKU = v_BNTV.new_zeros(*heads, k_BNTK.shape[3], v_BNTV.shape[3] + 1)
    return memory_BNKU, v_BNTV.new_zeros(heads) if peak_BN is None else peak_BN


def _denominator(normalizer: Tensor, peak: Tensor) -> Tensor:
    return torch.maximum(normalizer.abs(), (-peak).exp()) + EPS


@_disable_dynamo  # `torch.compiler.disable` imports the whole compiler, a second, wherever this file is read
def _as_it_is(*inputs: Tensor) -> Any:
    """Also in a compiled model: its loop over segments would be another graph for every length."""
    return _Mlstm.apply(*inputs)  # type: ignore[no-untyped-call]


class _Mlstm(torch.autograd.Function):
    """What it gives lies `[B, T, N, V]` in memory, as the map behind the heads reads it."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_BNTK, k_BNTK, v_BNTV, input_BNT, forget_BNT, memory_BNKU, peak_BN = inputs
        above, largest, sums = _logs(input_BNT, forget_BNT, peak_BN)
        batch, heads, length, width = v_BNTV.shape
        h_BTNV, normalizer_BNT = v_BNTV.new_empty(batch, length, heads, width), v_BNTV.new_empty(batch, heads, length)
        starts = []
        for place in _places(v_BNTV):
            starts.append(memory_BNKU)
            segment = MemorySegment.of(place, (q_BNTK, k_BNTK, v_BNTV), (above, largest, peak_BN))
            before, memory_BNKU = segment.carried(memory_BNKU)
            read = segment.scores() @ segment.u + (segment.q * segment.from_start) @ before
            r, n = torch.split(read.flatten(2, 3)[:, :, : place.stop - place.start], [width, 1], dim=-1)
            normalizer_BNT[:, :, place] = n[..., 0]
            peaks = (largest + sums)[:, :, place, None].to(n.dtype)
            torch.div(r, _denominator(n, peaks), out=h_BTNV[:, place].transpose(1, 2))
        ctx.save_for_backward(*inputs[:5], peak_BN, h_BTNV, normalizer_BNT, torch.stack([*starts, memory_BNKU]))
        return h_BTNV, memory_BNKU, (largest[..., -1] + sums[..., -1]).to(peak_BN.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_h_BTNV: Tensor, of_memory: Tensor, of_peak: Tensor) -> tuple[Tensor, ...]:
        q, k, v, *gates, peak_BN, h_BTNV, normalizer_BNT, starts = ctx.saved_tensors
        with torch.enable_grad(), torch.autocast(v.device.type, enabled=False):
            leaves = [x.detach().requires_grad_() for x in (*gates, peak_BN)]
            logs = _logs(*leaves)
        above, largest, sums = (x.detach() for x in logs)
        of_read, of_largest, of_sums = _of_reads(of_h_BTNV, h_BTNV, normalizer_BNT, largest + sums)
        of_largest[..., -1] += of_peak - (of_memory * starts[-1]).sum((-1, -2))
        of_sums[..., -1] += of_peak
        of_q, of_k, of_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        for place, start in reversed(list(zip(_places(v), starts[:-1], strict=True))):
            segment = MemorySegment.of(place, (q, k, v), (above, largest, peak_BN))
            *found, of_memory = segment.gradients(of_read[:, :, place], start, of_memory)
            for gradient, of_place in zip((of_q, of_k, of_v), found, strict=True):
                gradient[:, :, place] = of_place
        of_logs = (k * of_k).sum(-1).double(), of_largest, of_sums
        of_gates = list(torch.autograd.grad(logs, leaves, of_logs))
        of_gates[-1] += (of_memory * starts[0]).sum((-1, -2))
        return of_q, of_k, of_v, *of_gates[:-1], of_memory, of_gates[-1]


def _largest_so_far(x_BNT: Tensor) -> Tensor:
    """Of the numbers up to each."""
    if not is_exporting():
        return x_BNT.cummax(-1).values
    reach, length = 1, x_BNT.shape[-1]  # ONNX has no operator for it
    while reach < length:
        x_BNT = torch.maximum(x_BNT, F.pad(x_BNT[..., :-reach], (reach, 0), value=-torch.inf))
        reach *= 2
    return x_BNT


def _logs(input_BNT: Tensor, forget_BNT: Tensor, peak_BN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """a, b and F of each token, float64 `[B, N, T]`."""
    sums_BNT = F.logsigmoid(forget_BNT.double()).cumsum(-1)
    above_BNT = input_BNT.double() - sums_BNT
    return above_BNT, torch.maximum(_largest_so_far(above_BNT), peak_BN.double()[..., None]), sums_BNT


def _of_reads(
    of_h_BTNV: Tensor, h_BTNV: Tensor, normalizer_BNT: Tensor, peaks_BNT: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of what is read, `[B, N, T, U]`; of b, which cancels but for eps; of F, by exp(-m) alone."""
    peaks_BNT = peaks_BNT.to(h_BTNV.dtype)
    denominator_BNT = _denominator(normalizer_BNT, peaks_BNT)
    along_BNT = torch.linalg.vecdot(of_h_BTNV, h_BTNV).transpose(1, 2)
    share_BNT, normalized_BNT = EPS / denominator_BNT, normalizer_BNT.abs() >= (-peaks_BNT).exp()
    of_n_BNT = -(normalizer_BNT.sign() * normalized_BNT) * along_BNT / denominator_BNT
    of_r_BNTV = of_h_BTNV.transpose(1, 2) / denominator_BNT[..., None]
    of_sums_BNT = along_BNT * ((1 - share_BNT) * ~normalized_BNT)
    of_read_BNTU = torch.cat([of_r_BNTV, of_n_BNT[..., None]], dim=-1)
    return of_read_BNTU, -(along_BNT * share_BNT).double(), of_sums_BNT.double()


@dataclass
class MemorySegment:
    """Chunks that are worked on side by side: queries, keys `[B, N, H, C, K]`, values and a 1 `[B, N, H, C, U]`.

    pairs: what is left of each token at each later one of its chunk (reader, source), `[B, N, H, C, C]`, 0 at earlier
    ones. to_end: of each at the last of its chunk; from_start: at each of what was before the chunk, `[B, N, H, C, 1]`.
    """

    q: Tensor
    k: Tensor
    u: Tensor
    pairs: Tensor
    to_end: Tensor
    from_start: Tensor

    @classmethod
    def of(cls, place: slice, of_tokens: tuple[Tensor, Tensor, Tensor], logs: tuple[Tensor, Tensor, Tensor]) -> Self:
        """Of all queries, keys and values, all a and b, and b before the first token."""
        chunk, (above_BNT, largest_BNT, peak_BN) = chunk_length(of_tokens[2].shape[2]), logs
        q, k, v = (_chunked(x[:, :, place], chunk) for x in of_tokens)
        short = -(place.stop - place.start) % chunk
        above = torch.unflatten(F.pad(above_BNT[:, :, place], (0, short), value=-torch.inf), -1, (-1, chunk))
        largest = torch.unflatten(F.pad(largest_BNT[:, :, place], (0, short), mode="replicate"), -1, (-1, chunk))
        first_BN1 = largest_BNT[:, :, place.start - 1, None] if place.start else peak_BN.double()[..., None]
        entry = torch.cat([first_BN1, largest[..., :-1, -1]], dim=-1)
        pairs = (above[..., None, :] - largest[..., None]).to(q.dtype)
        later_CC = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).triu(1)
        to_end = (above - largest[..., -1:]).to(q.dtype).exp()[..., None]
        from_start = (entry[..., None] - largest).to(q.dtype).exp()[..., None]
        pairs = pairs.masked_fill_(later_CC, -torch.inf).exp_()
        return cls(q * q.shape[-1] ** -0.5, k, F.pad(v, (0, 1), value=1.0), pairs, to_end, from_start)

    def scores(self) -> Tensor:
        """What each token takes of each, `[B, N, H, C, C]`."""
        return (self.q @ self.k.mT).mul_(self.pairs)

    def carried(self, memory_BNKU: Tensor) -> tuple[Tensor, Tensor]:
        """The memory before each chunk, `[B, N, H, K, U]`, and behind the last."""
        before, added = [], (self.k * self.to_end).mT @ self.u
        for added_BNKU, kept_BN1 in zip(added.unbind(2), self.from_start[..., -1, :].unbind(2), strict=True):
            before.append(memory_BNKU)
            memory_BNKU = torch.addcmul(added_BNKU, memory_BNKU, kept_BN1[..., None])
        return torch.stack(before, dim=2), memory_BNKU

    def gradients(
        self, of_read_BNTU: Tensor, start_BNKU: Tensor, of_memory: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of queries, keys and values of the tokens, `[B, N, T, ...]`, and of the memory before the segment."""
        length, of_read = of_read_BNTU.shape[2], _chunked(of_read_BNTU, self.q.shape[3])
        before, _ = self.carried(start_BNKU)
        of_start, of_ends = (self.q * self.from_start).mT @ of_read, []
        for of_start_h, kept_h in zip(
            *(x.unbind(2)[::-1] for x in (of_start, self.from_start[..., -1:, :])), strict=True
        ):
            of_ends.append(of_memory)
            of_memory = torch.addcmul(of_start_h, of_memory, kept_h)
        of_end = torch.stack(of_ends[::-1], dim=2)
        of_scores = (of_read @ self.u.mT).mul_(self.pairs)
        of_q = torch.addcmul(of_scores @ self.k, of_read @ before.mT, self.from_start) * self.q.shape[-1] ** -0.5
        of_k = torch.addcmul(of_scores.mT @ self.q, self.u @ of_end.mT, self.to_end)
        of_u = self.scores().mT @ of_read + (self.k * self.to_end) @ of_end
        of_q, of_k, of_v = (x.flatten(2, 3)[:, :, :length] for x in (of_q, of_k, of_u[..., :-1]))
        return of_q, of_k, of_v, of_memory


def chunk_length(tokens: int) -> int:
    """Tokens of a chunk of a sequence; the last one is filled up."""
    return min(CHUNK, tokens)


def _chunked(x_BNTK: Tensor, chunk: int) -> Tensor:
    """`[B, N, T, K] -> [B, N, H, C, K]`, zeros behind."""
    batch, heads, length, width = x_BNTK.shape
    padded = F.pad(x_BNTK, (0, 0, 0, -length % chunk)) if length % chunk else x_BNTK
    return padded.reshape(batch, heads, -1, chunk, width).contiguous()


def _places(v_BNTV: Tensor) -> list[slice]:
    """Of the segments."""
    batch, heads, length, width = v_BNTV.shape
    return segment_slices(length, mlstm_segment_length(batch, heads, width, v_BNTV.device.type))


def mlstm_segment_length(batch: int, heads: int, width: int, device: str = "cpu") -> int:
    """Tokens of a segment: their values, and the pairs of their chunks, stay in the processor's cache."""
    return segment_length(batch, heads * (width + CHUNK), CHUNK, device)


def mlstm_flops(tokens: int, heads: int, keys: int, values: int) -> int:
    """FLOPs of `mlstm` for one sequence: 2 per multiply-add of its matrix products.

    keys, values: widths of one.
    """
    if tokens == 1:
        return 2 * heads * keys * (values + 1)
    chunk = chunk_length(tokens)
    of_token = 2 * chunk * (keys + values + 1) + 4 * keys * (values + 1)
    return -(-tokens // chunk) * chunk * heads * of_token
