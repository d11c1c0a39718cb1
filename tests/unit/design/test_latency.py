"""Latency: every part is timed once, parts add up, and a winner that takes too long tightens the limit."""

from itertools import pairwise

import pytest
import torch

from linnet.core.errors import UserError
from linnet.design import latency
from linnet.design.latency import (
    ATTEMPTS,
    MARGIN,
    OUTSIDE,
    PASSES,
    ROUNDS,
    ColdCacheTimer,
    PartTimes,
    Timing,
    measure_latency,
    search_with_latency,
)
from linnet.design.metrics import Budget
from linnet.design.report import latency_table
from linnet.design.search import DesignSettings, EvolutionSettings, SearchTask, search

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

    def seconds(self: ColdCacheTimer, run, runs: int = 5) -> float:
        ran.append(run())
        return float(len(ran))

    monkeypatch.setattr(ColdCacheTimer, "seconds", seconds)
    return ran


@pytest.mark.parametrize("positions", ["none", "learned"])
@pytest.mark.parametrize("kind", ["token", "sequence"])
def test_every_part_of_every_mixer_is_run_in_each_pass(small_space, counted, kind: str, positions: str):
    model = {"embedding": {"positions": positions, "width": 8}, "head": {"norm": {"kind": "rms"}}}
    space = small_space(block={"mixer": MIXERS, "share_weights": [True, False]}, model=model)
    times = PartTimes(space, Timing(kind, 64, CPU))
    times.time_all()
    widths = {8, 16, 24}
    parts = len(widths) * (len(widths) - 1) + len(space.described) + 1
    assert len(counted) == PASSES * parts
    assert sorted(times.taken.values()) == [[float(n), float(n + parts)] for n in range(1, parts + 1)]
    tokens = 1 if kind == "token" else 64
    assert all(out.shape[:2] == (1, tokens) for out in counted[: parts - 1])
    assert counted[-1].shape == (1, 1, 31)


def test_a_models_latency_is_the_sum_of_its_parts(small_space):
    space = small_space()
    times = PartTimes(space, Timing("token", 64, CPU))
    blocks = {block.model_dump_json(): [1e9, 10.0 + n, 20.0 + n] for n, block in enumerate(space.described)}
    times.taken = {**blocks, (16, 8): [1.0], (8, 24): [2.0], (24, 16): [4.0], OUTSIDE: [100.0]}
    metric = times.metric()
    narrow = next(n for n, block in enumerate(space.described) if block.width == 8)
    wide = next(n for n, block in enumerate(space.described) if block.width == 24)
    same = next(n for n, block in enumerate(space.described) if block.width == 16)
    assert metric.of_model(space.model([narrow, wide])) == 100 + 7 + (10 + narrow) + (10 + wide)
    assert metric.of_model(space.model([same, same])) == 100 + 2 * (10 + same)
    assert metric.format(0.0123) == "12.3 ms"


@pytest.mark.parametrize("kind", ["token", "sequence"])
@pytest.mark.parametrize("mixer", MIXERS, ids=str)
def test_a_whole_model_is_run(small_space, kind: str, mixer: dict):
    space = small_space(block={"mixer": mixer, "repeat": 2}, model={"embedding": {"positions": "learned"}})
    assert 0 < measure_latency(space.model([0, 1]), Timing(kind, 64, CPU)) < 10


def test_a_clock_takes_the_median_and_reads_other_memory_between(monkeypatch):
    instants = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0])
    monkeypatch.setattr(latency.time, "perf_counter", lambda: next(instants))
    ran = []
    clock = ColdCacheTimer(CPU, 4096)
    assert clock.between.numel() == 1024
    assert clock.seconds(lambda: ran.append(1), runs=3) == 2.0
    assert len(ran) == 4  # the first does not count


