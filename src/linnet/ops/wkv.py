"""The weighted average of RWKV version 4 (Peng et al., 2023, arXiv 2305.13048, section 3.1, equation 14).

Separately for each channel, with a rate `w > 0` and a bonus `u` for the token at the output:

    out_t = (sum over i < t of  e^(k_i - (t-1-i) w) v_i  +  e^(u + k_t) v_t)  /  (the same with 1 for v)

No exponential is computed that could overflow: the state is the average m of the tokens before and the logarithm s of
their weight, so that with `s' = logaddexp(s - w, k)` a token moves the average by its share of the weight,

    out_t = m + sigmoid(u + k_t - s) (v_t - m),   m <- m + sigmoid(k_t - s + w) (v_t - m),   s <- s'

and all shares are between 0 and 1. A stream begins with `s = -inf`, the weight of nothing. A chunk of tokens is like
one token with their weight and their average, which fades as fast as each of them: so `wkv` computes the average of
each chunk, then the state before each chunk, and then all chunks side by side. The forward pass saves keys, values and
the state before each segment. The backward pass recomputes the rest, and is a linear scan from the end: of the
gradients of m, and of those of the weight, which is shared by all averages.

Legend: `B` batch, `T` tokens, `E` channels, `H` chunks of a segment, `C` tokens of one.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.linear_scan import in_chunks, scan_back, segments
from linnet.ops.support import apply_eagerly


class Average(NamedTuple):
    """The average of the values of all tokens so far, and the logarithm of their weight, `[B, E]` each."""

    mean: Tensor
    log_weight: Tensor


def wkv_reference(
    k_BTE: Tensor, v_BTE: Tensor, rate_E: Tensor, bonus_E: Tensor, mean_BE: Tensor, log_weight_BE: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The definition, step by step: outputs `[B, T, E]`; average and weight of all tokens, `[B, E]` each.

    rate_E: w; bonus_E: u. mean_BE, log_weight_BE: of the tokens before (`-inf` if there are none).
    """
    outs, mean_BE = [], mean_BE + 0 * rate_E  # so that the rates have a gradient (of 0) for a single token
    for k_BE, v_BE in zip(k_BTE.unbind(1), v_BTE.unbind(1), strict=True):
        share_BE = (bonus_E + k_BE - log_weight_BE).sigmoid()
        outs.append((1 - share_BE) * mean_BE + share_BE * v_BE)
        faded_BE = log_weight_BE - rate_E
        share_BE = (k_BE - faded_BE).sigmoid()
        mean_BE = (1 - share_BE) * mean_BE + share_BE * v_BE
        log_weight_BE = torch.logaddexp(faded_BE, k_BE)
    return torch.stack(outs, dim=1), mean_BE, log_weight_BE


