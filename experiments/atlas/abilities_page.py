"""The second part of the atlas's page: who can, and who can not, from `experiments/atlas-abilities.json` alone."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from abilities import TASKS
from origins_page import of_seeds as of_seeds_by_origin
from origins_page import origins_table
from outdated import outdated_abilities
from outdated import said as said_of_outdated

from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Rule, Series

Found = Mapping[str, Any]
TEMPLATE = Path(__file__).parent / "abilities.md"
PICTURE = "atlas-abilities.png"

CAN, CAN_NOT = 0.95, "no better than chance"
"""From so many symbols right on it is said that a mixer can."""


def section(found: Found | None, page: Path) -> str:
    """The text, and its plot beside the page; nothing where the hour has not been run."""
    if found is None:
        return ""
    accuracy_against_state(found).write(page.with_name(PICTURE))
    steps = {task["steps"] for task in found["tasks"].values()}
    return TEMPLATE.read_text(encoding="utf-8").format(
        table="\n".join(table(found)),
        can=f"{CAN:.0%}",
        can_not=CAN_NOT,
        tasks="; ".join(task["name"] for task in found["tasks"].values()),
        steps=" or ".join(map(numbers.grouped, sorted(steps))),
        seeds=seeds_said(found),
        origins=origins_table(found["origins"], origins(found)),
        outdated=said_of_outdated(outdated_abilities(found)),
    )


def origins(found: Found) -> dict[str, dict[str, str]]:
    """Of each task the origin of each mixer's figures, by its number."""
    columns: dict[str, dict[str, str]] = {}
    for task, of_task in found["tasks"].items():
        mixers = {mixer["name"]: mixer["seeds"] for mixer in of_task["mixers"]}
        columns |= of_seeds_by_origin(TASKS[task], mixers)
    return columns


def seeds_said(found: Found) -> str:
    """How many seeds there are of a mixer, and what that tells of the spread."""
    counts = sorted({len(mixer["seeds"]) for task in found["tasks"].values() for mixer in task["mixers"]} - {0})
    if counts == [1]:
        return "one seed: nothing is known of the spread"
    return f"mean ± half the range of {' or '.join(map(str, counts))} seeds"


def table(found: Found) -> list[str]:
    """As Markdown, a row for each mixer, who is right most often over all tasks first."""
    tasks = found["tasks"]
    heads = ["mixer", *(f"{TASKS[task]}, %" for task in tasks), "state, bytes"]
    chances = ["*chance*", *(f"{100 * chance(task):.1f}" for task in tasks.values()), "–"]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1), "| " + " | ".join(chances) + " |"]
    return lines + ["| " + " | ".join(row(name, found)) + " |" for name in ranked(found)]


def ranked(found: Found) -> list[str]:
    """The mixers' names."""
    total: dict[str, float] = {}
    for task in found["tasks"].values():
        for mixer in task["mixers"]:
            total[mixer["name"]] = total.get(mixer["name"], 0.0) + (right(mixer) if mixer["seeds"] else 0.0)
    return sorted(total, key=lambda name: -total[name])


def row(name: str, found: Found) -> list[str]:
    """Of each task how often it is right and what that means, and its state behind an item of the first."""
    own = [of_mixer(task, name) for task in found["tasks"].values()]
    state = next((one["state_bytes"] for one in own if one["seeds"]), None)
    return [name, *map(cell, own), "–" if state is None else numbers.grouped(state)]


def cell(mixer: Found) -> str:
    """The share of symbols that are right, with the range of the seeds, and a word: can, or no better than chance."""
    if not mixer["seeds"]:
        return "diverged"
    shares = of_seeds(mixer)
    spread = f" ± {50 * (max(shares) - min(shares)):.1f}" if len(shares) > 1 else ""
    verdict = said(mixer)
    return f"{100 * right(mixer):.1f}{spread}" + (f", {verdict}" if verdict else "")


def said(mixer: Found) -> str:
    """`can` where every seed does, `no better than chance` where none is; else it is neither."""
    if min(of_seeds(mixer)) >= CAN:
        return "**can**"
    above = [better_than_chance(seed) for seed in mixer["seeds"]]
    return "" if any(above) else CAN_NOT


def better_than_chance(seed: Found) -> bool:
    """By symbols: more right than chance and three of its standard errors, an item counted as one draw."""
    expected = seed["symbols_chance"]
    return bool(seed["symbols_right"] > expected + 3 * (expected * (1 - expected) / seed["items"]) ** 0.5)


def of_mixer(task: Found, name: str) -> Found:
    """The mixer of that name."""
    return next(mixer for mixer in task["mixers"] if mixer["name"] == name)


def of_seeds(mixer: Found) -> Sequence[float]:
    """The share of symbols that are right, by seed."""
    return [seed["symbols_right"] for seed in mixer["seeds"]]


def right(mixer: Found) -> float:
    """Their mean."""
    return statistics.fmean(of_seeds(mixer))


def chance(task: Found) -> float:
    """Of a symbol, the same for all."""
    return float(next(seed["symbols_chance"] for mixer in task["mixers"] for seed in mixer["seeds"]))


def accuracy_against_state(found: Found) -> Plot:
    """A panel for each task: a point with its range and name for each mixer, and the line of chance."""
    panels = []
    for name, task in found["tasks"].items():
        own = [mixer for mixer in task["mixers"] if mixer["seeds"]]
        low, high = [min(of_seeds(one)) for one in own], [max(of_seeds(one)) for one in own]
        x, y, labels = [one["state_bytes"] for one in own], [right(one) for one in own], [one["name"] for one in own]
        points = Series(x, y, "", "o", 0, low, high, labels=labels)
        state = Axis("bytes of state behind an item", "log2", said=numbers.binary)
        share = Axis("share of symbols right", low=0.0, high=1.25)
        panels.append(Panel(state, share, [points], TASKS[name], [Rule(chance(task), "chance")]))
    return Plot(panels, columns=2, size=(6.5, 5.0))
