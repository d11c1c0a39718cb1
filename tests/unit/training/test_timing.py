import pytest

from linnet.training import timing
from linnet.training.timing import RECENT_STEPS, Pace


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(timing.time, "monotonic", lambda: now[0])
    return now


def steps(meter: Pace, clock: list[float], seconds: float, count: int = 1) -> None:
    for _ in range(count):
        clock[0] += seconds
        meter.add(seconds, 7)


def test_a_slow_start_is_forgotten(clock: list[float]):
    meter = Pace(0.0)
    steps(meter, clock, 100.0)
    assert meter.remaining_s(10, 70) == 1000
    steps(meter, clock, 2.0, RECENT_STEPS - 1)
    assert meter.remaining_s(10, 70) == pytest.approx(10 * (100 + 2 * (RECENT_STEPS - 1)) / RECENT_STEPS)
    steps(meter, clock, 2.0)
    assert meter.remaining_s(10, 70) == pytest.approx(20)


def test_time_between_steps_is_averaged_over_all_steps(clock: list[float]):
    meter = Pace(0.0)
    for _ in range(2):
        steps(meter, clock, 1.0, 100)
        clock[0] += 50.0
    assert meter.remaining_s(100, 700) == pytest.approx(100 + 50)


def test_an_evaluation_soon_after_the_start_is_not_expected_at_each_step(clock: list[float]):
    meter = Pace(0.0)
    steps(meter, clock, 1.0, 4)
    clock[0] += 60.0
    assert meter.remaining_s(796, 796 * 7) == pytest.approx(796 + 796 * 60 / 40)
    assert meter.remaining_s(9996, 9996 * 7) == pytest.approx(9996 + 9996 * 60 / RECENT_STEPS)
    steps(meter, clock, 1.0, 196)
    assert meter.remaining_s(600, 600 * 7) == pytest.approx(600 + 600 * 60 / 200)


def test_before_the_first_step_the_pace_of_earlier_processes_counts():
    assert Pace(3.0).remaining_s(2, 4) == 12


def test_remaining_time_counts_tokens(clock: list[float]):
    meter = Pace(0.0)
    for _ in range(10):
        clock[0] += 1.0
        meter.add(1.0, 100)
        clock[0] += 0.5
    assert meter.remaining_s(4, 1600) == pytest.approx(16 * 1.0 + 4 * 0.5)
