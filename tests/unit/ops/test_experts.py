import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from same_gradients import assert_same_with_gradients, double

from linnet.ops.experts import dispatch_experts, experts, experts_reference
from linnet.ops.gated import gated_silu, gated_silu_reference
from linnet.ops.routing import routes

INNER = {"gated": (gated_silu, gated_silu_reference, 2), "plain": (F.gelu, F.gelu, 1)}


def maps(count: int, width: int, hidden: int, factor: int) -> tuple[list, list]:
    return [double(factor * hidden, width) for _ in range(count)], [double(width, hidden) for _ in range(count)]


@pytest.mark.parametrize("kind", INNER)
@given(st.sampled_from([1, 2, 7, 63, 65]), *[st.integers(1, 5)] * 4, st.booleans())
def test_fast_form_is_the_reference_with_all_gradients(kind, rows, width, hidden, count, top_k, drops):
    """Some experts have no token; some choices are dropped."""
    inner, slow_inner, factor = INNER[kind]
    x_RD, logits_RE, (ups, downs) = double(rows, width), torch.randn(rows, count), maps(count, width, hidden, factor)
    chosen_RK = routes(logits_RE, min(top_k, count), "softmax", normalize=False).chosen
    weight_RK = double(*chosen_RK.shape)
    if drops:
        dropped_RK = torch.rand(chosen_RK.shape) < 0.5
        dropped_RK[0, 0] = False
        chosen_RK = chosen_RK.masked_fill(dropped_RK, count)
    fast = experts(x_RD, weight_RK, chosen_RK, ups, downs, inner)
    slow = experts_reference(x_RD, weight_RK, chosen_RK, ups, downs, slow_inner)
    assert_same_with_gradients(fast, slow, (x_RD, weight_RK, *ups, *downs))
    of_maps = [lambda x, up=up, down=down: inner(x @ up.t()) @ down.t() for up, down in zip(ups, downs, strict=True)]
    torch.testing.assert_close(dispatch_experts(x_RD, weight_RK, chosen_RK, of_maps), slow)


def test_gradients_are_those_of_finite_differences():
    x_RD, logits_RE, (ups, downs) = double(5, 3), double(5, 4), maps(4, 3, 2, 2)

    def form(x, logits, *weights):
        chosen, weight, _ = routes(logits, 2, "softmax", normalize=True)
        return experts(x, weight, chosen, weights[:4], weights[4:], gated_silu)

    assert torch.autograd.gradcheck(form, (x_RD, logits_RE, *ups, *downs))


def test_no_token_and_no_expert_in_use():
    ups, downs = maps(2, 3, 4, 1)
    assert experts(double(0, 3), double(0, 1), torch.zeros(0, 1, dtype=torch.int64), ups, downs, F.gelu).shape == (0, 3)
    x_RD = double(4, 3)
    out = experts(x_RD, double(4, 1), torch.full((4, 1), 2), ups, downs, F.gelu)
    assert not out.any() and not torch.autograd.grad(out.sum(), x_RD)[0].any()


def test_backwards_inside_autocast_and_products_in_its_precision():
    x_RD, weight_RK = torch.randn(6, 4, requires_grad=True), torch.rand(6, 1)
    ups, downs = ([torch.randn(8, 4)] * 2, [torch.randn(4, 4)] * 2)
    arguments = (x_RD, weight_RK, torch.arange(6)[:, None] % 2, ups, downs, gated_silu)
    out = experts(*arguments)
    with torch.autocast("cpu", torch.bfloat16):
        (inside,) = torch.autograd.grad(out.sum(), x_RD, retain_graph=True)
        assert experts(*arguments).dtype == torch.bfloat16
    assert torch.equal(inside, torch.autograd.grad(out.sum(), x_RD)[0])


def test_what_is_kept_is_the_tokens_and_the_outputs_of_the_first_maps():
    x_RD, (ups, downs) = double(32, 3), maps(4, 3, 8, 2)
    chosen_RK, weight_RK, _ = routes(double(32, 4), 2, "softmax", normalize=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        experts(x_RD, weight_RK, chosen_RK, ups, downs, gated_silu)
    of_maps = sum(weight.numel() for weight in (*ups, *downs))
    assert sum(x.numel() for x in kept) == x_RD.numel() + of_maps + 2 * weight_RK.numel() + 2 * 32 * 16
