import math

import pytest
import torch
from runs_alike import with_gradients

from linnet.layers.contract import MuonParameter
from linnet.ops.orthogonal import orthogonal_reference
from linnet.training.checkpoint import load_optimizer_tensors, optimizer_tensors
from linnet.training.optimizers import (
    build_optimizer,
    muon_parameters,
    set_learning_rate,
    split_by_decay,
)
from linnet.training.optimizers.adamw import AdamW, Group
from linnet.training.optimizers.muon import Muon, adamw_scale, spectral_scale
from linnet.training.sections import OptimizerSpec


def _one(shape, rows, lr=0.1, decay=0.0, **changes):
    """Muon over a single parameter."""
    parameter = torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(1)))
    settings = {
        "momentum": 0.9, "iterations": 4, "every": 1, "scale": adamw_scale, "dtype": torch.float32, "cautious": False,
    }  # fmt: skip
    group = Group(params=[parameter], lr=lr, scale=1.0, weight_decay=decay)
    rest = AdamW([], (0.9, 0.95), 1e-8)
    return parameter, Muon([group], [MuonParameter(parameter, rows)], rest, **{**settings, **changes})


def _gradients(shape, count):
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("rows", [(6,), (4, 2), (2, 2, 2)])
def test_the_update_is_that_of_muon_for_each_map(rows):
    """Jordan's algorithm in float64, its orthogonal factors by the singular values, three steps."""
    weight, optimizer = _one((6, 5), rows, decay=0.5)
    expected, mean = weight.detach().double().clone(), torch.zeros(6, 5, dtype=torch.float64)
    for gradient in _gradients((6, 5), 3):
        weight.grad = gradient.clone()
        optimizer.step()
        mean = 0.9 * mean + 0.1 * gradient.double()
        ahead = 0.9 * mean + 0.1 * gradient.double()
        parts = [
            0.2 * math.sqrt(max(part.shape)) * orthogonal_reference(part[None], 4)[0] for part in ahead.split(rows)
        ]
        expected = expected * (1 - 0.1 * 0.5) - 0.1 * torch.cat(parts)
    torch.testing.assert_close(weight.double(), expected, rtol=1e-4, atol=1e-4)


def test_it_follows_pytorchs_muon():
    """An implementation that is not ours: bfloat16, other coefficients, so its steps point nearly the same way."""
    ours, optimizer = _one((24, 16), (24,), lr=0.02, decay=0.1, momentum=0.95, iterations=5)
    theirs = torch.nn.Parameter(ours.detach().clone())
    start = ours.detach().clone()
    other = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for gradient in _gradients((24, 16), 5):
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        other.step()
    moved, wanted = (ours.detach() - start).flatten(), (theirs.detach() - start).flatten()
    assert torch.nn.functional.cosine_similarity(moved, wanted, dim=0) > 0.97
    assert float(moved.norm()) == pytest.approx(float(wanted.norm()), rel=0.15)


def test_elements_move_about_as_far_as_those_of_adamw():
    """The reason for the scale: an orthogonal factor has elements of `1 / sqrt(max)`, AdamW's updates of about 0.2."""
    for shape in ((32, 32), (64, 16), (16, 64)):
        weight, optimizer = _one(shape, shape[:1], lr=1.0)
        before = weight.detach().clone()
        weight.grad = _gradients(shape, 1)[0]
        optimizer.step()
        assert float((weight.detach() - before).square().mean().sqrt()) == pytest.approx(0.2, rel=0.15)


def test_the_other_scale_is_that_of_the_spectral_norm():
    assert (spectral_scale(64, 16), spectral_scale(16, 64), spectral_scale(8, 8)) == (2.0, 1.0, 1.0)


