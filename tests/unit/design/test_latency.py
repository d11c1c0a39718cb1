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
    """A timer that runs everything once and returns 1, 2, 3, ... seconds."""
    ran: list[object] = []

    def seconds(self: ColdCacheTimer, run, runs: int = 5) -> float:
        ran.append(run())
        return float(len(ran))

    monkeypatch.setattr(ColdCacheTimer, "seconds", seconds)
    return ran


@pytest.mark.parametrize(("kind", "positions"), [("token", "learned"), ("sequence", "none")])
def test_every_part_of_every_mixer_is_run_in_each_pass(small_space, counted, kind: str, positions: str):
    model = {"embedding": {"positions": positions, "width": 8}, "head": {"norm": {"kind": "rms"}}}
    shared = [True, False] if kind == "token" else False
    space = small_space(block={"mixer": MIXERS, "share_weights": shared}, model=model)
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


def test_the_timer_returns_the_median_and_reads_other_memory_between_runs(monkeypatch):
    instants = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0])
    monkeypatch.setattr(latency.time, "perf_counter", lambda: next(instants))
    ran = []
    clock = ColdCacheTimer(CPU, 4096)
    assert clock.between.numel() == 1024
    assert clock.seconds(lambda: ran.append(1), runs=3) == 2.0
    assert len(ran) == 4  # the first does not count


def test_the_memory_between_runs_is_that_of_the_head_and_the_other_blocks(small_space):
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
    """Blocks whose times are their numbers of layers in milliseconds; `runs` determines the time of a model."""

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
        """Change no times."""

    def search(self):
        return search_with_latency(self.task, self.limit, self.run, self.again)

    @property
    def winners(self) -> list[int]:
        """Layers of each winner that was run."""
        assert all(len(set(self.ran[n : n + ROUNDS])) == 1 for n in range(0, len(self.ran), ROUNDS))
        return self.ran[::ROUNDS]


def test_a_winner_that_meets_the_limit_ends_the_search(small_space):
    machine = Machine(small_space(), lambda model: 5e-3)
    result = machine.search()
    assert result.found.model.layers == 5
    assert result.predicted_s == pytest.approx(5.5e-3)
    assert (result.measured_s, result.attempts) == (5e-3, 1)
    assert result.found.values == [5e-3]
    assert result.task.budgets == [machine.limit]


def test_a_winner_that_exceeds_the_limit_tightens_it(small_space):
    machine = Machine(small_space(), lambda model: 1.3e-3 * model.layers)
    result = machine.search()
    assert result.found.model.layers == 4
    assert result.measured_s <= 5.5e-3
    assert result.attempts == 2
    meaning = latency_table(result, Timing("token", 64, CPU)).meaning
    assert "The previous winner took longer than the limit" in meaning
    assert result.task.budgets[-1].limit == 5.5e-3


def test_rounds_slowed_by_other_programs_change_nothing(small_space):
    seconds = iter([1.0, 5e-3, 0.1, 5.2e-3, 0.5])
    result = Machine(small_space(), lambda model: next(seconds)).search()
    assert (result.attempts, result.measured_s) == (1, 5e-3)
    row = latency_table(result, Timing("token", 64, CPU)).rows[0]
    assert row[3:5] == ["5.00 ms", "5.00 ms to 1000 ms"]


def test_the_limit_is_lowered_in_proportion_to_the_excess(small_space):
    """Five layers take twice the limit, so the next limit is half of it: two layers at most."""
    machine = Machine(small_space(), lambda model: 2 * 5.5e-3 if model.layers == 5 else 1e-3)
    result = machine.search()
    assert machine.winners == [5, 2]
    assert result.predicted_s <= MARGIN * 5.5e-3 / 2


def test_parts_whose_times_were_too_high_are_corrected(small_space):
    """Blocks of three layers were timed at twice their real time; the prediction uses the real one."""
    machine = Machine(small_space(), lambda model: 2.4e-3)
    slow = [block.model_dump_json() for block in machine.task.space.described if block.repeat == 3]
    machine.times.taken.update({key: [4.9e-3] for key in slow})

    def again(model) -> None:
        for block in model.blocks:
            machine.times.taken[block.model_dump_json()].append(0.9e-3)

    machine.again = again
    result = machine.search()
    assert repeats(result.found.model) == [2, 2]
    assert result.predicted_s == pytest.approx(0.5e-3 + 2 * 0.9e-3)


def repeats(model) -> list[int]:
    return [block.repeat for block in model.blocks]


def test_a_limit_that_no_winner_meets_is_an_error(small_space):
    """Either no model is predicted to be fast enough, or every next winner is too slow as well."""
    machine = Machine(small_space(), lambda model: 1.0)
    with pytest.raises(UserError, match=r"--max-latency 5.5ms: no model met it when it was run; the last of 1 was"):
        machine.search()
    seconds = iter([9.7e-3, 9.61e-3, 9.9e-3, 9.8e-3, 9.65e-3] * ATTEMPTS)
    machine = Machine(small_space(blocks=4), lambda model: next(seconds), 9.6e-3)
    with pytest.raises(UserError) as error:
        machine.search()
    assert str(error.value) == (
        f"--max-latency 9.6ms: no model met it when it was run; the last of {len(machine.winners)} was predicted to"
        f" take {machine.winners[-1]}.50 ms and took 9.61 ms to 9.90 ms in 5 rounds; expected a larger limit, or a"
        " machine without other load"
    )


def test_another_error_in_a_later_attempt_is_raised(small_space, monkeypatch):
    machine, calls = Machine(small_space(), lambda model: 1.0), []

    def searched(task, name=None):
        calls.append(task)
        if len(calls) > 1:
            raise UserError("its proof was given up")
        return search(task, name)

    monkeypatch.setattr(latency, "search", searched)
    with pytest.raises(UserError, match="its proof was given up"):
        machine.search()


def test_the_error_of_an_impossible_limit_states_the_smallest(small_space):
    machine = Machine(small_space(), lambda model: 1.0, 1e-3)
    with pytest.raises(UserError, match=r"--max-latency 1ms: nothing in the space .* could be met is 2.5\d* ms"):
        machine.search()
    assert machine.ran == []
