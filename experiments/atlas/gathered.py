"""All that was found, as one record: `experiments/atlas.json`, which the page is made of."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import measured
from record import Record
from trainings import Text, common, models_of

from harness import machine

NAMES = "stories"


def gather(all_texts: Sequence[Text], work: Path, earlier: Record) -> dict[str, Any]:
    """From the record of before, the folders of the comparisons, and what was measured. Every figure of every seed."""
    compared = [text for text in all_texts if text.key != NAMES]
    stories = next(text for text in all_texts if text.key == NAMES)
    names = measured.names(stories, work)
    speeds = measured.known_speeds(work, earlier)
    found = []
    for name, model in models_of(all_texts[0]).items():
        bits = {text.key: of_text(text, work, name, earlier) for text in compared}
        entry = {"name": name, **measured.size(model), **speeds.get(name, {})}
        found.append({**entry, "names": earlier.names(name) or names.get(name), "bits_per_byte": bits})
    return {
        "commit": machine()["commit"],
        "machine": measured.machine_of_speeds(work, earlier),
        "tokens": tokens_of(all_texts[0]),
        "story_tokens": tokens_of(stories),
        "n_gram": earlier.content.get("n_gram") or counted(compared, work),
        "mixers": found,
    }


def counted(compared: Sequence[Text], work: Path) -> dict[str, Any]:
    """What counting reaches on each text."""
    return {"order": measured.ORDER, "bits_per_byte": {text.key: measured.counted(text, work) for text in compared}}


def tokens_of(text: Text) -> int:
    """That a training at equal tokens reads."""
    plain = common(text)
    steps, batch = (plain["training"][name] for name in ("steps", "batch_size"))
    return int(steps * batch * plain["model"]["context_length"])


def of_text(text: Text, work: Path, name: str, earlier: Record) -> dict[str, Any]:
    """Bits per byte by seed; and for attention's time (None: not trained)."""
    seeds = seeds_of(text, work, name, earlier)
    timed = earlier.timed(name, text.key) or next(iter(bits_of(work / f"{text.key}-time", name)), None)
    return {"equal_tokens": seeds, "equal_time": seeds[0] if name == "attention" else timed}


def seeds_of(text: Text, work: Path, name: str, earlier: Record) -> list[float]:
    """Bits per byte by seed: of the record, else of the first comparison; then of the one with more seeds."""
    first = earlier.seeds(name, text.key) or list(bits_of(work / text.key, name))
    return first if len(first) > 1 else [*first, *bits_of(work / f"{text.key}-seeds", name)]


def bits_of(folder: Path, name: str) -> Iterable[float]:
    """Of each seed that a comparison trained; nothing where it has no such run, or is not finished."""
    comparison = folder / "comparison.json"
    for run in json.loads(comparison.read_text())["runs"] if comparison.is_file() else ():
        if run["name"] == name:
            yield from (seed["bits_per_byte"] for seed in run["seeds"])
