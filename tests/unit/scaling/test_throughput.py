"""The measured speed."""

from types import SimpleNamespace

import pytest
import torch
from known_laws import small_model

from linnet.model.cost import model_cost
from linnet.scaling import throughput
from linnet.scaling.throughput import max_parameters, measure
from linnet.training.runs import training_flops_per_token

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch):
    """Steps with given times, of which the first takes 100 s; returns the shapes of the batches."""
    shapes = []
    take_step = throughput.Stepper.__call__

    def install(seconds: list[float]) -> list[tuple[int, ...]]:
        times = iter([100.0, *seconds])

        def recorded(step, batches, lr):
            shapes.extend(tuple(batch.tokens.shape) for batch in batches)
            return take_step(step, batches, lr)

        def timed(take_step, device):
            take_step()
            return next(times)

        monkeypatch.setattr(throughput.Stepper, "__call__", recorded)

        monkeypatch.setattr(throughput, "_timed_s", timed)
        return shapes

    return install


def test_the_result_is_the_median_without_the_first_step(clock):
    model = small_model(8)
    shapes = clock([2.0, 0.5, 0.5, 9.0])
    found = measure(model, 3, CPU)
    assert shapes == [(3, 16)] * 4
    assert found.flops_per_s == pytest.approx(3 * 16 * training_flops_per_token(model, None) / 0.5)
    assert (found.parameters, found.device) == (model_cost(model).parameters, "cpu")


def test_few_slow_steps_and_at_most_ten_quick_ones_are_timed(clock):
    assert len(clock([60.0] * 9)) == 0
    shapes = clock([60.0] * 9)
    measure(small_model(8), 1, CPU)
    assert len(shapes) == 3
    shapes.clear()
    clock([1e-3] * 50)
    measure(small_model(8), 1, CPU)
    assert len(shapes) == 11


def test_a_real_measurement_is_a_speed_and_leaves_random_numbers_alone():
    before = torch.get_rng_state()
    found = measure(small_model(16), 2, CPU)
    assert 1e5 < found.flops_per_s < 1e14
    assert torch.equal(before, torch.get_rng_state())


def test_the_largest_timed_size_shrinks_with_the_window_and_with_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(throughput, "estimate_flops_per_s", lambda device: 1e11)
    monkeypatch.setattr(throughput.psutil, "virtual_memory", lambda: SimpleNamespace(available=10**12))
    assert max_parameters(CPU, 1000) == pytest.approx(3e11 / 6000)
    assert max_parameters(CPU, 2000) == pytest.approx(3e11 / 12000)
    monkeypatch.setattr(throughput.psutil, "virtual_memory", lambda: SimpleNamespace(available=10**8))
    assert max_parameters(CPU, 1000) == pytest.approx(0.4 * 10**8 / 16)
