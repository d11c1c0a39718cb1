"""Which figures of the page are of which commit and machine: a table from the records alone."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

Origin = Mapping[str, Any]
Figure = Mapping[str, Any]


def origins_table(origins: Mapping[str, Origin], figures: Mapping[str, Mapping[str, str]]) -> str:
    """As Markdown, a row for each origin that has figures. figures: by column and mixer, the number of its origin."""
    held: dict[str, list[str]] = {number: [] for number in origins}
    for column, of_mixers in figures.items():
        for number, mixers in by_origin(of_mixers).items():
            held[number].append(f"{column}: {mixers}")
    lines = ["| commit | day | processor | figures |", "|---|---|---|---|"]
    return "\n".join(lines + [row(origins[number], columns) for number, columns in held.items() if columns])


def origin_of(figure: Figure) -> str:
    """The number of a figure's origin."""
    return str(figure["made"]["origin"])


def of_seeds(title: str, mixers: Mapping[str, Sequence[Figure]]) -> dict[str, dict[str, str]]:
    """Each mixer's origin by its first seed, and under `title, more seeds` that of the others where it is another."""
    first = {name: origin_of(figures[0]) for name, figures in mixers.items() if figures}
    more: dict[str, str] = {}
    for name, figures in mixers.items():
        numbers = {figure["seed"]: origin_of(figure) for figure in figures[1:]}
        alike = len(set(numbers.values())) == 1
        more |= {name if alike else f"{name} with seed {seed}": number for seed, number in numbers.items()}
    same = all(first.get(name) == number for name, number in more.items())
    return {title: first} if same else {title: first, f"{title}, more seeds": more}


def by_origin(of_mixers: Mapping[str, str]) -> dict[str, str]:
    """Whose figures are of an origin, in words: who has most is called all others."""
    found: dict[str, list[str]] = defaultdict(list)
    for mixer, number in of_mixers.items():
        found[number].append(mixer)
    most = max(found, key=lambda number: len(found[number]), default="")
    others = "all" if len(found) == 1 else "all others"
    return {number: others if number == most else ", ".join(mixers) for number, mixers in found.items()}


def row(origin: Origin, columns: Sequence[str]) -> str:
    """One line of the table."""
    day = origin.get("date") or "unknown"
    return f"| {commit_said(origin)} | {day} | {machine_said(origin)} | {'; '.join(columns)} |"


def commit_said(origin: Origin) -> str:
    """The commit; where it is not known, the one that brought the figures into the record."""
    known = origin.get("commit")
    return str(known) if known else f"unknown; recorded in {origin.get('recorded') or 'unknown'}"


def machine_said(origin: Origin) -> str:
    """The processor, and whether it multiplies in tiles."""
    amx = {True: ", AMX", False: ", no AMX", None: ""}[origin.get("amx")]
    return f"{origin.get('processor') or 'unknown'}{amx}"
