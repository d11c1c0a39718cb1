"""Decoding with compiled steps against the ordinary ones: every mixer, in every precision, 1 and 8 rows, 1 to 106 M.

Milliseconds of a step (a token of each row), behind 1,024 tokens where the state of the full cache grows and behind 32
where its size is constant: the compiled step, the ordinary step, and a token of the engine with the compiled step. With
`--before FOLDER`, a checkout of an earlier commit, also the ordinary step of that code, in a process of its own, and
that of this code in another one: where a process has its weights changes a time by up to 5 %. All in turn, medians of
the rounds. The gate compares logits of several tokens with those of the ordinary step.

`python benchmarks/compiled_steps.py [--minutes 15] [--sizes "1 M" "10 M"] [--kinds attention ted] ...`. Cells are
measured in the order of sizes, precisions, kinds, rows; each is written to the record when it is measured, and those
that the record has of this commit are left out, so that a call goes on where another one ended. Packages that the cache
does not have are compiled first, two at a time (15 s to a minute each); `--build-only` does nothing else.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from decode_worker import decoder_of, ordinary_step, seconds_per_step, state_behind
from gpu_models import Size, kinds, model
from harness import RESULTS, gate, machine, record_of, write_record
from linnet.inference.cache_policy import cache_policy_state
from linnet.inference.compiled_step import (
    MAX_ERRORS,
    Step,
    can_compile,
    compiled_step,
)
from linnet.inference.engine import Engine
from linnet.inference.sampling import Sampling
from linnet.inference.step_packages import BUILDS, package_of, start_build
from linnet.inference.streams import Request
from linnet.inference.weights import Precision, convert_weights
from linnet.layers.cache_policy import FULL
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.state import DecoderState

SIZES = {
    "1 M": Size(1_000_000, 128, 4, 1024, 2048, 1, 1, 0.0),
    "10 M": Size(10_000_000, 256, 8, 8192, 2048, 1, 1, 0.0),
    "106 M": Size(106_000_000, 768, 12, 32_000, 2048, 1, 1, 0.0),
}
ROWS = (1, 8)
WITH_POLICY = ("ted:bank",)
"""Kinds with another cache policy than the full cache, as `KIND:POLICY`."""

ROUND_S, MOST_STEPS = 0.05, 100
"""Seconds of a round of one contestant, and its steps at most."""

CHECKED_STEPS = 4
JOBS = 2
"""Packages that are compiled at the same time."""

ROOM = 1024 + 4 * MOST_STEPS
"""Tokens of a state: rounds begin again from the same one."""


@dataclass(frozen=True)
class Cell:
    """One row of the record."""

    size: str
    precision: str
    kind: str
    rows: int

    @property
    def mixer(self) -> str:
        """The kind without its cache policy: `ted` of `ted:bank`."""
        return self.kind.partition(":")[0]

    @property
    def cache_policy(self) -> str:
        return self.kind.partition(":")[2] or FULL.label

    @property
    def path(self) -> tuple[str, ...]:
        return self.size, self.precision, self.kind, str(self.rows)


class OwnProcess:
    """The ordinary step of a checkout, in a process of its own (`decode_worker.py`)."""

    def __init__(self, checkout: Path, spec: ModelSpec, cell: Cell, threads: int) -> None:
        script, self._checkout = Path(__file__).with_name("decode_worker.py"), checkout
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(checkout / "src")},
        )
        plain = spec.model_dump(mode="json", exclude_unset=True)  # without fields that the checkout does not know
        request = {"spec": plain, "threads": threads, "room": ROOM, **asdict(cell)}
        self._answer(json.dumps(request))

    def seconds(self, steps: int) -> float:
        """Seconds of a step, the mean of so many."""
        return float(self._answer(str(steps)))

    def _answer(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise SystemExit(f"{self._checkout}: the process ended with {self._process.wait()}")
        return answer

    def close(self) -> None:
        self._process.communicate()


def build_all(wanted: list[tuple[dict[str, Any], Path]], until_s: float) -> None:
    """Compile the packages that are missing, some at a time, until the time is over."""
    missing = {package: request for request, package in wanted if not package.is_file()}
    running: list[Path] = []
    while running or (missing and time.perf_counter() < until_s):
        while missing and len(running) < JOBS and time.perf_counter() < until_s:
            package, request = missing.popitem()
            if start_build(request, package) and package in BUILDS.processes:
                running.append(package)
        time.sleep(0.2)
        running = [package for package in running if BUILDS.processes[package].poll() is None]


def state_of(decoder: Decoder, cell: Cell, room: int, tokens: int | None = None) -> DecoderState:
    """The state of a cell; see `state_behind`."""
    return state_behind(decoder, cell.rows, tokens, cache_policy_state(decoder, 1, room, cell.cache_policy))


def loaded_step(decoder: Decoder, state: DecoderState) -> Callable[[DecoderState], Step] | None:
    """The compiled step from the cache; None if it is not there, or was refused."""
    _, package = package_of(decoder, state)
    return compiled_step(decoder, state, package) if package.is_file() else None


@torch.inference_mode()
def check(cell: Cell, compiled: Callable[[DecoderState], Step], decoder: Decoder, state: DecoderState) -> float:
    """The gate: the logits of some tokens in turn are those of the ordinary step, whose largest error is returned."""
    steps, errors = (compiled(state.fork()), ordinary_step(decoder, state.fork())), []
    for index in range(CHECKED_STEPS):
        tokens_B1 = torch.full((cell.rows, 1), index + 1)
        found_BV, expected_BV = (step(tokens_B1).float() for step in steps)
        errors.append(float((found_BV - expected_BV).abs().max() / expected_BV.std()))
    limit = MAX_ERRORS[cell.precision]
    gate(" ".join(cell.path), max(errors) <= limit, f"logits off by {max(errors):.1e} of their spread")
    return max(errors)


def engine_steps(decoder: Decoder, state: DecoderState) -> Callable[[int], float]:
    """Seconds of a token of every row through the engine, sampling included, as the mean of so many."""

    def run(steps: int) -> float:
        engine = Engine(decoder, chunk_tokens=None)
        requests = [Request([1], steps + 2, Sampling(temperature=0.0)) for _ in state.positions]
        streams = engine.submit_together(requests, state.fork())
        engine.step(), engine.step()
        start_s = time.perf_counter()
        while any(stream.finish_reason is None for stream in streams):
            engine.step()
        return (time.perf_counter() - start_s) / steps

    return run


def measure(cell: Cell, decoder: Decoder, checkout: Path | None, rounds: int) -> dict[str, Any]:
    """Check, then time, all contestants in turn."""
    state = state_of(decoder, cell, ROOM)
    compiled = loaded_step(decoder, state)
    if compiled is None:
        return {"error": "not compiled: see the files beside its package"}
    error, token_B1 = check(cell, compiled, decoder, state), torch.ones(cell.rows, 1, dtype=torch.int64)

    def timed(make: Callable[[DecoderState], Callable[[Tensor], Tensor]]) -> Callable[[int], float]:
        return lambda steps: seconds_per_step(make(state.fork()), token_B1, steps)

    contestants: dict[str, Callable[[int], float]] = {
        "compiled": timed(compiled),
        "ordinary": timed(lambda own: ordinary_step(decoder, own)),
        "engine": engine_steps(decoder, state),
    }
    processes: dict[str, OwnProcess] = {}
    if checkout is not None and cell.cache_policy == FULL.label:
        for name, folder in (("before", checkout), ("own_process", Path(__file__).parents[1])):
            processes[name] = OwnProcess(folder, decoder.spec, cell, torch.get_num_threads())
            contestants[name] = processes[name].seconds
    steps = {name: max(3, min(MOST_STEPS, round(ROUND_S / run(3)))) for name, run in contestants.items()}
    for _ in range(2):  # the engine compares both forms before it takes the faster one
        contestants["engine"](20)
    times_s: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            times_s[name].append(run(steps[name]))
    for process in processes.values():
        process.close()
    found = {f"{name}_ms": round(statistics.median(each) * 1e3, 4) for name, each in times_s.items()}
    return found | {"behind": min(state.positions), "error": error, "rounds": rounds}


def with_ratios(results: dict[str, Any]) -> dict[str, Any]:
    """The record, with what the targets name: relative to attention, to before, and of 8 rows to 8 times one."""
    for of_size in results.values():
        for of_precision in of_size.values():
            for of_kind in of_precision.values():
                for rows, cell in of_kind.items():
                    attention = of_precision.get("attention", {}).get(rows, {})
                    one, ms = of_kind.get("1", {}).get("engine_ms"), cell.get("compiled_ms")
                    ratios = {
                        "times_as_fast_as_attention": attention.get("compiled_ms"),
                        "times_as_fast_as_ordinary": cell.get("ordinary_ms"),
                        "times_as_fast_as_before": cell.get("before_ms"),
                    }
                    if cell.get("own_process_ms"):
                        ratio = cell["before_ms"] / cell["own_process_ms"]
                        cell["ordinary_times_as_fast_as_before"] = round(ratio, 3)
                    cell |= {name: round(other / ms, 3) for name, other in ratios.items() if other and ms}
                    if rows != "1" and one and "engine_ms" in cell:
                        cell["share_of_rows_times_one"] = round(cell["engine_ms"] / (int(rows) * one), 3)
    return results


def cell_of(results: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """What the record has of a cell; an empty dictionary, which is now part of the record, if nothing."""
    for name in cell.path:
        results = results.setdefault(name, {})
    return results


def models_of(cells: list[Cell]) -> Iterator[tuple[list[Cell], Decoder]]:
    """The cells of each model in turn, with the model, which serves all its numbers of rows."""
    for (size, precision, _), of_model in groupby(cells, key=lambda cell: cell.path[:3]):
        each = list(of_model)
        decoder = decoder_of(model(each[0].mixer, SIZES[size]))
        if precision != "float32":
            convert_weights(decoder, precision)
        yield each, decoder


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*kinds(), *WITH_POLICY]
    parser.add_argument("--threads", type=int, default=1, help="processor threads (default 1)")
    parser.add_argument("--rounds", type=int, default=5, help="of all contestants in turn (default 5)")
    parser.add_argument("--minutes", type=float, default=15.0, help="no cell is begun after so many (default 15)")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--kinds", nargs="+", choices=known, default=["attention", *sorted({*known} - {"attention"})])
    parser.add_argument("--precisions", nargs="+", choices=get_args(Precision), default=list(get_args(Precision)))
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--before", type=Path, help="a checkout of an earlier commit, whose ordinary step is timed too")
    parser.add_argument("--build-only", action="store_true", help="compile what is missing, and measure nothing")
    parser.add_argument("--again", action="store_true", help="also measure cells that the record has of this commit")
    parser.add_argument("--record", default="compiled_steps", help="the name of the record in results/")
    return parser.parse_args()


def main() -> None:
    """Compile, check, then time, cell by cell."""
    arguments = parsed()
    torch.set_num_threads(arguments.threads)
    until_s = time.perf_counter() + 60 * arguments.minutes
    results, commit = record_of(arguments.record), machine()["commit"]
    cells = [
        Cell(size, precision, kind, rows)
        for size in arguments.sizes
        for precision in arguments.precisions
        for kind in arguments.kinds
        for rows in arguments.rows
    ]
    left = [cell for cell in cells if arguments.again or cell_of(results, cell).get("commit") != commit]
    for of_model, decoder in models_of(left):
        if time.perf_counter() >= until_s:
            break
        examples = [state_of(decoder, cell, ROOM, tokens=2) for cell in of_model]  # a bank is of its room
        assert all(can_compile(decoder, state) for state in examples)
        build_all([package_of(decoder, state) for state in examples], until_s)
        for cell in () if arguments.build_only else of_model:
            BUILDS.enabled = True
            cell_of(results, cell).clear()
            cell_of(results, cell).update(measure(cell, decoder, arguments.before, arguments.rounds), commit=commit)
            BUILDS.enabled = False
            shape = (
                f"ms of a step; constant states behind 32 tokens, others behind 1,024; {arguments.threads} thread(s)"
            )
            write_record(arguments.record, {"shape": shape, "cells": with_ratios(results)})
            print(json.dumps({" ".join(cell.path): cell_of(results, cell)}), flush=True)
    measured = sum(cell_of(results, cell).get("commit") == commit for cell in cells)
    print(f"{measured} of {len(cells)} cells are measured at this commit ({RESULTS / arguments.record}.json)")


if __name__ == "__main__":
    main()
