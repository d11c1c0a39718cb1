"""Rules of matrices in chunks: these go on from chunk to chunk, and all else is done for many chunks side by side.

A rule says what a chunk is, whatever matrix S stands before it: its tokens write `u - w S`, read `q S + read (u - w S)`
and leave `kept S + k^T (u - w S)` (the WY form; Yang et al., 2024, arXiv 2406.06484, section 3). One that takes nothing
out of S has no w: what its chunks add is known for all of them at once. Forward keeps its inputs and the matrix before
each chunk; backward makes the rest again, a segment of chunks at a time.

Legend: `B` batch, `M` key heads, `N` value heads, `R` value heads of a key head, `T` tokens, `K` width of keys, `V`
width of values; `H` chunks, `C` tokens of one. What is cut into chunks is `[B, M, R, H, C, ...]`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from linnet.ops.kernels import use_kernels
from linnet.ops.support import segment_length, segment_slices

MOST_KEYS = 256
"""Width of the keys that a kernel of the pass takes."""


class DeltaRule(NamedTuple):
    """What makes a rule.

    within: of what is cut into chunks, and of heads, `read, q, u, w, k, kept`; w may be None. fills: what stands behind
    the last token in each tensor of tokens, so that nothing is written there and nothing fades.
    """

    within: Callable[..., tuple[Any, ...]]
    fills: tuple[float, ...]


def in_chunks(
    rule: DeltaRule, chunk: int, of_tokens: Sequence[Tensor], of_heads: Sequence[Tensor], state_BNKV: Tensor
) -> tuple[Tensor, Tensor]:
    """What is read, `[B, N, T, V]`, and the state `[B, N, K, V]` behind the last token; differentiable once.

    of_tokens: `[B, M, T, ...]` or `[B, N, T, ...]`, the first of key heads, the third the values. of_heads: `[N, ...]`.
    """
    out_BNTV, end_BNKV = _as_it_is(rule, chunk, *of_tokens, *of_heads, state_BNKV)
    return out_BNTV, end_BNKV


@_disable_dynamo  # `torch.compiler.disable` imports the whole compiler, a second, wherever this file is read
def _as_it_is(*inputs: Any) -> Any:
    """Also in a compiled model: its loop over chunks would be another graph for every length."""
    return _InChunks.apply(*inputs)  # type: ignore[no-untyped-call]


class _InChunks(torch.autograd.Function):
    """The pass over the chunks by hand, both ways; gradients within them by autograd, from what is made again."""

    @staticmethod
    def forward(ctx: Any, rule: DeltaRule, chunk: int, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        *given, state_BNKV = inputs
        cut, of_heads = _cut(rule, chunk, given)
        outs, starts = [], []
        state = torch.unflatten(state_BNKV, 1, (cut[0].shape[1], -1))
        for place in _places(cut):
            read, q, u, w, k, kept = rule.within(*(x[:, :, :, place] for x in cut), *of_heads)
            before, written, state = _onwards(u, w, k, kept, state)
            starts.append(before)
            outs.append(q @ before + read @ written)
        ctx.rule, ctx.chunk = rule, chunk
        ctx.save_for_backward(*given, torch.cat(starts, dim=3))
        return _joined(outs, given[2]), state.flatten(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_out_BNTV: Tensor, of_end_BNKV: Tensor) -> tuple[Tensor | None, ...]:
        *given, starts = ctx.saved_tensors
        cut, of_heads = _cut(ctx.rule, ctx.chunk, given)
        heads, gradients = cut[0].shape[1], []
        of_out = _chunked(of_out_BNTV, heads, ctx.chunk)
        of_state = torch.unflatten(of_end_BNKV, 1, (heads, -1))
        with torch.autocast(of_out.device.type, enabled=False):  # the forward pass was in one precision
            for place in reversed(_places(cut)):
                tensors = (*(x[:, :, :, place] for x in cut), *of_heads)
                within = [x.detach().requires_grad_() for x in tensors]
                with torch.enable_grad():
                    parts = ctx.rule.within(*within)
                of_parts, of_state = _gradients(parts, starts[:, :, :, place], of_out[:, :, :, place], of_state)
                found = [part for part in parts if part is not None]
                gradients.append(torch.autograd.grad(found, within, of_parts))
        columns = list(zip(*reversed(gradients), strict=True))
        of_given = (
            _joined(column, x) if index < len(cut) else torch.stack(column).sum(0).view_as(x)
            for index, (column, x) in enumerate(zip(columns, given, strict=True))
        )
        return None, None, *of_given, of_state.flatten(1, 2)


def _onwards(u: Tensor, w: Tensor | None, k: Tensor, kept: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The matrix before each chunk, what each chunk writes, and the matrix behind the last one."""
    if w is None:
        before, state = _summed((k.transpose(-1, -2) @ u).unbind(3), kept.unbind(3), state)
        return torch.stack(before, dim=3), u, state
    if _kernels_run(u, w, k, kept, state):
        from linnet.ops.kernels._delta import pass_over_chunks

        found: tuple[Tensor, Tensor, Tensor] = pass_over_chunks(u, w, k, kept, state)
        return found
    before, written = [], []
    for u_h, w_h, k_h, kept_h in zip(*(x.unbind(3) for x in (u, w, k, kept)), strict=True):
        before.append(state)
        written.append(u_h - w_h @ state)
        state = state * kept_h + k_h.transpose(-1, -2) @ written[-1]
    return torch.stack(before, dim=3), torch.stack(written, dim=3), state


