"""Latency: every part is timed once, parts add up, and a winner that takes too long tightens the limit."""

from dataclasses import replace

import pytest
import torch

from linnet.design import latency
from linnet.design.budget import Budget
from linnet.design.checked import ATTEMPTS, MARGIN, search_checked
from linnet.design.evolution import EvolutionSettings
from linnet.design.found_tables import latency_table
from linnet.design.latency import Clock, Times, Timing, measure, measured
from linnet.design.search import DesignSettings, Task
from linnet.errors import UserError

CPU = torch.device("cpu")
MIXERS = [
    {"kind": "attention"},
    {"kind": "attention", "window": 4},
    {"kind": "ted"},
    {"kind": "plga", "metric_hidden": 4, "residual_units": 1},
]
QUICK = DesignSettings(search=EvolutionSettings(population=24, parents=8, iterations=12))


@pytest.fixture
def counted(monkeypatch):
    """A clock that runs everything once and says 1, 2, 3, ... seconds."""
    ran: list[object] = []

    def seconds(self: Clock, run, runs: int = 5) -> float:
        ran.append(run())
        return float(len(ran))

    monkeypatch.setattr(Clock, "seconds", seconds)
    return ran


@pytest.mark.parametrize("positions", ["none", "learned"])
@pytest.mark.parametrize("kind", ["token", "sequence"])
def test_every_part_of_every_mixer_is_run_once(small_space, counted, kind: str, positions: str):
    model = {"embedding": {"positions": positions, "width": 8}, "head": {"norm": {"kind": "rms"}}}
    space = small_space(block={"mixer": MIXERS, "share_weights": [True, False]}, model=model)
    times = measure(space, Timing(kind, 64, CPU))
    widths = {8, 16, 24}
    assert len(times.joins) == len(widths) * (len(widths) - 1)
    assert len(times.blocks) == len(space.described)
    assert len(counted) == len(times.joins) + len(times.blocks) + 1
    seconds = [*times.joins.values(), *times.blocks.values(), times.outside]
    assert sorted(seconds) == [float(n) for n in range(1, len(counted) + 1)]
    tokens = 1 if kind == "token" else 64
    assert all(out.shape[:2] == (1, tokens) for out in counted[:-1])
    assert counted[-1].shape == (1, 1, 31)


def test_a_models_latency_is_the_sum_of_its_parts(small_space):
    space = small_space()
    blocks = {block.model_dump_json(): 10.0 + n for n, block in enumerate(space.described)}
    metric = Times(blocks, {(16, 8): 1.0, (8, 24): 2.0, (24, 16): 4.0}, 100.0).metric()
    narrow = next(n for n, block in enumerate(space.described) if block.width == 8)
    wide = next(n for n, block in enumerate(space.described) if block.width == 24)
    same = next(n for n, block in enumerate(space.described) if block.width == 16)
    assert metric.of_model(space.model([narrow, wide])) == 100 + 7 + (10 + narrow) + (10 + wide)
    assert metric.of_model(space.model([same, same])) == 100 + 2 * (10 + same)
    assert metric.said(0.0123) == "12.3 ms"


@pytest.mark.parametrize("kind", ["token", "sequence"])
@pytest.mark.parametrize("mixer", MIXERS, ids=str)
def test_a_whole_model_is_run(small_space, kind: str, mixer: dict):
    space = small_space(block={"mixer": mixer, "repeat": 2}, model={"embedding": {"positions": "learned"}})
    assert 0 < measured(space.model([0, 1]), Timing(kind, 64, CPU)) < 10


def test_a_clock_takes_the_median_and_reads_other_memory_between(monkeypatch):
    instants = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0])
    monkeypatch.setattr(latency.time, "perf_counter", lambda: next(instants))
    ran = []
    clock = Clock(CPU, 4096)
    assert clock.between.numel() == 1024
    assert clock.seconds(lambda: ran.append(1), runs=3) == 2.0
    assert len(ran) == 4  # the first does not count


def test_what_is_read_between_is_the_head_and_the_other_blocks(small_space):
    space = small_space(blocks=3)
    model = space.model([0, 0, 0])
    half = sorted(latency.block_cost(block, model).parameters for block in space.described)
    middling = (half[len(half) // 2 - 1] + half[len(half) // 2]) / 2
    assert latency._bytes_between(space, model) == 4 * int(16 * 31 + 2 * middling)


def timed_task(space) -> tuple[Task, Budget]:
    """Blocks that take their number of layers in milliseconds."""
    blocks = {block.model_dump_json(): block.repeat * 1e-3 for block in space.described}
    limit = Budget(Times(blocks, {}, 0.5e-3).metric(), 5.5e-3, "--max-latency 5.5ms")
    return Task(space, [], "entropy", QUICK), limit


def test_a_winner_that_keeps_its_limit_is_taken_at_once(small_space):
    task, limit = timed_task(small_space())
    checked = search_checked(task, limit, lambda model: 5e-3)
    assert checked.found.model.layers == 5
    assert checked.predicted_s == pytest.approx(5.5e-3)
    assert (checked.measured_s, checked.attempts) == (5e-3, 1)
    assert checked.task.budgets == [limit]


def test_a_winner_that_takes_longer_tightens_the_limit(small_space):
    task, limit = timed_task(small_space())
    checked = search_checked(task, limit, lambda model: 1.3e-3 * model.layers)
    assert checked.found.model.layers == 4
    assert checked.measured_s <= 5.5e-3
    assert checked.attempts == 2
    said = latency_table(checked, Timing("token", 64, CPU)).meaning
    assert said.endswith("evolution, true optimum and gap are those of the last, lowered limit.")
    assert checked.task.budgets[-1].limit == 5.5e-3


def test_a_limit_is_lowered_by_as_much_as_the_winner_was_late(small_space):
    """Five layers take twice the limit: half of the limit is asked for next, two layers at most."""
    task, limit = timed_task(small_space())
    ran = []

    def late(model) -> float:
        ran.append(model.layers)
        return 2 * 5.5e-3 if len(ran) == 1 else 1e-3

    checked = search_checked(task, limit, late)
    assert ran == [5, 2]
    assert checked.predicted_s <= MARGIN * 5.5e-3 / 2


def test_a_limit_that_no_winner_keeps(small_space):
    task, limit = timed_task(small_space())
    with pytest.raises(
        UserError, match=r"--max-latency 5.5ms \(lowered to .* ms, as .* took longer\): nothing in the space"
    ):
        search_checked(task, limit, lambda model: 1.0)
    task, limit = timed_task(small_space(blocks=3))
    limit, runs = replace(limit, limit=9.6e-3, option="--max-latency 9.6ms"), []

    def just_above(model):
        runs.append(model)
        return 9.61e-3

    with pytest.raises(
        UserError, match=r"--max-latency 9.6ms: the best models took longer .*, at last 9.61 ms; expected"
    ):
        search_checked(task, limit, just_above)
    assert [model.layers for model in runs] == [9, 8, 7, 6, 5]
    assert len(runs) == ATTEMPTS
