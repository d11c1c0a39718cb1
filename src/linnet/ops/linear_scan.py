"""Linear recurrences of channels, `h_t = a_t h_(t-1) + b_t`, and two units built on them: minLSTM and the RG-LRU.

`linear_scan_reference` is the definition. `linear_scan` cuts the stream into chunks (Blelloch, 1990, "Prefix sums and
their applications": the pairs (a, b) form a semigroup): all chunks advance side by side, token after token, first from
a state of zero, then from the state that the chunks before them produce. Batches with many rows and channels fill the
processor anyway, and have one chunk. Factors are never divided by each other and no logarithm is taken, so factors may
be 0, and nothing overflows that does not in the definition. The forward pass saves the factors and the states; the
backward pass is the same scan from the end, `g_t = dh_t + a_(t+1) g_(t+1)`, with `db_t = g_t` and `da_t = g_t h_(t-1)`.

Legend: `B` batch, `T` tokens, `E` channels, `S` tokens of a segment, `H` chunks, `C` tokens of one; what follows them
in `scan` and `scan_back` is any shape of a state.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.support import SEGMENT_NUMBERS, apply_eagerly

MIN_TOKENS = 16
"""Sequences up to this length are one chunk: shorter chunks would take as many operations."""

MAX_ROOT_SLOPE = 1000.0
"""Largest slope of the square root in the RG-LRU."""


def linear_scan_reference(a_BTE: Tensor, b_BTE: Tensor, h_BE: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The definition, step by step: all states `[B, T, E]`, and the last, `[B, E]`.

    h_BE: the state before the first token, if not 0.
    """
    h_BE = torch.zeros_like(b_BTE[:, 0]) if h_BE is None else h_BE
    states = []
    for a_BE, b_BE in zip(a_BTE.unbind(1), b_BTE.unbind(1), strict=True):
        h_BE = a_BE * h_BE + b_BE
        states.append(h_BE)
    return torch.stack(states, dim=1), h_BE


