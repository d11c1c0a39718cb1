"""All that was found, as one record: `experiments/atlas.json`, which the page is made of."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import measured
from trainings import Text, common

from harness import machine

NAMES = "stories"


def gather(all_texts: Sequence[Text], work: Path) -> dict[str, Any]:
    """From the folders of the comparisons and what was measured. Every figure of every seed."""
    speeds = json.loads((work / "speeds.json").read_text())
    compared = [text for text in all_texts if text.key != NAMES]
    names = json.loads((work / "names.json").read_text())
    found = []
    for run in common(all_texts[0])["runs"]:
        name = run["name"]
        bits = {text.key: of_text(text, work, name) for text in compared}
        found.append({"name": name, **speeds["mixers"][name], "names": names.get(name), "bits_per_byte": bits})
    counted = {text.key: measured.counted(text, work) for text in compared}
    return {
        "commit": machine()["commit"],
        "machine": speeds["machine"],
        "tokens": tokens_of(all_texts[0]),
        "story_tokens": next(tokens_of(text) for text in all_texts if text.key == NAMES),
        "n_gram": {"order": measured.ORDER, "bits_per_byte": counted},
        "mixers": found,
    }


def tokens_of(text: Text) -> int:
    """That a training at equal tokens reads."""
    plain = common(text)
    steps, batch = (plain["training"][name] for name in ("steps", "batch_size"))
    return int(steps * batch * plain["model"]["context_length"])


def of_text(text: Text, work: Path, name: str) -> dict[str, Any]:
    """Bits per byte by seed; and for attention's time (None: not trained)."""
    seeds = [*bits_of(work / text.key, name), *bits_of(work / f"{text.key}-seeds", name)]
    times = work / f"{text.key}-time"
    timed = seeds[:1] if name == "attention" and times.exists() else list(bits_of(times, name))
    return {"equal_tokens": seeds, "equal_time": timed[0] if timed else None}


def bits_of(folder: Path, name: str) -> Iterable[float]:
    """Of each seed that a comparison trained; nothing where it has no such run, or is not finished."""
    comparison = folder / "comparison.json"
    for run in json.loads(comparison.read_text())["runs"] if comparison.is_file() else ():
        if run["name"] == name:
            yield from (seed["bits_per_byte"] for seed in run["seeds"])
