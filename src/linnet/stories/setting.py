"""The setting of a plot, its signature, and the division of all settings between training and validation."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal

from linnet.stories.entities import Location, Thing

if TYPE_CHECKING:
    from linnet.stories.stage import Stage

Split = Literal["train", "validation"]
Signature = tuple[str, ...]
VALIDATION_SHARE = 0.1


@dataclass(frozen=True)
class Setting:
    """What a plot is about: where it happens, with which things, and its topic (a skill, a fear, a mishap)."""

    place: Location
    things: tuple[Thing, ...] = ()
    topic: str = ""


@dataclass(frozen=True)
class StoryPlot:
    """A kind of story: its name, every setting it can have, and the function that tells it on a stage."""

    name: str
    settings: tuple[Setting, ...]
    tell: "Callable[[Stage], None]"

    def signature(self, setting: Setting) -> Signature:
        """(plot, place, things..., topic): what must not occur in both splits."""
        return (self.name, setting.place.noun, *(thing.noun for thing in setting.things), setting.topic)

    def settings_of(self, split: Split) -> tuple[Setting, ...]:
        """The settings whose signatures belong to the split."""
        return tuple(setting for setting in self.settings if split_of(self.signature(setting)) == split)


def plot(settings: Iterable[Setting]) -> "Callable[[Callable[[Stage], None]], StoryPlot]":
    """Make a plot of a function; the plot takes the function's name."""
    return lambda tell: StoryPlot(tell.__name__, tuple(settings), tell)


def combine(
    places: Iterable[Location],
    *things: Iterable[Thing],
    topics: Iterable[str] = ("",),
) -> tuple[Setting, ...]:
    """Every combination of a place, one of each group of things, and a topic; no thing twice in one setting."""
    choices = product(places, topics, product(*things))
    return tuple(Setting(place, chosen, topic) for place, topic, chosen in choices if len({*chosen}) == len(chosen))


def split_of(signature: Signature) -> Split:
    """The split that a signature belongs to, by a stable hash of its text alone."""
    digest = hashlib.sha256("|".join(signature).encode()).digest()
    return "validation" if int.from_bytes(digest[:4]) < VALIDATION_SHARE * 2**32 else "train"
