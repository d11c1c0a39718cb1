import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from same_gradients import assert_same_with_gradients, double

from linnet.ops import cross_entropy
from linnet.ops.cross_entropy import (
    GROUP,
    IGNORE_INDEX,
    HeadArguments,
    HeadGradients,
    apply_soft_cap,
    linear_cross_entropy,
    linear_cross_entropy_reference,
    linear_token_nats,
    linear_token_nats_reference,
    logit_slices,
    row_max,
    row_max_reference,
    soft_cap_,
    token_cross_entropy,
)


@pytest.mark.parametrize("z_loss", [0.0, 0.3])
@pytest.mark.parametrize("soft_cap", [None, 0.7])
@pytest.mark.parametrize("ignored", [[], [0, 4, 5], list(range(9))])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("slice_tokens", [1, 4, 100])
def test_linear_cross_entropy(
    with_bias: bool,
    slice_tokens: int,
    ignored: list[int],
    soft_cap: float | None,
    z_loss: float,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(cross_entropy, "tokens_per_slice", lambda weight_VD: slice_tokens)
    x, weight, bias = double(9, 4), double(7, 4), double(7) if with_bias else None
    targets = torch.randint(7, (9,))
    targets[ignored] = IGNORE_INDEX
    forms = linear_cross_entropy, linear_cross_entropy_reference
    fast, slow = (form(x, weight, bias, targets, soft_cap, z_loss) for form in forms)
    assert fast.correct == slow.correct
    inputs = tuple(tensor for tensor in (x, weight, bias) if tensor is not None)
    torch.testing.assert_close(fast.nats, slow.nats)
    torch.testing.assert_close(fast.squared_log_z, slow.squared_log_z)
    assert_same_with_gradients(fast.total, slow.total, inputs)


@pytest.mark.parametrize("z_loss", [0.0, 0.3])
@pytest.mark.parametrize("soft_cap", [None, 0.7])
@pytest.mark.parametrize("slice_tokens", [4, 100])
def test_weights_of_targets_have_the_gradients_of_the_definition(slice_tokens, soft_cap, z_loss, monkeypatch):
    monkeypatch.setattr(cross_entropy, "tokens_per_slice", lambda weight_VD: slice_tokens)
    inputs, targets = (double(9, 4), double(7, 4), double(7)), torch.randint(7, (9,))
    targets[[0, 5]], weights = IGNORE_INDEX, torch.rand(9)
    weights[3] = 0.0
    forms = linear_cross_entropy, linear_cross_entropy_reference
    fast, slow = (form(*inputs, targets, soft_cap, z_loss, weights) for form in forms)
    plain = linear_cross_entropy(*inputs, targets, soft_cap, z_loss)
    one_by_one = sum(
        weights[n] * linear_cross_entropy(inputs[0][n : n + 1], *inputs[1:], targets[n : n + 1], soft_cap, z_loss).total
        for n in range(9)
    )
    torch.testing.assert_close(fast.total, one_by_one)
    for name in ("nats", "correct", "squared_log_z"):
        torch.testing.assert_close(getattr(fast, name), getattr(plain, name), msg=f"{name} has no weights")
        torch.testing.assert_close(getattr(slow, name), getattr(plain, name), msg=f"{name} has no weights")
    assert not fast.nats.requires_grad
    assert_same_with_gradients(fast.total, slow.total, inputs)


def test_the_z_loss_is_added_and_reported():
    x, weight, targets = double(9, 4), double(7, 4), torch.randint(7, (9,))
    plain, found = (linear_cross_entropy(x, weight, None, targets, z_loss=z_loss) for z_loss in (0.0, 0.5))
    squares = (x @ weight.t()).exp().sum(-1).log().square().sum()
    torch.testing.assert_close(found.squared_log_z, squares.detach())
    torch.testing.assert_close(found.total, plain.nats + 0.5 * squares)
    torch.testing.assert_close(found.nats, plain.nats.detach())
    assert not found.nats.requires_grad and plain.squared_log_z is None and plain.total is plain.nats


@pytest.mark.parametrize("soft_cap", [None, 0.7])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("slice_tokens", [1, 4, 100])
def test_nats_of_single_targets_have_the_gradients_of_the_definition(slice_tokens, with_bias, soft_cap, monkeypatch):
    monkeypatch.setattr(cross_entropy, "tokens_per_slice", lambda weight_VD: slice_tokens)
    x, weight, bias = double(9, 4), double(7, 4), double(7) if with_bias else None
    targets = torch.randint(7, (9,))
    targets[[0, 5]] = IGNORE_INDEX
    fast, slow = (form(x, weight, bias, targets, soft_cap) for form in (linear_token_nats, linear_token_nats_reference))
    inputs = tuple(tensor for tensor in (x, weight, bias) if tensor is not None)
    assert fast[0] == fast[5] == 0
    assert_same_with_gradients(fast, slow, inputs)


@pytest.mark.parametrize("slice_tokens", [4, 100])
def test_gradients_with_a_z_loss_equal_finite_differences(slice_tokens, monkeypatch):
    monkeypatch.setattr(cross_entropy, "tokens_per_slice", lambda weight_VD: slice_tokens)
    targets = torch.randint(7, (9,))
    targets[3] = IGNORE_INDEX

    def total(*inputs: torch.Tensor) -> torch.Tensor:
        return linear_cross_entropy(*inputs, targets, 1.5, 0.3).total

    inputs = double(9, 4), double(7, 4), double(7)
    for number, gradient in enumerate(torch.autograd.grad(total(*inputs), inputs)):
        for place in range(gradient.numel()):
            ends = []
            for step in (-1e-6, 1e-6):
                moved = [tensor.detach().clone() for tensor in inputs]
                moved[number].view(-1)[place] += step
                ends.append(total(*moved))
            torch.testing.assert_close(gradient.view(-1)[place], (ends[1] - ends[0]) / 2e-6, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("slice_tokens", [4, 100])
def test_gradients_of_capped_logits_equal_finite_differences(slice_tokens: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cross_entropy, "tokens_per_slice", lambda weight_VD: slice_tokens)
    targets = torch.randint(7, (9,))
    targets[3] = IGNORE_INDEX

    inputs = double(9, 4), double(7, 4), double(7)
    gradients = torch.autograd.grad(linear_cross_entropy(*inputs, targets, 1.5).nats, inputs)
    for number, gradient in enumerate(gradients):
        for place in range(gradient.numel()):
            ends = []
            for step in (-1e-6, 1e-6):
                moved = [tensor.detach().clone() for tensor in inputs]
                moved[number].view(-1)[place] += step
                ends.append(linear_cross_entropy(*moved, targets, 1.5).nats)
            slope = (ends[1] - ends[0]) / 2e-6
            torch.testing.assert_close(gradient.view(-1)[place], slope, rtol=1e-5, atol=1e-7)


def test_capped_logits_give_the_loss_of_the_capped_logits():
    x, weight, targets = double(9, 4), double(7, 4), torch.randint(7, (9,))
    logits = 0.5 * torch.tanh(x @ weight.t() / 0.5)
    expected = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
    torch.testing.assert_close(linear_cross_entropy(x, weight, None, targets, 0.5).nats, expected)


def test_linear_cross_entropy_of_huge_logits_is_finite():
    x, weight = 1e4 * torch.randn(5, 4), torch.randn(7, 4)
    assert linear_cross_entropy(x, weight, None, torch.randint(7, (5,))).nats.isfinite()


def test_linear_cross_entropy_without_gradients():
    with torch.no_grad():
        x, weight, targets = torch.randn(5, 4), torch.randn(7, 4), torch.randint(7, (5,))
        fast, slow = (f(x, weight, None, targets) for f in (linear_cross_entropy, linear_cross_entropy_reference))
    torch.testing.assert_close(fast.nats.float(), slow.nats)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("slice_tokens", [4, 100])
def test_linear_cross_entropy_under_autocast(
    slice_tokens: int, soft_cap: float | None, weighted: bool, monkeypatch: pytest.MonkeyPatch
):
    torch.manual_seed(0)
    monkeypatch.setattr(cross_entropy, "tokens_per_slice", lambda weight_VD: slice_tokens)
    x, weight = (torch.randn(*shape, requires_grad=True) for shape in ((40, 16), (7, 16)))
    targets, weights = torch.randint(7, (40,)), torch.rand(40) if weighted else None
    gradients = []
    for dtype in (torch.bfloat16, torch.float32):
        with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
            loss = linear_cross_entropy(x, weight, None, targets, soft_cap, weights_N=weights)
        assert loss.nats.dtype == loss.total.dtype == torch.float64
        gradients.append(torch.autograd.grad(loss.total, (x, weight)))
    for rough, exact in zip(*gradients, strict=True):
        assert rough.dtype == torch.float32
        torch.testing.assert_close(rough, exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("soft_cap", [None, 0.7])
@pytest.mark.parametrize("slice_tokens", [1, 4, 100])
def test_losses_of_single_targets_add_up_to_the_sum(slice_tokens, soft_cap, monkeypatch):
    monkeypatch.setattr(cross_entropy, "tokens_per_slice", lambda weight_VD: slice_tokens)
    x, weight, bias, targets = double(9, 4), double(7, 4), double(7), torch.randint(7, (9,))
    targets[[0, 4]] = IGNORE_INDEX
    found = token_cross_entropy(x, weight, bias, targets, soft_cap)
    assert found.nats.dtype == torch.float64 and not found.nats.requires_grad
    for place in range(9):
        one = linear_cross_entropy_reference(x[place : place + 1], weight, bias, targets[place : place + 1], soft_cap)
        expected = torch.zeros(()) if targets[place] == IGNORE_INDEX else one.nats
        torch.testing.assert_close(found.nats[place], expected.double())
        assert found.correct[place] == (one.correct == 1)


@pytest.mark.parametrize(("vocabulary", "tokens"), [(7, 299_593), (2048, 1024), (32_000, 256), (1 << 20, 256)])
def test_a_slice_fits_into_the_cache_and_has_enough_tokens_for_a_product(vocabulary: int, tokens: int):
    assert cross_entropy.tokens_per_slice(torch.empty(vocabulary, 1)) == tokens


@given(
    rows=st.integers(1, 4),
    numbers=st.integers(1, 5 * GROUP),
    levels=st.sampled_from([1, 3, 1000]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_row_max_returns_the_first_of_equal_maxima(rows, numbers, levels, dtype):
    logits = torch.randint(levels, (rows, numbers)).to(dtype) - levels
    for fast, slow in zip(row_max(logits), row_max_reference(logits), strict=True):
        assert torch.equal(fast, slow)


@pytest.mark.parametrize("place", [0, GROUP - 1, GROUP, 2 * GROUP + 3, 3 * GROUP, 3 * GROUP + 4])
def test_row_max_finds_every_index_among_minus_infinities(place):
    logits = torch.full((2, 3 * GROUP + 5), float("-inf"))
    logits[1, place] = -1e30
    highest, found = row_max(logits)
    assert found[:, 0].tolist() == [0, place] and highest[:, 0].tolist() == [float("-inf"), logits[1, place].item()]


def test_row_max_propagates_nan():
    logits = torch.randn(2, 2 * GROUP)
    logits[1, GROUP + 7] = torch.nan
    highest, place = row_max(logits)
    assert highest[1].isnan() and place[1] == GROUP + 7 and highest[0].isfinite()


@given(st.floats(0.1, 50), st.floats(-1e4, 1e4))
def test_logits_stay_within_the_cap_and_in_order(cap: float, logit: float):
    pair = apply_soft_cap(torch.tensor([logit, logit + 1.0], dtype=torch.float64), cap)
    assert (pair.abs() <= cap).all()
    assert pair[0] <= pair[1]


def test_small_logits_stay_as_they_are():
    logits = torch.linspace(-0.01, 0.01, 9)
    torch.testing.assert_close(apply_soft_cap(logits, 30.0), logits)


def test_the_in_place_form_equals_the_definition_and_returns_the_derivatives():
    logits = double(5, 7)
    expected = apply_soft_cap(logits, 0.8)
    (slopes,) = torch.autograd.grad(expected.sum(), logits)
    found = logits.detach().clone()
    torch.testing.assert_close(soft_cap_(found, 0.8), slopes)
    torch.testing.assert_close(found, expected.detach())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype: torch.dtype):
    logits = torch.randn(64).mul(20).to(dtype)
    assert torch.equal(apply_soft_cap(logits, 15.0), apply_soft_cap(logits.double(), 15.0).to(dtype))


@pytest.mark.parametrize("form", [linear_cross_entropy, linear_token_nats])
def test_a_frozen_head_has_no_gradient_and_the_input_has_that_of_any(form):
    x, weight, bias, targets = double(9, 4), double(7, 4), double(7), torch.randint(7, (9,))

    def total(*head):
        found = form(x, *head, targets)
        return found.total if form is linear_cross_entropy else found.sum()

    (frozen,) = torch.autograd.grad(total(weight.detach(), bias.detach()), (x,))
    of_x, of_weight, of_bias = torch.autograd.grad(total(weight, bias), (x, weight, bias))
    torch.testing.assert_close(frozen, of_x)
    assert of_weight.abs().sum() > 0 and of_bias.abs().sum() > 0
    head = HeadArguments(x.detach(), weight.detach(), bias.detach())
    kept = HeadGradients(head, (True, False, False))
    (own,) = logit_slices(head, targets, None)
    kept.add(head, own, double(9, 7).detach())
    assert kept.scaled_(torch.ones(()))[1:] == (None, None)
