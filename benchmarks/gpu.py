"""All GPU measurements in one call of less than ten minutes: `make gpu`.

The contract tests on it; a table of Triton kernels against plain PyTorch; then tables of training and of decoding with
each mixer at about 124 M and 10 M parameters. A row is first checked, then timed; what was measured is written after
each row, so nothing is lost where the call is cut short. `python benchmarks/gpu.py --device cpu --tiny` runs the same
code with tiny models on a processor, in a minute or two: that is to try this script, not to measure anything.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gpu_contracts import contract_tests
from gpu_kernels import kernel_rows, why_none
from gpu_models import FIRST, SIZES, TINY, kinds
from gpu_rows import Row
from gpu_worker import Worker
from harness import RESULTS, machine
from linnet.core.errors import UserError
from linnet.core.files import write_json
from linnet.core.system import resolve_device
from linnet.layers.registry import MIXERS

TESTS_SHARE, TESTS_S = 0.4, 180.0
"""Largest share of the whole time, and seconds, of the contract tests."""

FORMS = ("fused", "graph", "eager", "compiled")
LIMITS_S = {"eager": 45.0, "graph": 45.0, "fused": 60.0, "compiled": 100.0}
LEAST_S = {"eager": 8.0, "graph": 8.0, "fused": 15.0, "compiled": 25.0}
"""Time limit of a row, and the remaining time below which a row is not started."""

BUILDS_SHARE = 0.45
"""Largest share of the whole time in which processes compile the steps of form `fused`; the tests run beside them."""

END_S = 5.0
STREAMS = (1, 32)
NOT_TIMED = {
    "compiled decoding": "on a GPU steps are recorded: with PyTorch's kernels (graph) or Inductor's (fused)",
    "float32 products with TF32": "float32 is float32 here",
}


def plan(tiny: bool) -> Iterator[Row]:
    """The rows by importance: decoding by recorded steps, three kinds in every form, then the others."""
    for size in TINY if tiny else SIZES:
        for form in ("fused", "graph"):
            yield from _recorded(tiny, [*FIRST, *(kind for kind in kinds() if kind not in FIRST)], size, form)
    yield from _rows(tiny, FIRST)
    yield from _rows(tiny, [kind for kind in kinds() if kind not in FIRST])


def _recorded(tiny: bool, some: Sequence[str], size: str, form: str) -> Iterator[Row]:
    """Decoding by recorded steps, with Inductor's kernels or PyTorch's."""
    for streams in (1, 2) if tiny else STREAMS:
        yield from (Row("decode", kind, size, "bfloat16", form, streams) for kind in some)


def _rows(tiny: bool, some: Sequence[str]) -> Iterator[Row]:
    """Bfloat16 eager, then compiled, then float32."""
    sizes = TINY if tiny else SIZES
    streams = (1, 2) if tiny else STREAMS
    yield from (Row("training", kind, size, "bfloat16") for size in sizes for kind in some)
    yield from (Row("decode", kind, size, "bfloat16", streams=n) for size in sizes for n in streams for kind in some)
    yield from (Row("training", kind, size, "bfloat16", "compiled") for size in sizes for kind in some)
    yield from (Row("training", kind, size, "float32") for size in sizes for kind in some)
    yield from (Row("decode", kind, size, "float32", streams=n) for size in sizes for n in streams for kind in some)


class ResultRecord:
    """Write the results so far; the file is complete at any time."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.path = path
        without = dict.fromkeys(sorted(MIXERS.keys() - kinds().keys()), "no `tiny-` preset to scale")
        self.content: dict[str, Any] = {
            "benchmark": "gpu",
            "machine": machine(),
            "seconds_allowed": seconds,
            "finished": False,
            "contract_tests": None,
            "kernels": [],
            "training": [],
            "decode": [],
            "left_out": NOT_TIMED | without,
        }

    def write(self, **found: Any) -> None:
        self.content |= found
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, self.content)

    def add(self, row: Row, figures: dict[str, Any]) -> None:
        described = {name: value for name, value in asdict(row).items() if name != "table" and value != 0}
        self.content[row.table].append(described | figures)
        self.write()

    def leave_out(self, row: Row, why: str) -> None:
        self.content["left_out"][str(row)] = why


