"""Products with low-rank sums: outputs and gradients are those of the sum, of a plain matrix and of few bits."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops import int4_linear, int8_linear
from linnet.ops.gated_feed_forward import (
    gated_feed_forward,
    gated_feed_forward_reference,
    gated_output,
    gated_output_reference,
)
from linnet.ops.low_rank import FrozenMatrix, LowRankParts, dense, low_rank_linear, low_rank_sum

INPUTS, HIDDEN, OUTPUTS, RANK = 40, 36, 20, 3

FORMS: dict[str, Callable[[Tensor], FrozenMatrix]] = {
    "plain": lambda weight_OI: weight_OI,
    "int8": int8_linear.quantize,
    "int4": int4_linear.quantize,
}


def parts_of(form: str, outputs: int, inputs: int, with_parts: bool = True) -> LowRankParts:
    weight = FORMS[form](torch.randn(outputs, inputs) / inputs**0.5)
    if not with_parts:
        return LowRankParts(weight)
    factors = [torch.randn(shape).div(4).requires_grad_() for shape in ((outputs, RANK), (RANK, inputs))]
    return LowRankParts(weight, *factors, 0.5)


def leaves(*found: Tensor | LowRankParts) -> list[Tensor]:
    """The tensors whose gradients are compared."""
    each = [part for one in found for part in (one[1:3] if isinstance(one, LowRankParts) else (one,))]
    return [part for part in each if part is not None]


def check(fused: Tensor, plain: Tensor, inputs: list[Tensor]) -> None:
    """Both have the same values and gradients."""
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)
    upstream = torch.randn_like(plain)
    gradients = [torch.autograd.grad(out, inputs, upstream) for out in (fused, plain)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("with_parts", [True, False], ids=["with-parts", "without"])
@pytest.mark.parametrize("rows", [(2, 7), (1,)], ids=["many", "one"])
def test_a_map_is_that_of_the_sum(form: str, with_parts: bool, rows: tuple[int, ...]):
    torch.manual_seed(0)
    x, bias = torch.randn(*rows, INPUTS, requires_grad=True), torch.randn(OUTPUTS, requires_grad=True)
    parts = parts_of(form, OUTPUTS, INPUTS, with_parts)
    plain = F.linear(x, low_rank_sum(parts), bias)
    check(low_rank_linear(x, parts, bias), plain, leaves(x, bias, parts))
    with torch.no_grad():
        torch.testing.assert_close(low_rank_linear(x, parts, bias), plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("recompute", [True, False], ids=["recomputed", "saved"])
def test_a_gated_feed_forward_is_that_of_the_sums(form: str, with_bias: bool, recompute: bool):
    torch.manual_seed(0)
    x = torch.randn(2, 7, INPUTS, requires_grad=True)
    up, down = parts_of(form, 2 * HIDDEN, INPUTS), parts_of(form, OUTPUTS, HIDDEN)
    biases = [torch.randn(n, requires_grad=True) if with_bias else None for n in (2 * HIDDEN, OUTPUTS)]
    fused = gated_feed_forward(x, up, biases[0], down, biases[1], recompute)
    plain = gated_feed_forward_reference(x, low_rank_sum(up), biases[0], low_rank_sum(down), biases[1])
    check(fused, plain, [*leaves(x, up, down), *filter(lambda bias: bias is not None, biases)])


def test_a_matrix_beside_a_sum_is_frozen():
    x, up = torch.randn(5, INPUTS, requires_grad=True), torch.randn(2 * HIDDEN, INPUTS)
    down = parts_of("plain", OUTPUTS, HIDDEN)
    plain = gated_feed_forward_reference(x, up, None, low_rank_sum(down), None)
    check(gated_feed_forward(x, up, None, down, None), plain, leaves(x, down))


@pytest.mark.parametrize("form", FORMS)
def test_a_gated_output_is_that_of_the_sum(form: str):
    torch.manual_seed(0)
    o, gate = torch.randn(2, 7, INPUTS, requires_grad=True), torch.randn(2, 7, OUTPUTS, requires_grad=True)
    parts = parts_of(form, OUTPUTS, INPUTS)
    plain = gated_output_reference(o, low_rank_sum(parts), gate)
    check(gated_output(o, parts, gate), plain, leaves(o, gate, parts))


@pytest.mark.parametrize("form", FORMS)
def test_nothing_of_the_size_of_the_matrix_is_saved_for_the_backward_pass(form: str):
    saved = list[tuple[int, ...]]()

    def note(tensor: Tensor) -> Tensor:
        saved.append(tuple(tensor.shape))
        return tensor

    x, parts = torch.randn(7, INPUTS, requires_grad=True), parts_of(form, OUTPUTS, INPUTS)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        low_rank_linear(x, parts)
    assert saved and (OUTPUTS, INPUTS) not in saved


@pytest.mark.parametrize("form", FORMS)
def test_autocast_multiplies_in_its_precision_and_gives_gradients_in_float32(form: str):
    torch.manual_seed(0)
    x, parts = torch.randn(7, INPUTS, requires_grad=True), parts_of(form, OUTPUTS, INPUTS)
    with torch.autocast("cpu", torch.bfloat16):
        out = low_rank_linear(x, parts)
    assert out.dtype == torch.bfloat16
    found = torch.autograd.grad(out, leaves(x, parts), torch.ones_like(out))
    expected = torch.autograd.grad(F.linear(x, low_rank_sum(parts)).sum(), leaves(x, parts))
    assert {gradient.dtype for gradient in found} == {torch.float32}
    torch.testing.assert_close(found, expected, rtol=5e-2, atol=0.1)


@pytest.mark.parametrize("with_gradients", [True, False])
def test_autocast_does_not_lose_parts_that_are_small_beside_the_matrix(with_gradients: bool):
    """Of a sum in bfloat16 a fifth would be left of parts that are 3 / 10,000 of the matrix."""
    torch.manual_seed(0)
    x, weight, up, down = (torch.randn(shape) for shape in ((512, 64), (64, 64), (64, 4), (4, 64)))
    added = (up @ down).std()
    up *= 3e-4 / added
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(with_gradients):
        found, before = (low_rank_linear(x, LowRankParts(weight, factor, down, 1.0)).float() for factor in (up, 0 * up))
    expected = x @ (up @ down).t()
    assert 0.8 < ((found - before) * expected).sum() / expected.square().sum() < 1.2


def test_few_bits_are_made_whole_as_at_inference():
    weight_OI = torch.randn(OUTPUTS, INPUTS)
    assert torch.equal(dense(int8_linear.quantize(weight_OI)), int8_linear.dequantize(int8_linear.quantize(weight_OI)))
    assert float((dense(int4_linear.quantize(weight_OI)) - weight_OI).abs().max()) < 0.5
