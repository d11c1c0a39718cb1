import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.training.schedule import CURVES, learning_rate
from linnet.training.sections import ScheduleSpec

KINDS = st.sampled_from([*sorted(CURVES.keys() - {"one_minus_sqrt"}), "stable"])
FRACTIONS = st.floats(0, 1)


@given(KINDS, FRACTIONS, FRACTIONS, st.integers(1, 50), st.integers(1, 200))
def test_the_schedule_has_its_start_peak_and_end(kind, start, final, warmup, decay):
    schedule = ScheduleSpec(kind=kind, warmup_steps=warmup, start_fraction=start, final_fraction=final)
    steps, peak = warmup + decay, 3e-3
    rates = [learning_rate(schedule, peak, step, steps) for step in range(steps + 1)]
    assert rates[0] == pytest.approx(start * peak)
    assert rates[warmup] == pytest.approx(peak)
    assert rates[-1] == pytest.approx(peak if kind == "constant" else final * peak)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(rates[: warmup + 1]))
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(rates[warmup:]))


@given(st.integers(1, 2000))
def test_ted_published_schedule(step):
    """From 1e-5 to 1e-3 in the first tenth, then by a squared cosine of a quarter period to 1e-6."""
    schedule = ScheduleSpec(kind="cosine_squared", warmup_steps=200, start_fraction=1e-2, final_fraction=1e-3)
    if step < 200:
        expected = 1e-5 + (1e-3 - 1e-5) * step / 200
    else:
        expected = (1e-3 - 1e-6) * math.cos(math.pi / 2 * (step - 200) / 1800) ** 2 + 1e-6
    assert learning_rate(schedule, 1e-3, step, 2000) == pytest.approx(expected)


@pytest.mark.parametrize(("kind", "quarter"), [("cosine", 0.8535533906), ("linear", 0.75), ("constant", 1.0)])
def test_schedules_at_a_quarter_of_the_steps(kind, quarter):
    schedule = ScheduleSpec(kind=kind, warmup_steps=0, final_fraction=0)
    assert learning_rate(schedule, 1.0, 25, 100) == pytest.approx(quarter)


def test_a_run_that_is_all_warm_up_ends_at_the_peak():
    assert learning_rate(ScheduleSpec(warmup_steps=10), 1.0, 10, 10) == 1.0


@pytest.mark.parametrize(("decay", "middle"), [(None, 1 - math.sqrt(0.5)), ("linear", 0.5)])
def test_it_stays_at_the_peak_and_falls_at_the_end(decay, middle):
    schedule = ScheduleSpec(kind="stable", warmup_steps=10, final_fraction=0, decay_share=0.3, decay=decay)
    rates = [learning_rate(schedule, 2.0, step, 100) for step in range(101)]
    assert rates[10:71] == [2.0] * 61
    assert rates[71] < 2.0 and rates[85] == pytest.approx(2.0 * middle) and rates[100] == 0.0


def test_the_decay_share_is_a_fifth_by_default():
    rates = [learning_rate(ScheduleSpec(kind="stable", warmup_steps=0), 1.0, step, 50) for step in range(51)]
    assert [step for step, rate in enumerate(rates) if rate == 1.0] == list(range(41))


def test_a_warm_up_may_shorten_the_decay():
    schedule = ScheduleSpec(kind="stable", warmup_steps=9, decay_share=0.5, decay="linear", final_fraction=0)
    assert [learning_rate(schedule, 1.0, step, 10) for step in (8, 9, 10)] == [8 / 9, 1.0, 0.0]