def measure_rows(record: ResultRecord, worker: Worker, rows: list[Row], end_s: float) -> None:
    """Measure as many rows as the time permits."""
    for row in rows:
        left_s = end_s - time.monotonic() - END_S
        if left_s < LEAST_S[row.form]:
            record.leave_out(row, f"{max(0.0, left_s):.0f} s were left")
            continue
        problem = worker.start(left_s)
        if problem is not None:
            record.leave_out(row, f"the measuring process: {problem['error']}")
            continue
        left_s = end_s - time.monotonic() - END_S
        record.write(machine=record.content["machine"] | (worker.machine or {}))
        figures = worker.measure(row, max(1.0, min(left_s, LIMITS_S[row.form])))
        record.add(row, figures)
        print(f"{row}: {figures.get('error') or summary(figures)}", flush=True)


def summary(figures: dict[str, Any]) -> str:
    if "times_as_fast" in figures:
        return f"{figures['times_as_fast']} times as fast as plain PyTorch"
    share = "share_of_peak" if "share_of_peak" in figures else "share_of_bandwidth"
    return f"{figures['tokens_per_s']:,} tokens/s, {share.replace('_', ' ')} {figures[share]:.3f}"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu to try this script")
    parser.add_argument("--tiny", action="store_true", help="tiny models, few tests: to try this script")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="the forms to measure (all)")
    parser.add_argument("--sizes", nargs="+", choices=[*SIZES, *TINY], help="the sizes to measure (all)")
    parser.add_argument("--no-tests", action="store_true", help="without the contract tests")
    parser.add_argument("--seconds", type=float, default=560.0, help="for everything (default 560)")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu.json", help="what is written (results/gpu.json)")
    return parser.parse_args()


def run_tests(record: ResultRecord, arguments: argparse.Namespace) -> None:
    """Run the contract tests, and say how many pass."""
    tests_s = min(TESTS_S, TESTS_SHARE * arguments.seconds)
    tests = contract_tests(arguments.device, arguments.tiny, tests_s)
    record.write(contract_tests=tests)
    print("contract tests: " + ", ".join(f"{tests[name]} {name}" for name in ("passed", "failed", "error", "skipped")))
    if not any(tests[name] for name in ("passed", "failed", "error")):
        print(f"no contract test ran; the end of pytest's output:\n{tests.get('pytest_output', '')}")


@contextmanager
def built_beside(device: torch.device, rows: list[Row], limit_s: float) -> Iterator[None]:
    """Compile the steps of some rows while the block runs, and wait for them, but not longer than the limit."""
    if not rows:
        yield
        return
    builder = Worker(device)
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(builder.build_steps, rows, limit_s)
        yield
        found = building.result()
    builder.stop()
    print(f"compiled steps: {found.get('packages', found.get('error'))} for {len(rows)} rows", flush=True)


def main() -> None:
    arguments = parsed()
    begun_s = time.monotonic()
    try:
        device = resolve_device(arguments.device)
    except UserError as error:
        raise SystemExit(f"gpu: {error}; `make gpu` needs a GPU that PyTorch finds") from None
    record, worker = ResultRecord(arguments.out, arguments.seconds), Worker(device)
    sizes = arguments.sizes or [*SIZES, *TINY]
    rows = [row for row in plan(arguments.tiny) if row.form in arguments.forms and row.size in sizes]
    with built_beside(device, [row for row in rows if row.form == "fused"], BUILDS_SHARE * arguments.seconds):
        if not arguments.no_tests:
            run_tests(record, arguments)
    if (none := why_none(device)) is not None:
        record.content["left_out"]["kernels"] = none
    elif "eager" in arguments.forms:
        rows = [*kernel_rows(TINY if arguments.tiny else SIZES), *rows]
    try:
        measure_rows(record, worker, rows, begun_s + arguments.seconds)
    finally:
        worker.stop()
    record.write(finished=True, seconds_taken=round(time.monotonic() - begun_s, 1))
    print(f"written: {arguments.out}; {len(record.content['left_out'])} things left out")


if __name__ == "__main__":
    main()
