"""The page of the atlas and its plots, from the record alone.

A mixer that has no figure on a text yet has a dash there, and no point in its plot.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from abilities_page import section
from origins_page import of_seeds, origin_of, origins_table
from outdated import outdated, said
from trainings import TITLES

from linnet.core.files import write_text
from linnet.evaluation.statistics import accuracy
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Series

Mixer = Mapping[str, Any]
SPEEDS = ("training_tokens_per_s", "decode_tokens_per_s")
TEMPLATE = Path(__file__).parent / "page.md"


def write_page(found: Mapping[str, Any], page: Path, abilities: Mapping[str, Any] | None = None) -> None:
    """The page, and `atlas-time.png` and `atlas-state.png` beside it; its second part where that has a record."""
    mixers = sorted(found["mixers"], key=rank)
    quality_against_time(mixers).write(page.with_name("atlas-time.png"))
    quality_against_state(mixers).write(page.with_name("atlas-state.png"))
    first = TEMPLATE.read_text(encoding="utf-8").format(**parts(found, mixers))
    write_text(page, first + section(abilities, page))


def rank(mixer: Mixer) -> float:
    """Best on TinyStories first; who is not trained on them is last."""
    return mean(mixer, "tinystories") if seeds_of(mixer, "tinystories") else math.inf


def parts(found: Mapping[str, Any], mixers: Sequence[Mixer]) -> dict[str, str]:
    """What the template leaves open."""
    bits = {key: of_text["bits_per_byte"] for key, of_text in found["n_gram"]["bits_per_byte"].items()}
    counted = " and ".join(f"{value:.3f} on {TITLES[key]}" for key, value in bits.items())
    return {
        "table": "\n".join(table(mixers)),
        "noise": f"{noise(mixers):.3f}",
        "order": found["n_gram"]["order"],
        "counted": counted,
        "tokens": numbers.grouped(found["tokens"]),
        "story_tokens": numbers.grouped(found["story_tokens"]),
        "origins": origins_table(found["origins"], origins(found)),
        "outdated": said(outdated(found)),
    }


def origins(found: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Of each column the origin of each mixer's figure, by its number."""
    mixers = {mixer["name"]: mixer for mixer in found["mixers"]}
    columns: dict[str, dict[str, str]] = {}
    for text, title in TITLES.items():
        columns |= of_seeds(title, {name: seeds_of(mixer, text) for name, mixer in mixers.items()})
        times = {name: timed(mixer, text) for name, mixer in mixers.items()}
        columns[f"{title}, attention's time"] = {name: origin_of(time) for name, time in times.items() if time}
    for key, title in {"speed": "tokens/s", "size": "state", "names": "names kept"}.items():
        columns[title] = {name: origin_of(mixer[key]) for name, mixer in mixers.items() if mixer.get(key)}
    counted = found["n_gram"]["bits_per_byte"]
    return columns | {"counting": {TITLES[key]: origin_of(of_text) for key, of_text in counted.items()}}


def noise(mixers: Sequence[Mixer]) -> float:
    """Twice the root of the mean variance of the seeds, of all that have several, as a difference of two."""
    spreads = [
        deviation(mixer, text) ** 2
        for mixer in mixers
        for text in mixer["bits_per_byte"]
        if len(seeds_of(mixer, text)) > 1
    ]
    return 2 * math.sqrt(2 * statistics.fmean(spreads))


def seeds_of(mixer: Mixer, text: str) -> Sequence[Mapping[str, Any]]:
    """A figure for each seed at equal tokens."""
    found: Sequence[Mapping[str, Any]] = mixer["bits_per_byte"].get(text, {}).get("equal_tokens", ())
    return found


def timed(mixer: Mixer, text: str) -> Mapping[str, Any] | None:
    """The figure in attention's time; attention's own is that of its first seed."""
    if mixer["name"] == "attention":
        return next(iter(seeds_of(mixer, text)), None)
    found: Mapping[str, Any] | None = mixer["bits_per_byte"].get(text, {}).get("equal_time")
    return found


def bits_of(mixer: Mixer, text: str) -> list[float]:
    """Bits per byte at equal tokens, of each seed."""
    return [seed["bits_per_byte"] for seed in seeds_of(mixer, text)]