def _summed(added: Sequence[Tensor], kept: Sequence[Tensor], state: Tensor) -> tuple[list[Tensor], Tensor]:
    """The matrix before each of what is added in turn, and the one behind the last."""
    before = []
    for added_h, kept_h in zip(added, kept, strict=True):
        before.append(state)
        state = torch.addcmul(added_h, state, kept_h)
    return before, state


def _back(
    of_written: Tensor, of_before: Tensor, w: Tensor | None, k: Tensor, kept: Tensor, of_state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the matrix behind each chunk, of what each chunk writes, and of the matrix before the first one.

    of_written, of_before: what the outputs ask of each chunk's writes and of the matrix before it.
    """
    if w is None:
        behind, of_state = _summed(of_before.unbind(3)[::-1], kept.unbind(3)[::-1], of_state)
        of_end = torch.stack(behind[::-1], dim=3)
        return of_end, of_written + k @ of_end, of_state
    if _kernels_run(of_written, of_before, w, k, kept, of_state):
        from linnet.ops.kernels._delta import pass_back

        return pass_back(of_written, of_before, w, k, kept, of_state)
    of_ends, of_writes = [], []
    for chunk in reversed(range(w.shape[3])):
        k_h, w_h, kept_h, of_h, of_before_h = (x[:, :, :, chunk] for x in (k, w, kept, of_written, of_before))
        of_ends.append(of_state)
        of_writes.append(of_h + k_h @ of_state)
        of_state = of_state * kept_h + of_before_h - w_h.transpose(-1, -2) @ of_writes[-1]
    return torch.stack(of_ends[::-1], dim=3), torch.stack(of_writes[::-1], dim=3), of_state


def _kernels_run(*tensors: Tensor) -> bool:
    """Whether a kernel takes the pass: of float32, of matrices that one program can hold."""
    alike = all(x.dtype == torch.float32 for x in tensors)
    return alike and tensors[-1].shape[-2] <= MOST_KEYS and use_kernels(*tensors)


def _gradients(parts: Sequence[Any], before: Tensor, of_out: Tensor, of_state: Tensor) -> tuple[list[Tensor], Tensor]:
    """Of what a rule gives, and of the state before the first chunk, from those of outputs and of the last state."""
    read, q, u, w, k, kept = parts  # within a backward pass that is differentiable once, no graph comes of them
    written, of_written = u if w is None else u - w @ before, read.transpose(-1, -2) @ of_out
    of_before = q.transpose(-1, -2) @ of_out
    of_end, of_written, of_state = _back(of_written, of_before, w, k, kept, of_state)
    of_kept = (of_end * before).sum(-1, keepdim=True)
    of_read, of_q = of_out @ written.transpose(-1, -2), of_out @ before.transpose(-1, -2)
    of_w = [] if w is None else [-of_written @ before.transpose(-1, -2)]
    of_k = written @ of_end.transpose(-1, -2)
    return [of_read, of_q, of_written, *of_w, of_k, of_kept.sum_to_size(kept.shape)], of_state


def _cut(rule: DeltaRule, chunk: int, given: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """What is of tokens as chunks, and what is of heads beside them, `[M, R, 1, 1, ...]`."""
    count, heads = len(rule.fills), given[0].shape[1]
    of_tokens = [_chunked(x, heads, chunk, fill) for x, fill in zip(given[:count], rule.fills, strict=True)]
    return of_tokens, [torch.unflatten(x, 0, (heads, -1))[:, :, None, None] for x in given[count:]]


def _chunked(x_BNTK: Tensor, heads: int, chunk: int, fill: float = 0.0) -> Tensor:
    """`[B, N, T, K] -> [B, M, R, H, C, K]`, and `fill` behind."""
    batch, _, length, width = x_BNTK.shape
    padded = F.pad(x_BNTK, (0, 0, 0, -length % chunk), value=fill) if length % chunk else x_BNTK
    return padded.reshape(batch, heads, -1, padded.shape[2] // chunk, chunk, width)


def _joined(chunks: Sequence[Tensor], like: Tensor) -> Tensor:
    """Segments of chunks as tokens, in the shape of `like`: `[B, N, T, ...]`."""
    joined = torch.cat(list(chunks), dim=3).flatten(3, 4).flatten(1, 2)[:, :, : like.shape[2]]
    return joined.reshape(like.shape)


def _places(cut: Sequence[Tensor]) -> list[slice]:
    """Of the segments: chunks that are worked on side by side, of so many numbers of keys."""
    key, _, v, *_ = cut
    *_, chunks, chunk, width = key.shape
    segment = segment_length(v[..., 0, 0, 0].numel(), width, chunk, key.device.type)
    return segment_slices(chunks, segment // chunk)
