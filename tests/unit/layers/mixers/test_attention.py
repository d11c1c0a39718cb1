"""Attention against its equations, one query, head and key at a time, and its starting values."""

import math
from copy import deepcopy

import pytest
import torch
from one_layer import drawn
from torch import Tensor

from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.layers.contract import Place
from linnet.layers.key_value import ValueResidualSpec
from linnet.layers.mixers.attention import Attention, AttentionSpec, RotarySpec
from linnet.layers.positions import AlibiSpec, ShawSpec
from linnet.nn.norms import HeadNormSpec

WIDTH, LENGTH = 12, 9
SPECS = {
    "head_dim": AttentionSpec(heads=2, head_dim=10),
    "groups": AttentionSpec(
        heads=4, kv_heads=2, head_dim=6, bias=True, rotary=RotarySpec(pairing="adjacent", base=50.0)
    ),
    "part": AttentionSpec(heads=2, rotary=RotarySpec(fraction=0.7), scale=0.3, out_bias=True),
    "window": AttentionSpec(heads=2, window=4, sink_tokens=2, rotary=None, gate="head"),
    "sinks": AttentionSpec(heads=3, sinks=True, gate="channel", window=3),
    "norm": AttentionSpec(heads=2, query_key_norm=HeadNormSpec(kind="rms", eps=0.1)),
    "joint norm": AttentionSpec(
        heads=4, kv_heads=2, head_dim=4, query_key_norm=HeadNormSpec(joint=True, unit_offset=True, eps=0.1)
    ),
    "soft cap": AttentionSpec(heads=2, soft_cap=0.8, sinks=True),
    "alibi": AttentionSpec(heads=3, positions=AlibiSpec()),
}
SLOPES = {3: (2**-4, 2**-8, 2**-2)}
"""Of ALiBi: a half to a power of 8 / n for n heads, n a power of two; then every second of twice as many."""