def mean(mixer: Mixer, text: str) -> float:
    """Bits per byte at equal tokens."""
    return statistics.fmean(bits_of(mixer, text))


def deviation(mixer: Mixer, text: str) -> float:
    """Between seeds; 0 where there is one."""
    seeds = bits_of(mixer, text)
    return statistics.stdev(seeds) if len(seeds) > 1 else 0.0


def table(mixers: Sequence[Mixer]) -> list[str]:
    """As Markdown, best on TinyStories first."""
    heads = ["mixer", *TITLES.values(), *(f"{title}, attention's time" for title in TITLES.values())]
    heads += ["training, tokens/s", "decoding, tokens/s", "state at 1k", "state at 64k", "names kept"]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    return lines + ["| " + " | ".join(cells(mixer)) + " |" for mixer in mixers]


def cells(mixer: Mixer) -> list[str]:
    """A row of the table."""
    names, speeds = mixer.get("names"), mixer.get("speed", {})
    times = [timed(mixer, text) for text in TITLES]
    return [
        mixer["name"],
        *(quality(mixer, text) for text in TITLES),
        *(f"{time['bits_per_byte']:.3f}" if time else "–" for time in times),
        *(numbers.grouped(speeds[speed]) if speed in speeds else "–" for speed in SPEEDS),
        *(numbers.binary(size) for size in mixer["size"]["state_bytes"].values()),
        names_kept(names) if names else "–",
    ]


def names_kept(names: Mapping[str, int]) -> str:
    """In percent, with the binomial standard error of so many mentions."""
    kept = accuracy(names["right"], names["mentions"])
    return f"{100 * kept.value:.1f} ± {100 * (kept.standard_error or 0.0):.1f} %"


def quality(mixer: Mixer, text: str) -> str:
    """The mean, with the spread where there are several seeds."""
    if not seeds_of(mixer, text):
        return "–"
    spread = deviation(mixer, text)
    return f"{mean(mixer, text):.3f}" + (f" ± {spread:.3f}" if spread else "")


def quality_against_time(mixers: Sequence[Mixer]) -> Plot:
    """Microseconds of training a token, of those that were timed."""
    mixers = [mixer for mixer in mixers if "speed" in mixer]
    return scattered(mixers, "microseconds of training a token", lambda mixer: 1e6 / mixer["speed"][SPEEDS[0]])


def quality_against_state(mixers: Sequence[Mixer]) -> Plot:
    """KiB kept of a text of 65,536 tokens."""
    return scattered(mixers, "KiB of state at 65,536 tokens", lambda one: one["size"]["state_bytes"]["65536"] / 1024)


def scattered(mixers: Sequence[Mixer], title: str, measure: Callable[[Mixer], float]) -> Plot:
    """A panel for each text: a point with its spread and name for each mixer."""
    panels = []
    for text, name in TITLES.items():
        series, there = [], [mixer for mixer in mixers if seeds_of(mixer, text)]
        for color, attends in enumerate((True, False)):
            own = [mixer for mixer in there if grows(mixer) == attends]
            bits, spread = [mean(one, text) for one in own], [deviation(one, text) for one in own]
            low, high = ([b + sign * s for b, s in zip(bits, spread, strict=True)] for sign in (-1, 1))
            x, labels = [measure(one) for one in own], [one["name"] for one in own]
            kind = "state grows with the text" if attends else "state of constant size"
            series.append(Series(x, bits, kind, "o", color, low, high, labels=labels))
        panels.append(Panel(Axis(title, "log"), with_room([mean(one, text) for one in there]), series, title=name))
    return Plot(panels, columns=2, size=(6.5, 5.0))


def with_room(bits: Sequence[float]) -> Axis:
    """An axis with room for names above and below the points."""
    low, high = min(bits), max(bits)
    return Axis("bits per byte", low=low - 0.15 * (high - low), high=high + 0.15 * (high - low))


def grows(mixer: Mixer) -> bool:
    """Whether its state does, with the text."""
    short, long = mixer["size"]["state_bytes"].values()
    return bool(long > short)