def test_what_is_read_between_is_the_head_and_the_other_blocks(small_space):
    space = small_space(blocks=3)
    model = space.model([0, 0, 0])
    half = sorted(latency.block_cost(block, model).parameters for block in space.described)
    middling = (half[len(half) // 2 - 1] + half[len(half) // 2]) / 2
    assert PartTimes(space, Timing("token", 64, CPU)).clock.between.nbytes == 4 * int(16 * 31 + 2 * middling)


def test_only_the_parts_of_one_model_are_timed_again(small_space, counted):
    space = small_space()
    times = PartTimes(space, Timing("token", 64, CPU))
    times.time_all()
    before = len(counted)
    model = space.model([0, len(space.described) - 1])
    widths = [model.d_model, *(block.width for block in model.blocks), model.d_model]
    times.time_again(model)
    pairs = {(a, b) for a, b in pairwise(widths) if a != b}
    assert len(counted) == before + len(pairs) + 2 + 1
    again = {key for key, taken in times.taken.items() if len(taken) == PASSES + 1}
    assert again == {OUTSIDE, *pairs, *(block.model_dump_json() for block in model.blocks)}
    times.time_again(space.model([0, 0]))
    assert len(times.taken[space.described[0].model_dump_json()]) == PASSES + 2


class Machine:
    """Blocks that are timed to take their number of layers in milliseconds; what a model takes is up to `runs`."""

    def __init__(self, space, runs, limit_s: float = 5.5e-3) -> None:
        self.runs, self.ran = runs, []
        self.times = PartTimes(space, Timing("token", 64, CPU))
        blocks = {block.model_dump_json(): [block.repeat * 1e-3] for block in space.described}
        self.times.taken = {**blocks, OUTSIDE: [0.5e-3]}
        option = f"--max-latency {limit_s * 1e3:g}ms"
        self.limit = Budget(self.times.metric(), limit_s, option)
        self.task = SearchTask(space, [], "entropy", QUICK)

    def run(self, model) -> float:
        self.ran.append(model.layers)
        return self.runs(model)

    def again(self, model) -> None:
        """PartTimes that do not change."""

    def search(self):
        return search_with_latency(self.task, self.limit, self.run, self.again)

    @property
    def winners(self) -> list[int]:
        """Layers of each winner that was run."""
        assert all(len(set(self.ran[n : n + ROUNDS])) == 1 for n in range(0, len(self.ran), ROUNDS))
        return self.ran[::ROUNDS]


def test_a_winner_that_keeps_its_limit_is_taken_at_once(small_space):
    machine = Machine(small_space(), lambda model: 5e-3)
    kept = machine.search()
    assert kept.found.model.layers == 5
    assert kept.predicted_s == pytest.approx(5.5e-3)
    assert (kept.measured_s, kept.attempts) == (5e-3, 1)
    assert kept.found.values == [5e-3]
    assert kept.task.budgets == [machine.limit]


def test_a_winner_that_takes_longer_tightens_the_limit(small_space):
    machine = Machine(small_space(), lambda model: 1.3e-3 * model.layers)
    kept = machine.search()
    assert kept.found.model.layers == 4
    assert kept.measured_s <= 5.5e-3
    assert kept.attempts == 2
    said = latency_table(kept, Timing("token", 64, CPU)).meaning
    assert "The previous winner took longer than the limit" in said
    assert kept.task.budgets[-1].limit == 5.5e-3


def test_rounds_that_something_else_made_slow_change_nothing(small_space):
    seconds = iter([1.0, 5e-3, 0.1, 5.2e-3, 0.5])
    kept = Machine(small_space(), lambda model: next(seconds)).search()
    assert (kept.attempts, kept.measured_s) == (1, 5e-3)
    row = latency_table(kept, Timing("token", 64, CPU)).rows[0]
    assert row[3:5] == ["5.00 ms", "5.00 ms to 1000 ms"]


def test_a_limit_is_lowered_by_as_much_as_the_winner_was_late(small_space):
    """Five layers take twice the limit: half of the limit is asked for next, two layers at most."""
    machine = Machine(small_space(), lambda model: 2 * 5.5e-3 if model.layers == 5 else 1e-3)
    kept = machine.search()
    assert machine.winners == [5, 2]
    assert kept.predicted_s <= MARGIN * 5.5e-3 / 2


def test_parts_that_were_timed_too_high_are_corrected(small_space):
    """Blocks of three layers were timed at twice what they take: the winner is predicted by what they take."""
    machine = Machine(small_space(), lambda model: 2.4e-3)
    slow = [block.model_dump_json() for block in machine.task.space.described if block.repeat == 3]
    machine.times.taken.update({key: [4.9e-3] for key in slow})

    def again(model) -> None:
        for block in model.blocks:
            machine.times.taken[block.model_dump_json()].append(0.9e-3)

    machine.again = again
    kept = machine.search()
    assert repeats(kept.found.model) == [2, 2]
    assert kept.predicted_s == pytest.approx(0.5e-3 + 2 * 0.9e-3)


def repeats(model) -> list[int]:
    return [block.repeat for block in model.blocks]


def test_a_limit_that_no_winner_keeps(small_space):
    """Nothing is predicted to be as much faster as would be needed; or there is always something, never fast enough."""
    machine = Machine(small_space(), lambda model: 1.0)
    with pytest.raises(UserError, match=r"--max-latency 5.5ms: no model kept it when it was run; the last of 1 was"):
        machine.search()
    seconds = iter([9.7e-3, 9.61e-3, 9.9e-3, 9.8e-3, 9.65e-3] * ATTEMPTS)
    machine = Machine(small_space(blocks=4), lambda model: next(seconds), 9.6e-3)
    with pytest.raises(UserError) as error:
        machine.search()
    assert str(error.value) == (
        f"--max-latency 9.6ms: no model kept it when it was run; the last of {len(machine.winners)} was predicted to"
        f" take {machine.winners[-1]}.50 ms and took 9.61 ms to 9.90 ms in 5 rounds; expected a larger limit, or a"
        " machine without other load"
    )


def test_another_mistake_in_a_later_attempt_is_not_taken_for_a_limit_that_nothing_keeps(small_space, monkeypatch):
    machine, calls = Machine(small_space(), lambda model: 1.0), []

    def searched(task, name=None):
        calls.append(task)
        if len(calls) > 1:
            raise UserError("its proof was given up")
        return search(task, name)

    monkeypatch.setattr(latency, "search", searched)
    with pytest.raises(UserError, match="its proof was given up"):
        machine.search()


def test_a_limit_below_everything_is_said_with_the_smallest(small_space):
    machine = Machine(small_space(), lambda model: 1.0, 1e-3)
    with pytest.raises(UserError, match=r"--max-latency 1ms: nothing in the space .* could be met is 2.5\d* ms"):
        machine.search()
    assert machine.ran == []
