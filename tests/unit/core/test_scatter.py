"""How times scatter, and whose doing it is."""

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.core.scatter import OtherPrograms, busy_advice, scatter


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50))
def test_it_is_the_tenth_that_is_slowest_over_the_median(times):
    assert scatter(times) == pytest.approx(np.quantile(times, 0.9) / np.quantile(times, 0.5))


def test_one_slow_time_in_twenty_is_nothing():
    assert scatter([1.0] * 19 + [50.0]) == 1.0 and scatter([1.0] * 17 + [3.0] * 3) == 3.0


def test_another_process_at_work_is_seen_and_this_one_is_not():
    others = OtherPrograms()
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.6)
        found = others.processors()
    finally:
        child.kill()
        child.wait()
    assert found > 0.3
    assert "other programs use 1.5 of " in busy_advice(1.5, "or wait") and busy_advice(1.5, "or wait").endswith(
        "or wait"
    )
    assert busy_advice(0.1, "or wait").startswith("other programs use hardly any")
