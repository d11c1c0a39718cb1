"""Which figures of the records are missing, or of another description than today's: the next call makes them anew.

Found without the texts' files, which no page can have: whether their content changed is told by a training alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from abilities import TASKS, Abilities
from measured import known_seconds
from record import AbilityRecord, AtlasRecord
from trainings import MORE_SEEDS, Atlas, titles
from wanted import Wanted

from linnet.experiments.runner import Runner

NOWHERE = Path("nowhere")
Found = Mapping[str, Any]


def outdated(found: Found) -> dict[str, list[str]]:
    """The names of such, by column, of `experiments/atlas.json`."""
    atlas = Atlas(AtlasRecord(NOWHERE, deepcopy(dict(found)), {}), NOWHERE, Runner(_silent))
    return {column: names for column, wanted in _wanted(atlas) if (names := _outdated(wanted))}


def _wanted(atlas: Atlas) -> Iterator[tuple[str, Sequence[Wanted]]]:
    *compared, stories = titles()
    seconds = known_seconds(compared[0], atlas.record, _silent)
    for text in compared:
        every = [run.name for run in text.spec.runs]
        yield text.title, atlas.seeds_wanted(text, every, (0,)) + atlas.seeds_wanted(text, atlas.best(text), MORE_SEEDS)
        yield f"{text.title}, attention's time", list(atlas.time_wanted(text, seconds))
    yield "names kept", atlas.names_wanted(stories)


def outdated_abilities(found: Found) -> dict[str, list[str]]:
    """The same of `experiments/atlas-abilities.json`."""
    abilities = Abilities(AbilityRecord(NOWHERE, deepcopy(dict(found)), {}), NOWHERE, _silent)
    return {TASKS[task]: names for task in TASKS if (names := _outdated(abilities.wanted(task)))}


def said(columns: Mapping[str, Sequence[str]]) -> str:
    """A line of the page."""
    if not columns:
        return "All are of today's description."
    named = "; ".join(f"{column}: {', '.join(names)}" for column, names in columns.items())
    return f"Not of today's description, or missing, so that the next call makes them: {named}."


def _outdated(wanted: Iterable[Wanted]) -> list[str]:
    return [one.name for one in wanted if one.reason is not None]


def _silent(_: str) -> None:
    """Nobody is told."""