def wkv(
    k_BTE: Tensor, v_BTE: Tensor, rate_E: Tensor, bonus_E: Tensor, mean_BE: Tensor, log_weight_BE: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`wkv_reference`, fast: time and memory linear in the length, parallel over it. Differentiable once."""
    if k_BTE.shape[1] == 1:
        return wkv_reference(k_BTE, v_BTE, rate_E, bonus_E, mean_BE, log_weight_BE)
    inputs = k_BTE.contiguous(), v_BTE.contiguous(), rate_E, bonus_E, mean_BE, log_weight_BE
    out_BTE, mean_BE, log_weight_BE = apply_eagerly(_Wkv, *inputs)
    return out_BTE, mean_BE, log_weight_BE


class _Wkv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, k_BTE: Tensor, v_BTE: Tensor, rate_E: Tensor, bonus_E: Tensor, mean_BE: Tensor, log_weight_BE: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        out_BTE, before, past = torch.empty_like(v_BTE), [], Average(mean_BE, log_weight_BE)
        for place, chunk in segments(k_BTE.shape, k_BTE.device.type):
            before.append(past)
            k_BHCE, v_BHCE, out_BHCE = (in_chunks(part, place, chunk) for part in (k_BTE, v_BTE, out_BTE))
            averages_BHCE, past = _before_each_token(k_BHCE, v_BHCE, rate_E, past)
            share_BHCE = (bonus_E + k_BHCE).sub_(averages_BHCE.log_weight).sigmoid_()
            torch.lerp(averages_BHCE.mean, v_BHCE, share_BHCE, out=out_BHCE)
        ctx.save_for_backward(k_BTE, v_BTE, rate_E, bonus_E, past.mean, *(part for each in before for part in each))
        return out_BTE, *past

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out_BTE: Tensor, grad_mean_BE: Tensor, grad_weight_BE: Tensor) -> tuple[Tensor, ...]:
        k_BTE, v_BTE, rate_E, bonus_E, last_mean_BE, *before = ctx.saved_tensors
        grad_k_BTE, grad_v_BTE = torch.empty_like(k_BTE), torch.empty_like(v_BTE)
        grad_out_BTE = grad_out_BTE.contiguous()
        grad_rate_E, grad_bonus_E = torch.zeros_like(rate_E), torch.zeros_like(bonus_E)
        # The second is the gradient of `sum of weights x (average - out)`: that of the logarithm of the weight is `m g
        # - q`.
        grad_after_B2E = torch.stack([grad_mean_BE, last_mean_BE * grad_mean_BE - grad_weight_BE], dim=1)
        places = list(segments(k_BTE.shape, k_BTE.device.type))
        for index, (place, chunk) in reversed(list(enumerate(places))):
            k_BHCE, v_BHCE = (in_chunks(part, place, chunk) for part in (k_BTE, v_BTE))
            past = Average(*before[2 * index : 2 * index + 2])
            averages_BHCE, _ = _before_each_token(k_BHCE, v_BHCE, rate_E, past)
            averages_BSE = Average(*(part.flatten(1, 2) for part in averages_BHCE))
            of_tokens = [part[:, place] for part in (k_BTE, v_BTE, grad_k_BTE, grad_v_BTE, grad_out_BTE)]
            result = _segment_back(of_tokens, averages_BSE, chunk, rate_E, bonus_E, grad_after_B2E)
            grad_after_B2E, grad_rates_E, grad_bonuses_E = result
            grad_rate_E += grad_rates_E
            grad_bonus_E += grad_bonuses_E
        grad_first_mean_BE = grad_after_B2E[:, 0]
        grad_first_weight_BE = before[0] * grad_first_mean_BE - grad_after_B2E[:, 1]
        return grad_k_BTE, grad_v_BTE, grad_rate_E, grad_bonus_E, grad_first_mean_BE, grad_first_weight_BE


def _before_each_token(k_BHCE: Tensor, v_BHCE: Tensor, rate_E: Tensor, past: Average) -> tuple[Average, Average]:
    """The state before each token, `[B, H, C, E]`, and after the last token, `[B, E]`."""
    chunk = k_BHCE.shape[2]
    ages_C1 = torch.arange(chunk - 1, -1, -1, device=k_BHCE.device, dtype=k_BHCE.dtype)[:, None]
    aged_BHCE = k_BHCE - ages_C1 * rate_E
    weight_BHE = aged_BHCE.logsumexp(2)
    mean_BHE = aged_BHCE.sub_(weight_BHE[:, :, None]).exp_().mul_(v_BHCE).sum(2)
    heads_BHE, past = _walk(weight_BHE, mean_BHE, chunk * rate_E, past, dim=1)
    averages_BHCE, _ = _walk(k_BHCE, v_BHCE, rate_E, heads_BHE, dim=2)
    return averages_BHCE, past


def _walk(k: Tensor, v: Tensor, rate_E: Tensor, past: Average, dim: int) -> tuple[Average, Average]:
    """The state before each token along `dim`, a dimension that `past` does not have, and after the last token."""
    averages = Average(torch.empty_like(v), torch.empty_like(k))
    places = zip(*(part.unbind(dim) for part in (k, v, *averages)), strict=True)
    for k_one, v_one, mean_one, weight_one in places:
        mean_one.copy_(past.mean)
        weight_one.copy_(past.log_weight)
        faded = weight_one - rate_E
        past = Average(torch.lerp(mean_one, v_one, (k_one - faded).sigmoid_()), torch.logaddexp(faded, k_one))
    return averages, past


def _segment_back(
    of_tokens: list[Tensor], averages: Average, chunk: int, rate_E: Tensor, bonus_E: Tensor, grad_after_B2E: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Both gradients before a segment, `[B, 2, E]`, from those after it, and the gradients of rate and bonus, `[E]`.

    of_tokens: keys, values, their gradients (to be written), and the gradients of the outputs, `[B, S, E]` each.
    averages: the state before each token.
    """
    k_BSE, v_BSE, grad_k_BSE, grad_v_BSE, grad_out_BSE = of_tokens
    mean_BSE, log_weight_BSE = averages
    output_share_BSE = (bonus_E + k_BSE).sub_(log_weight_BSE).sigmoid_()
    direct_BSE = grad_out_BSE * output_share_BSE
    out_BSE = torch.lerp(mean_BSE, v_BSE, output_share_BSE)
    decay_BSE = (log_weight_BSE - rate_E).sub_(k_BSE)
    share_BSE = (-decay_BSE).sigmoid_()
    decay_BSE.sigmoid_()
    grad_past_BSE = torch.sub(grad_out_BSE, direct_BSE, out=output_share_BSE)
    p_BSE, q_BSE, grad_before_B2E = _gradients_after_each_token(
        decay_BSE, grad_past_BSE, out_BSE, grad_after_B2E, chunk
    )
    torch.addcmul(direct_BSE, share_BSE, p_BSE, out=grad_v_BSE)
    grad_bonus_BSE = direct_BSE.mul_(torch.sub(v_BSE, out_BSE, out=out_BSE))
    grad_rate_BSE = decay_BSE.mul_(q_BSE - mean_BSE.mul_(p_BSE))
    torch.addcmul(grad_bonus_BSE, share_BSE, (v_BSE * p_BSE).sub_(q_BSE), out=grad_k_BSE)
    return grad_before_B2E, grad_rate_BSE.sum((0, 1)), grad_bonus_BSE.sum((0, 1))


def _gradients_after_each_token(
    decay_BSE: Tensor, grad_past_BSE: Tensor, out_BSE: Tensor, grad_after_B2E: Tensor, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`g_(t-1) = grad_past_t + decay_t g_t` from the end: both gradients after each token, and before the first.

    For the second, pulled is multiplied by `out`.
    """
    batch, length, channels = decay_BSE.shape
    grad_after_BS2E = decay_BSE.new_empty(batch, length, 2, channels)
    grad_after_BS2E[:, -1] = 0  # the scan adds the gradient from after the segment
    grad_after_BS2E[:, :-1, 0] = grad_past_BSE[:, 1:]
    torch.mul(grad_past_BSE[:, 1:], out_BSE[:, 1:], out=grad_after_BS2E[:, :-1, 1])
    chunks = (batch, length // chunk, chunk, -1, channels)
    carried_B2E = scan_back(decay_BSE.view(chunks).unbind(2), grad_after_BS2E.view(chunks).unbind(2), grad_after_B2E)
    first_B2E = torch.stack([grad_past_BSE[:, 0], grad_past_BSE[:, 0] * out_BSE[:, 0]], dim=1)
    return grad_after_BS2E[:, :, 0], grad_after_BS2E[:, :, 1], first_B2E + carried_B2E