def linear_scan(a_BTE: Tensor, b_BTE: Tensor, h_BE: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`linear_scan_reference`, fast: time and memory linear in the length. Differentiable once."""
    if b_BTE.shape[1] == 1:
        return linear_scan_reference(a_BTE, b_BTE, h_BE)
    h_BE = torch.zeros_like(b_BTE[:, 0]) if h_BE is None else h_BE
    states_BTE: Tensor = apply_eagerly(_LinearScan, a_BTE, b_BTE, h_BE)
    return states_BTE, states_BTE[:, -1]


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a_BTE: Tensor, b_BTE: Tensor, h_BE: Tensor) -> Tensor:
        states_BTE, last_BE = torch.empty_like(b_BTE, memory_format=torch.contiguous_format), h_BE
        for place, chunk in segments(b_BTE.shape, b_BTE.device.type):
            a_BHCE, b_BHCE, states_BHCE = (in_chunks(part, place, chunk) for part in (a_BTE, b_BTE, states_BTE))
            last_BE = scan(a_BHCE.unbind(2), b_BHCE.unbind(2), last_BE, states_BHCE.unbind(2))
        ctx.save_for_backward(a_BTE, states_BTE, h_BE)
        return states_BTE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream_BTE: Tensor) -> tuple[Tensor, ...]:
        a_BTE, states_BTE, h_BE = ctx.saved_tensors
        grad_b_BTE = upstream_BTE.clone(memory_format=torch.contiguous_format)
        grad_h_BE = torch.zeros_like(h_BE)
        for place, chunk in reversed(list(segments(a_BTE.shape, a_BTE.device.type))):
            a_BHCE, grad_b_BHCE = (in_chunks(part, place, chunk) for part in (a_BTE, grad_b_BTE))
            grad_h_BE = scan_back(a_BHCE.unbind(2), grad_b_BHCE.unbind(2), grad_h_BE)
        grad_a_BTE = torch.empty_like(grad_b_BTE)
        torch.mul(grad_b_BTE[:, 0], h_BE, out=grad_a_BTE[:, 0])
        torch.mul(grad_b_BTE[:, 1:], states_BTE[:, :-1], out=grad_a_BTE[:, 1:])
        return grad_a_BTE, grad_b_BTE, grad_h_BE


def segments(shape: Sequence[int], device: str = "cpu") -> Iterator[tuple[slice, int]]:
    """The segments and the length of their chunks: whole chunks, and at last a remainder shorter than one.

    shape: `[B, T, E]`. On a GPU, where the number of steps matters, there is one segment.
    """
    batch, length, channels = shape
    segment = length
    if device == "cpu":
        segment = min(length, max(MIN_TOKENS, SEGMENT_NUMBERS // max(1, batch * channels)))
    # Three operations for each token of a chunk, and one for each chunk.
    chunk = segment if segment <= MIN_TOKENS else round((segment / 3) ** 0.5)
    begin, segment = 0, segment // chunk * chunk
    while begin < length:
        size = min(segment, (length - begin) // chunk * chunk or length - begin)
        yield slice(begin, begin + size), min(chunk, size)
        begin += size


def in_chunks(x_BTE: Tensor, place: slice, chunk: int) -> Tensor:
    """The tokens of a segment in chunks, a view `[B, H, C, E]`."""
    return x_BTE[:, place].view(len(x_BTE), -1, chunk, x_BTE.shape[2])


def scan(factors: Sequence[Tensor], added: Sequence[Tensor], h_B: Tensor, states: Sequence[Tensor]) -> Tensor:
    """`h_t = factor_t h_(t-1) + added_t` for all tokens, into `states`; returns the last state.

    The sequences have an element for each token of a chunk, `[B, H, ...]` of all chunks. h_B: the state before the
    first token, `[B, ...]`. `states` may be `added`.
    """
    h_BH = h_B[:, None]
    if factors[0].shape[1] > 1:
        # The state of each chunk from a state of zero, and the factor by which the state before the chunk decays.
        own_BH, decay_BH = added[0], reduce(torch.mul, factors)
        for factor_BH, added_BH in zip(factors[1:], added[1:], strict=True):
            own_BH = torch.addcmul(added_BH, factor_BH, own_BH)
        chunks = zip(own_BH.unbind(1)[:-1], decay_BH.unbind(1)[:-1], strict=True)
        h_BH = torch.stack([*accumulate(chunks, lambda h, own: torch.addcmul(own[0], own[1], h), initial=h_B)], dim=1)
    for factor_BH, added_BH, state_BH in zip(factors, added, states, strict=True):
        h_BH = torch.addcmul(added_BH, factor_BH, h_BH, out=state_BH)
    return h_BH[:, -1].clone()  # a view would keep all of them alive


def scan_back(factors: Sequence[Tensor], added: Sequence[Tensor], carried_B: Tensor) -> Tensor:
    """`scan` from the end: `g_t = added_t + factor_(t+1) g_(t+1)`, in place of `added`.

    carried_B: the last term for the last token, `[B, ...]`; returns the term for the token before the first.
    """
    carried_BH = carried_B[:, None]
    if factors[0].shape[1] > 1:
        own_BH, decay_BH = added[-1], reduce(torch.mul, factors)
        for factor_BH, added_BH in zip(factors[:0:-1], added[-2::-1], strict=True):
            own_BH = torch.addcmul(added_BH, factor_BH, own_BH)
        own_BH = factors[0] * own_BH
        chunks = zip(own_BH.unbind(1)[:0:-1], decay_BH.unbind(1)[:0:-1], strict=True)
        before = accumulate(chunks, lambda carried, own: torch.addcmul(own[0], own[1], carried), initial=carried_B)
        carried_BH = torch.stack([*before][::-1], dim=1)
    g_BH = added[-1].add_(carried_BH)
    for factor_BH, added_BH in zip(factors[:0:-1], added[-2::-1], strict=True):
        g_BH = added_BH.addcmul_(factor_BH, g_BH)
    return factors[0][:, 0] * g_BH[:, 0]


def minlstm_reference(
    forget_BTE: Tensor, input_BTE: Tensor, candidate_BTE: Tensor, h_BE: Tensor
) -> tuple[Tensor, Tensor]:
    """minLSTM (Feng et al., 2024, arXiv 2410.01201, section 3.2), step by step: all states `[B, T, E]`, and the last.

        h_t = f_t / (f_t + i_t) h_(t-1) + i_t / (f_t + i_t) c_t

    forget_BTE, input_BTE: logits of the gates f and i, whose sigmoids depend on the input alone. candidate_BTE: c.
    h_BE: the state before the first token.
    """
    states = []
    tokens = zip(*(part.unbind(1) for part in (forget_BTE, input_BTE, candidate_BTE)), strict=True)
    for forget_BE, input_BE, candidate_BE in tokens:
        forget_share_BE, input_share_BE = gate_shares(forget_BE, input_BE)
        h_BE = forget_share_BE * h_BE + input_share_BE * candidate_BE
        states.append(h_BE)
    return torch.stack(states, dim=1), h_BE


def minlstm(forget_BTE: Tensor, input_BTE: Tensor, candidate_BTE: Tensor, h_BE: Tensor) -> tuple[Tensor, Tensor]:
    """`minlstm_reference`, fast: time and memory linear in the length, parallel over it. Differentiable once.

    Unlike the paper's own scan it needs no logarithm of c, which may be negative.
    """
    forget_share_BTE, input_share_BTE = gate_shares(forget_BTE, input_BTE)
    return linear_scan(forget_share_BTE, input_share_BTE * candidate_BTE, h_BE)


def gate_shares(forget: Tensor, input_: Tensor) -> tuple[Tensor, Tensor]:
    """`f / (f + i)` and `i / (f + i)` from the gates' logits, exact where both gates underflow in float32.

    `f / (f + i) = sigmoid(log f - log i)`.
    """
    difference = F.logsigmoid(forget) - F.logsigmoid(input_)
    return difference.sigmoid(), (-difference).sigmoid()


def positive(x: Tensor) -> Tensor:
    """`x + 1/2` for x >= 0, else `sigmoid(x)` (appendix B.3): positive, with a slope that jumps from 1/4 to 1 at 0."""
    return x.relu() + x.clamp(max=0).sigmoid()


def rglru_reference(
    x_BTE: Tensor, input_gate_BTE: Tensor, gate_BTE: Tensor, rate_E: Tensor, begins_B1: Tensor, h_BE: Tensor
) -> tuple[Tensor, Tensor]:
    """The real-gated linear recurrent unit of Griffin (De et al., 2024, arXiv 2402.19427, section 2.4), step by step.

        a_t = exp(-s r_t),   h_t = a_t h_(t-1) + sqrt(1 - a_t^2) (i_t x_t)      (eqs. 3 and 4)

    Returns all states `[B, T, E]`, and the last, `[B, E]`. input_gate_BTE, gate_BTE: the gates i and r, in (0, 1).
    rate_E: s > 0 (`c softplus` of a parameter). begins_B1: bool, true where the first token begins a stream (`[1, 1]`
    if rows agree). h_BE: the state before it.

    The decay stays a logarithm up to its last use, so that a rate near 0 keeps its digits: `1 - a^2` is
    `-expm1(-2 s r)`. The first token of a stream is not scaled by the root, because no past has to be balanced (as in
    the published code, unlike the paper). The slope of the root is infinite where nothing decays; as in the published
    code it is limited to `MAX_ROOT_SLOPE`.
    """
    states = []
    for place, (x_BE, i_BE, r_BE) in enumerate(
        zip(*(part.unbind(1) for part in (x_BTE, input_gate_BTE, gate_BTE)), strict=True)
    ):
        scale_BE = _LimitedRoot.apply(-torch.expm1(-2 * rate_E * r_BE))  # type: ignore[no-untyped-call]
        if place == 0:
            scale_BE = torch.where(begins_B1, 1.0, scale_BE)
        h_BE = (-rate_E * r_BE).exp() * h_BE + scale_BE * i_BE * x_BE
        states.append(h_BE)
    return torch.stack(states, dim=1), h_BE


def rglru(
    x_BTE: Tensor, input_gate_BTE: Tensor, gate_BTE: Tensor, rate_E: Tensor, begins_B1: Tensor, h_BE: Tensor
) -> tuple[Tensor, Tensor]:
    """`rglru_reference`, fast: time and memory linear in the length, parallel over it. Differentiable once."""
    inputs = x_BTE, input_gate_BTE, gate_BTE, rate_E, begins_B1
    a_BTE, b_BTE = _GatedInputs.apply(*inputs)  # type: ignore[no-untyped-call]
    return linear_scan(a_BTE, b_BTE, h_BE)


class _LimitedRoot(torch.autograd.Function):
    """The square root, with a slope of at most `MAX_ROOT_SLOPE`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        root = x.sqrt()
        ctx.save_for_backward(root)
        return root

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        root: Tensor = ctx.saved_tensors[0]
        return upstream / (2 * root).clamp(min=1 / MAX_ROOT_SLOPE)


class _GatedInputs(torch.autograd.Function):
    """Decays a and inputs b of the recurrence, `[B, T, E]` each; the backward pass recomputes decays and roots."""

    @staticmethod
    def forward(
        ctx: Any, x_BTE: Tensor, input_gate_BTE: Tensor, gate_BTE: Tensor, rate_E: Tensor, begins_B1: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x_BTE, input_gate_BTE, gate_BTE, rate_E, begins_B1)
        log_a_BTE = gate_BTE * -rate_E
        scale_BTE = (2 * log_a_BTE).expm1_().neg_().sqrt_()
        scale_BTE[:, 0].masked_fill_(begins_B1, 1)
        return log_a_BTE.exp_(), scale_BTE.mul_(input_gate_BTE).mul_(x_BTE)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_a_BTE: Tensor, grad_b_BTE: Tensor) -> tuple[Tensor | None, ...]:
        x_BTE, input_gate_BTE, gate_BTE, rate_E, begins_B1 = ctx.saved_tensors
        log_a_BTE = gate_BTE * -rate_E
        scale_BTE = (2 * log_a_BTE).expm1_().neg_().sqrt_()
        scale_BTE[:, 0].masked_fill_(begins_B1, 1)
        a_BTE = log_a_BTE.exp_()
        grad_scaled_BTE = grad_b_BTE * scale_BTE
        # scale = sqrt(1 - a^2), so its derivative by a is -a / scale
        slope_BTE = a_BTE / scale_BTE.clamp_(min=0.5 / MAX_ROOT_SLOPE)
        slope_BTE[:, 0].masked_fill_(begins_B1, 0)
        grad_a_BTE = grad_a_BTE.addcmul(grad_b_BTE * input_gate_BTE * x_BTE, slope_BTE, value=-1)
        grad_log_a_BTE = grad_a_BTE.mul_(a_BTE)
        grad_rate_E = -(grad_log_a_BTE * gate_BTE).sum((0, 1))
        return grad_scaled_BTE * input_gate_BTE, grad_scaled_BTE * x_BTE, grad_log_a_BTE * -rate_E, grad_rate_E, None
