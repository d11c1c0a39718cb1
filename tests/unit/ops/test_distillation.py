import pytest
import torch
from same_gradients import assert_same_with_gradients, double

from linnet.ops import cross_entropy
from linnet.ops.cross_entropy import IGNORE_INDEX, linear_cross_entropy
from linnet.ops.distillation import SoftTargets, linear_distillation, linear_distillation_reference


@pytest.mark.parametrize(("weight", "temperature"), [(0.0, 1.0), (0.3, 1.0), (1.0, 2.5), (0.6, 0.5)])
@pytest.mark.parametrize("soft_cap", [None, 0.7])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [[], [0, 4, 5], list(range(9))])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("slice_tokens", [4, 100])
def test_linear_distillation(
    with_bias: bool,
    slice_tokens: int,
    ignored: list[int],
    weighted: bool,
    soft_cap: float | None,
    weight: float,
    temperature: float,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(cross_entropy, "tokens_per_slice", lambda weight_VD: slice_tokens)
    x, matrix, bias = double(9, 4), double(7, 4), double(7) if with_bias else None
    teacher_NV = double(9, 7).detach()
    targets = torch.randint(7, (9,))
    targets[ignored] = IGNORE_INDEX
    soft_targets = SoftTargets(teacher_NV.__getitem__, weight, temperature)
    forms = linear_distillation, linear_distillation_reference
    weights = torch.rand(9) if weighted else None
    fast, slow = (form(x, matrix, bias, targets, soft_targets, soft_cap, weights) for form in forms)
    assert fast.correct == slow.correct
    torch.testing.assert_close(fast.nats, slow.nats)
    torch.testing.assert_close(fast.divergence, slow.divergence)
    assert_same_with_gradients(fast.total, slow.total, tuple(each for each in (x, matrix, bias) if each is not None))


def test_weights_of_targets_are_in_the_total_alone():
    x, matrix, targets, weights = double(9, 4), double(7, 4), torch.randint(7, (9,)), torch.rand(9).double()
    soft_targets = SoftTargets(double(9, 7).detach().__getitem__, 0.3, 2.0)
    plain, found = (linear_distillation(x, matrix, None, targets, soft_targets, weights_N=w) for w in (None, weights))
    alone = [
        linear_distillation(
            x[n : n + 1], matrix, None, targets[n : n + 1],
            soft_targets._replace(logits=lambda part, n=n: soft_targets.logits(slice(n, n + 1))),
        ).total
        for n in range(9)
    ]  # fmt: skip
    torch.testing.assert_close(found.total, weights @ torch.stack(alone))
    torch.testing.assert_close((found.nats, found.divergence), (plain.nats, plain.divergence))


def test_a_student_that_equals_its_teacher_has_no_divergence_and_no_gradient_from_it():
    x, matrix, targets = double(9, 4), double(7, 4), torch.randint(7, (9,))
    teacher_NV = (x @ matrix.t()).detach()
    found = linear_distillation(x, matrix, None, targets, SoftTargets(teacher_NV.__getitem__, 1.0, 3.0))
    torch.testing.assert_close(found.total.detach(), torch.zeros((), dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(torch.autograd.grad(found.total, x)[0], torch.zeros_like(x), atol=1e-12, rtol=0)


def test_without_a_share_of_the_teacher_it_is_the_cross_entropy():
    x, matrix, targets = double(9, 4), double(7, 4), torch.randint(7, (9,))
    found = linear_distillation(x, matrix, None, targets, SoftTargets(double(9, 7).detach().__getitem__, 0.0, 1.0))
    plain = linear_cross_entropy(x, matrix, None, targets)
    assert found.correct == plain.correct and found.divergence > 0
    assert_same_with_gradients(found.total, plain.total, (x, matrix))


def test_a_teacher_that_is_certain_is_the_cross_entropy_of_its_token():
    x, matrix, targets = double(9, 4), double(7, 4), torch.randint(7, (9,))
    certain_NV = 1e4 * torch.nn.functional.one_hot(targets, 7).double()
    found = linear_distillation(x, matrix, None, targets, SoftTargets(certain_NV.__getitem__, 1.0, 1.0))
    torch.testing.assert_close(found.divergence, found.nats)


def test_logits_of_low_precision_are_summed_in_float64():
    x, matrix, targets = double(9, 4).float(), double(7, 4).float(), torch.randint(7, (9,))
    teacher_NV = torch.randn(9, 7)
    with torch.autocast("cpu", torch.bfloat16):
        found = linear_distillation(x, matrix, None, targets, SoftTargets(teacher_NV.bfloat16().__getitem__, 0.5, 1.0))
    exact = linear_distillation_reference(x, matrix, None, targets, SoftTargets(teacher_NV.__getitem__, 0.5, 1.0))
    assert found.total.dtype == torch.float64
    torch.testing.assert_close(found.total.float(), exact.total, rtol=0.03, atol=0.0)
