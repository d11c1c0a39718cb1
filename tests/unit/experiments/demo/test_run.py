"""The parts of a run that need no training."""

import torch

from linnet.experiments.demo.figures import LONG_TOKENS, SHORT_TOKENS
from linnet.experiments.demo.measure import describe_machine
from linnet.experiments.demo.run import STATE_CURVE_TOKENS, curves, timed


def test_curves_are_the_points_of_the_lines():
    lines = [
        {"tokens": 10, "bits_per_byte": 3.0},
        {"tokens": 20, "bits_per_byte": 2.0, "validation": {"bits_per_byte": 2.5}},
    ]
    assert curves(lines) == ([(10, 3.0), (20, 2.0)], [(20, 2.5)])


def test_the_chart_of_the_state_reaches_what_the_table_gives():
    assert {SHORT_TOKENS, LONG_TOKENS} <= set(STATE_CURVE_TOKENS)


def test_each_part_is_timed():
    parts_s: dict[str, float] = {}
    with timed(parts_s, "one"):
        pass
    with timed(parts_s, "two"):
        pass
    assert list(parts_s) == ["one", "two"]
    assert all(0 <= seconds < 1 for seconds in parts_s.values())


def test_the_machine_is_told_with_the_programs():
    facts = describe_machine(torch.device("cpu"), "bfloat16")
    assert facts["PyTorch"] == torch.__version__
    assert facts["precision"] == "bfloat16 products in training, else float32"
    assert describe_machine(torch.device("cpu"), "float32")["precision"] == "float32"
    assert facts["cores"].endswith(f"PyTorch uses {torch.get_num_threads()}")
    assert facts["memory"].endswith("iB") and "GPU" not in facts
    assert all(facts.values())