def test_between_two_iterations_the_latest_direction_is_reused():
    weight, optimizer = _one((5, 7), (5,), every=3)
    moved, gradients = [], _gradients((5, 7), 6)
    for gradient in gradients:
        before = weight.detach().clone()
        weight.grad = gradient.clone()
        optimizer.step()
        moved.append(weight.detach() - before)
    for step in range(6):
        torch.testing.assert_close(moved[step], moved[step - step % 3], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(moved[0], moved[3], atol=1e-2)
    mean = torch.zeros(5, 7)
    for gradient in gradients[:4]:
        mean = mean.lerp(gradient, 0.1)
    expected = -0.1 * adamw_scale(5, 7) * orthogonal_reference(gradients[3].lerp(mean, 0.9)[None], 4)[0]
    torch.testing.assert_close(moved[3], expected, rtol=1e-3, atol=1e-5)  # of all gradients, those between included


def test_decay_where_update_and_weight_agree():
    weight, optimizer = _one((5, 7), (5,), lr=0.1, decay=0.5, cautious=True)
    before, gradient = weight.detach().clone(), _gradients((5, 7), 1)[0]
    weight.grad = gradient.clone()
    optimizer.step()
    direction = adamw_scale(5, 7) * orthogonal_reference(gradient[None], 4)[0]
    agree = direction * before >= 0
    assert 5 < int(agree.sum()) < 30
    expected = torch.where(agree, before * (1 - 0.05), before) - 0.1 * direction
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-4, atol=1e-4)


def test_a_group_has_its_own_learning_rate(decoder_with_weights):
    decoder = decoder_with_weights()
    optimizer = build_optimizer(OptimizerSpec(kind="muon", lr=0.01, muon={"lr": 0.04}), decoder)
    set_learning_rate(optimizer, 0.005)
    matrices = {matrix.parameter for matrix in muon_parameters(decoder)}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            assert group["lr"] == pytest.approx(0.02 if parameter in matrices else 0.005)


@pytest.mark.parametrize("mixer", ["attention", "plga", "ted"])
def test_both_optimizers_decay_the_same_parameters(decoder_with_weights, mixer):
    decoder = decoder_with_weights(mixer)
    decayed = {id(parameter) for parameter in split_by_decay(decoder)[0].values()}
    groups = build_optimizer(OptimizerSpec(kind="muon"), decoder).param_groups
    found = [(id(parameter), group["weight_decay"]) for group in groups for parameter in group["params"]]
    assert sorted(each for each, _ in found) == sorted(id(parameter) for parameter in decoder.parameters())
    assert {each for each, decay in found if decay} == decayed


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("mixer", ["attention", "plga", "ted"])
def test_its_state_loaded_into_another_continues_bit_for_bit(mixer, every, decoder_with_weights):
    one, two = decoder_with_weights(mixer), decoder_with_weights(mixer)
    spec = OptimizerSpec(kind="muon", muon={"every": every})
    first, second = (build_optimizer(spec, decoder) for decoder in (one, two))
    assert optimizer_tensors(first, one) == {}
    for step in range(2):
        with_gradients(one, step)
        first.step()
    two.load_state_dict(one.state_dict())
    load_optimizer_tensors(second, two, optimizer_tensors(first, one))
    for step in range(2, 5):
        for decoder, optimizer in ((one, first), (two, second)):
            with_gradients(decoder, step)
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert any("direction" in name for name in optimizer_tensors(second, two)) == (every > 1)


def test_the_time_of_the_iteration_is_counted():
    weight, optimizer = _one((5, 7), (5,))
    assert optimizer.orthogonalizing.seconds == 0
    weight.grad = _gradients((5, 7), 1)[0]
    optimizer.step()
    once = optimizer.orthogonalizing.seconds
    assert 0 < once < 10
    optimizer.step()
    assert optimizer.orthogonalizing.seconds > once


def test_a_parameter_without_a_gradient_stays(decoder_with_weights):
    decoder = decoder_with_weights()
    optimizer = build_optimizer(OptimizerSpec(kind="muon"), decoder)
    before = [parameter.detach().clone() for parameter in decoder.parameters()]
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, decoder.parameters(), strict=True))


def test_batched_matrices_equal_single_ones(decoder_with_weights, monkeypatch):
    from linnet.training.optimizers import muon

    together, alone = decoder_with_weights(), decoder_with_weights()
    for decoder, elements in ((together, 1 << 26), (alone, 1)):
        monkeypatch.setattr(muon, "ELEMENTS_AT_ONCE", elements)
        optimizer = build_optimizer(OptimizerSpec(kind="muon"), decoder)
        with_gradients(decoder, 1)
        optimizer.step()
    for one, other in zip(together.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, other)
