"""The page of the atlas and its plots, from the record alone."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from abilities_page import section

from linnet.core.files import write_text
from linnet.evaluation.statistics import accuracy
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Series

Mixer = Mapping[str, Any]
TITLES = {"tinystories": "TinyStories", "wikitext2": "WikiText-2"}
SPEEDS = ("training_tokens_per_s", "decode_tokens_per_s")
TEMPLATE = Path(__file__).parent / "page.md"


def write_page(found: Mapping[str, Any], page: Path, abilities: Mapping[str, Any] | None = None) -> None:
    """The page, and `atlas-time.png` and `atlas-state.png` beside it; its second part where that has a record."""
    mixers = sorted(found["mixers"], key=lambda mixer: mean(mixer, "tinystories"))
    quality_against_time(mixers).write(page.with_name("atlas-time.png"))
    quality_against_state(mixers).write(page.with_name("atlas-state.png"))
    first = TEMPLATE.read_text(encoding="utf-8").format(**parts(found, mixers))
    write_text(page, first + section(abilities, page))


def parts(found: Mapping[str, Any], mixers: Sequence[Mixer]) -> dict[str, str]:
    """What the template leaves open."""
    counted = " and ".join(f"{bits:.3f} on {TITLES[key]}" for key, bits in found["n_gram"]["bits_per_byte"].items())
    return {
        "table": "\n".join(table(mixers)),
        "noise": f"{noise(mixers):.3f}",
        "order": found["n_gram"]["order"],
        "counted": counted,
        "tokens": numbers.grouped(found["tokens"]),
        "story_tokens": numbers.grouped(found["story_tokens"]),
        "commit": found["commit"],
        "machine": "; ".join(f"{key} {value}" for key, value in found["machine"].items()),
    }


def noise(mixers: Sequence[Mixer]) -> float:
    """Twice the root of the mean variance of the seeds, of all that have several, as a difference of two."""
    spreads = [
        statistics.variance(text["equal_tokens"])
        for mixer in mixers
        for text in mixer["bits_per_byte"].values()
        if len(text["equal_tokens"]) > 1
    ]
    return 2 * math.sqrt(2 * statistics.fmean(spreads))


def mean(mixer: Mixer, text: str) -> float:
    """Bits per byte at equal tokens."""
    return statistics.fmean(mixer["bits_per_byte"][text]["equal_tokens"])


def deviation(mixer: Mixer, text: str) -> float:
    """Between seeds; 0 where there is one."""
    seeds = mixer["bits_per_byte"][text]["equal_tokens"]
    return statistics.stdev(seeds) if len(seeds) > 1 else 0.0


def table(mixers: Sequence[Mixer]) -> list[str]:
    """As Markdown, best on TinyStories first."""
    timed = [text for text in TITLES if any(mixer["bits_per_byte"][text]["equal_time"] for mixer in mixers)]
    heads = ["mixer", *TITLES.values(), *(f"{TITLES[text]}, attention's time" for text in timed)]
    heads += ["training, tokens/s", "decoding, tokens/s", "state at 1k", "state at 64k", "names kept"]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    return lines + ["| " + " | ".join(cells(mixer, timed)) + " |" for mixer in mixers]


def cells(mixer: Mixer, timed: Sequence[str]) -> list[str]:
    """A row of the table."""
    bits, names = mixer["bits_per_byte"], mixer["names"]
    return [
        mixer["name"],
        *(quality(mixer, text) for text in TITLES),
        *(f"{bits[text]['equal_time']:.3f}" if bits[text]["equal_time"] else "–" for text in timed),
        *(numbers.grouped(mixer[speed]) if speed in mixer else "–" for speed in SPEEDS),
        *(numbers.binary(size) for size in mixer["state_bytes"].values()),
        names_kept(names) if names else "–",
    ]


def names_kept(names: Mapping[str, int]) -> str:
    """In percent, with the binomial standard error of so many mentions."""
    kept = accuracy(names["right"], names["mentions"])
    return f"{100 * kept.value:.1f} ± {100 * (kept.standard_error or 0.0):.1f} %"


def quality(mixer: Mixer, text: str) -> str:
    """The mean, with the spread where there are several seeds."""
    spread = deviation(mixer, text)
    return f"{mean(mixer, text):.3f}" + (f" ± {spread:.3f}" if spread else "")


def quality_against_time(mixers: Sequence[Mixer]) -> Plot:
    """Microseconds of training a token, of those that were timed."""
    mixers = [mixer for mixer in mixers if SPEEDS[0] in mixer]
    return scattered(mixers, "microseconds of training a token", lambda mixer: 1e6 / mixer["training_tokens_per_s"])


def quality_against_state(mixers: Sequence[Mixer]) -> Plot:
    """KiB kept of a text of 65,536 tokens."""
    return scattered(mixers, "KiB of state at 65,536 tokens", lambda mixer: mixer["state_bytes"]["65536"] / 1024)


def scattered(mixers: Sequence[Mixer], title: str, measure: Callable[[Mixer], float]) -> Plot:
    """A panel for each text: a point with its spread and name for each mixer."""
    panels = []
    for text, name in TITLES.items():
        series = []
        for colour, attends in enumerate((True, False)):
            own = [mixer for mixer in mixers if grows(mixer) == attends]
            bits, spread = [mean(one, text) for one in own], [deviation(one, text) for one in own]
            low, high = ([b + sign * s for b, s in zip(bits, spread, strict=True)] for sign in (-1, 1))
            x, labels = [measure(one) for one in own], [one["name"] for one in own]
            kind = "state grows with the text" if attends else "state of constant size"
            series.append(Series(x, bits, kind, "o", colour, low, high, labels=labels))
        panels.append(Panel(Axis(title, "log"), with_room([mean(one, text) for one in mixers]), series, title=name))
    return Plot(panels, columns=2, size=(6.5, 5.0))


def with_room(bits: Sequence[float]) -> Axis:
    """An axis with room for names above and below the points."""
    low, high = min(bits), max(bits)
    return Axis("bits per byte", low=low - 0.2 * (high - low), high=high + 0.3 * (high - low))


def grows(mixer: Mixer) -> bool:
    """Whether its state does, with the text."""
    short, long = mixer["state_bytes"].values()
    return bool(long > short)
