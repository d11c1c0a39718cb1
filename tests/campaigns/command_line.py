"""The campaigns from the command line."""

import argparse
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from example_settings import name_of

from campaigns import corruption, faults, fuzz, hostile, kills
from campaigns.campaign import Case, Ground, Result, fought
from campaigns.children import warm_up
from campaigns.oracle import Fault, Finding
from campaigns.record import plain, record, table
from campaigns.workspaces import documented, remove

CAMPAIGNS: dict[str, Callable[[Ground, int], Iterator[Case]]] = {
    module.__name__.rpartition(".")[2]: module.cases for module in (kills, corruption, fuzz, hostile, faults)
}
MINUTES = 50.0
SAMPLE = {"kills": 40, "corruption": 150, "fuzz": 150, "hostile": 150, "faults": 40}
"""Inputs of each campaign in a sample: those that take a second each are fewer."""

MEMORY = Path("/dev/shm")


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; 1 if anything was found."""
    asked = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    warm_up()
    chosen = asked.only or list(CAMPAIGNS)
    with _ground(asked) as ground:
        results = [_one(ground, name, asked, len(chosen)) for name in chosen]
        commands = len({subject.command.example for subject in ground.subjects})
    found = plain(results, commands, asked.seed)
    print(table(found))
    if asked.record:
        record(found)
    if asked.findings:
        asked.findings.write_text(json.dumps({result.campaign: told(result, 3) for result in results}))
    return int(any(result.findings for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python tests/campaigns", description=__doc__)
    parser.add_argument("--only", choices=list(CAMPAIGNS), nargs="+", help="these campaigns")
    parser.add_argument("--case", help="one input of it, by the name that a finding has")
    parser.add_argument("--commands", default="", help="examples that this expression is found in")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all of it, without the preparations")
    parser.add_argument(
        "--sample", action="store_true", help=f"one example of each command, {sum(SAMPLE.values())} inputs"
    )
    parser.add_argument("--count", type=int, help="inputs of each campaign at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shown", type=int, default=2, help="findings of each cause that are shown")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--record", action="store_true", help="keep the counts, and show them in docs/reliability.md")
    parser.add_argument("--findings", type=Path, help="a file for all findings, as JSON")
    return parser


@contextmanager
def _ground(asked: argparse.Namespace) -> Iterator[Ground]:
    """The ground of campaigns, in memory where the system has such a folder."""
    folder = Path(tempfile.mkdtemp(prefix="campaigns-", dir=MEMORY if MEMORY.is_dir() else None))
    examples = [example for example in documented() if re.search(asked.commands, example)]
    if asked.case:
        examples = [example for example in examples if asked.case.startswith(f"{example} [")]
    if asked.sample:
        examples = list({name_of(example.split()[1:]): example for example in reversed(examples)}.values())
    try:
        ground = Ground(folder, asked.jobs)
        ground.prepare(lambda example: example in examples)
        yield ground
    finally:
        remove(folder)


def _one(ground: Ground, name: str, asked: argparse.Namespace, of: int) -> Result:
    cases = CAMPAIGNS[name](ground, asked.seed)
    if asked.case:
        cases = iter([case for case in cases if case.name == asked.case])
    count = SAMPLE[name] if asked.sample else asked.count
    result = fought(ground, name, cases, None if asked.sample else asked.minutes / of, count)
    print(f"{name}: {result.inputs} inputs in {result.seconds:.0f} s")
    print("\n".join(told(result, asked.shown)), flush=True)
    return result


def told(result: Result, shown: int) -> list[str]:
    """Findings by their cause, some of each, with the names by which they are run alone."""
    return [
        line
        for (fault, common), found in grouped(result).items()
        for line in (
            f"{fault}, {len(found)} times: {common}",
            *(f"    --only {result.campaign} --case {case!r}\n        {one.told}" for case, one in found[:shown]),
        )
    ]


def grouped(result: Result) -> dict[tuple[Fault, str], list[tuple[str, Finding]]]:
    """Findings by their cause, as far as words tell it; the most frequent first."""
    groups: dict[tuple[Fault, str], list[tuple[str, Finding]]] = {}
    for case, finding in result.findings:
        groups.setdefault((finding.fault, cause(finding)), []).append((case, finding))
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def cause(finding: Finding) -> str:
    """What findings of one cause have in common."""
    if place := re.search(r"linnet/\S+:\d+ \| \w*", finding.told):
        return place[0]
    for common in ("a line of", "left over", "reaches the terminal"):
        if common in finding.told:
            return common
    return re.sub(r"\d+", "N", re.sub(r"[\w./-]*/", "", finding.told))[:110]