def rotated(x_K: Tensor, position: int, spec: RotarySpec) -> Tensor:
    """RoFormer, equation 15: each pair of channels turned by the position times `base^(-2 i / d)`."""
    width = 2 * math.floor(len(x_K) * spec.fraction / 2)
    out_K = x_K.clone()
    for i in range(width // 2):
        a, b = (2 * i, 2 * i + 1) if spec.pairing == "adjacent" else (i, i + width // 2)
        angle = position * spec.base ** (-2 * i / width)
        out_K[a] = math.cos(angle) * x_K[a] - math.sin(angle) * x_K[b]
        out_K[b] = math.sin(angle) * x_K[a] + math.cos(angle) * x_K[b]
    return out_K


def defined(mixer: Attention, spec: AttentionSpec, x_TD: Tensor, first_TE: Tensor | None = None) -> Tensor:
    """Vaswani et al. (arXiv 1706.03762), equation 1, with what the fields add. first_TE: values of an earlier layer."""
    heads, kv_heads, width = spec.heads, spec.kv_heads or spec.heads, spec.head_dim or WIDTH // spec.heads
    joint_TF = x_TD @ mixer.query_key_value.weight.t()
    joint_TF = joint_TF if mixer.query_key_value.bias is None else joint_TF + mixer.query_key_value.bias
    q_TF, k_TE, v_TE = joint_TF.split([heads * width, kv_heads * width, kv_heads * width], dim=1)
    if first_TE is not None:
        own, first = mixer.value_residual.mix.shares
        v_TE = own * v_TE + first * first_TE

    def prepared(row_F: Tensor, head: int, position: int, norm: torch.nn.Module | None) -> Tensor:
        own = slice(head * width, (head + 1) * width)
        x_K = row_F[own]
        if norm is not None:
            of_all = x_K if not spec.query_key_norm.joint else row_F
            gain = norm.weight + (1 if spec.query_key_norm.unit_offset else 0)
            x_K = of_all / (of_all.square().mean() + norm.eps).sqrt() * gain
            x_K = x_K[own] if spec.query_key_norm.joint else x_K
        return x_K if spec.rotary is None else rotated(x_K, position, spec.rotary)

    norms = mixer.query_key_norm
    rows = []
    for t in range(len(x_TD)):
        reads = []
        for head in range(heads):
            group = head * kv_heads // heads
            seen = [
                s for s in range(t + 1) if spec.window is None or s > t - spec.window or s < (spec.sink_tokens or 0)
            ]
            q_K = prepared(q_TF[t], head, t, None if norms is None else norms.query)
            keys = [prepared(k_TE[s], group, s, None if norms is None else norms.key) for s in seen]
            scores = torch.stack([q_K @ k_K for k_K in keys]) * (width**-0.5 if spec.scale is None else spec.scale)
            if spec.soft_cap is not None:
                scores = spec.soft_cap * (scores / spec.soft_cap).tanh()
            if spec.positions is not None:
                scores = scores - SLOPES[heads][head] * torch.tensor([t - s for s in seen])
            if mixer.sinks_N is not None:
                scores = torch.cat([scores, mixer.sinks_N[head : head + 1]])
            weights = (scores.exp() / scores.exp().sum())[: len(seen)]
            read_K = sum(w * v_TE[s, group * width : (group + 1) * width] for w, s in zip(weights, seen, strict=True))
            if spec.gate is not None:
                gates = 1 / (1 + (-(mixer.gate.to_gates.weight @ x_TD[t])).exp())
                read_K = read_K * (gates[head] if spec.gate == "head" else gates[head * width : (head + 1) * width])
            reads.append(read_K)
        rows.append(mixer.out.weight @ torch.cat(reads) + (0 if mixer.out.bias is None else mixer.out.bias))
    return torch.stack(rows)


def assert_defined(spec: AttentionSpec, mixer: Attention, layout: BatchLayout, first_TE: Tensor | None = None) -> None:
    x_TD = torch.randn(LENGTH, WIDTH, dtype=torch.float64, requires_grad=True)
    found, expected = mixer(x_TD[None], None, layout)[0], defined(mixer, spec, x_TD, first_TE)
    close = {} if spec.rotary is None else {"rtol": 1e-6, "atol": 1e-6}  # cosines and sines are rounded to float32
    torch.testing.assert_close(found, expected, **close)
    variables, upstream = (x_TD, *mixer.parameters()), torch.randn_like(expected)
    of_found, of_expected = (torch.autograd.grad(out, variables, upstream) for out in (found, expected))
    for one, other in zip(of_found, of_expected, strict=True):
        torch.testing.assert_close(one, other, **close)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_outputs_and_all_gradients_match_the_equations(spec: AttentionSpec):
    assert_defined(spec, drawn(spec, WIDTH), BatchLayout())


def test_values_of_an_earlier_layer_are_added_by_their_shares():
    spec = AttentionSpec(heads=2, value_residual=ValueResidualSpec(own=0.6, first=0.3))
    earlier, mixer = drawn(spec, WIDTH), spec.build(Place(WIDTH, 32)).double()
    layout, x_TD = BatchLayout(record=AuxiliaryOutputs()), torch.randn(LENGTH, WIDTH, dtype=torch.float64)
    earlier(x_TD[None], None, layout)
    assert mixer.value_residual.mix.shares.tolist() == pytest.approx([0.6, 0.3])
    values_TE = x_TD @ earlier.query_key_value.weight.t()[:, 2 * WIDTH :]
    assert_defined(spec, mixer, layout, values_TE)


def test_rotary_positions_are_those_of_the_paper():
    assert (RotarySpec().base, RotarySpec().fraction, RotarySpec().pairing) == (10000.0, 1.0, "halves")


def test_learned_sinks_start_at_a_score_of_0():
    assert not AttentionSpec(heads=2, sinks=True).build(Place(WIDTH, 32)).sinks_N.any()


def test_gradients_are_as_close_to_float64_as_the_page_says():
    """The largest score is about 600; the error of a score is in the exponent of its weight."""
    spec = AttentionSpec(heads=2, head_dim=12, rotary=None)
    exact = drawn(spec, WIDTH)
    rounded, x_BTD = deepcopy(exact).float(), 12 * torch.randn(1, 40, WIDTH)
    q_TNK, k_TNK = exact.query_key_value(x_BTD.double())[0, :, :48].view(40, 2, 2, 12).unbind(1)
    assert 500 < (torch.einsum("tnk,snk->nts", q_TNK, k_TNK).abs().max() * 12**-0.5) < 5000
    gradients = []
    for mixer, dtype in ((rounded, torch.float32), (exact, torch.float64)):
        x = x_BTD.to(dtype).requires_grad_()
        gradients.append(torch.autograd.grad(mixer(x).square().sum(), (x, *mixer.parameters())))
    for found, expected in zip(*gradients, strict=True):
        assert (found - expected).norm() <= 1e-4 * expected.norm()


@torch.no_grad()
def test_a_prefix_as_long_as_the_model_is_wide_is_not_the_whole_row():
    torch.manual_seed(0)
    mixer, x_BTD = AttentionSpec(heads=2).build(Place(WIDTH, 32)).double(), torch.randn(1, WIDTH + 4, WIDTH).double()
    later_BTD = x_BTD.clone()
    later_BTD[:, -1] += 1.0
    before, after = (mixer(x, None, BatchLayout(prefixes=(WIDTH,))) for x in (x_BTD, later_BTD))
    torch.testing.assert_close(before[:, :-1], after[:, :-1], rtol=0, atol=1e-12)


def test_learned_sinks_are_refused_with_the_vectors_of_shaw():
    """The keys of Shaw's positions are stored as differences to the last one, which a sink has no score of."""
    with pytest.raises(ValueError, match="sinks: true: must be false with positions of kind shaw"):
        AttentionSpec(heads=2, sinks=True, rotary=None, positions=ShawSpec()).check(16)
    AttentionSpec(heads=2, sinks=True, rotary=None, positions=AlibiSpec()).check(16)
