"""Stories by seed and index: the public face of the generator."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count as count_from
from itertools import islice
from random import Random
from typing import get_args

from linnet.core.errors import UserError
from linnet.stories.casting import ALL_NAMES
from linnet.stories.entities import Character
from linnet.stories.events import StoryEvent
from linnet.stories.plots import PLOTS
from linnet.stories.stage import Setting, Signature, Split, Stage, StoryPlot

MIN_WORDS = 60
MAX_WORDS = 150


@dataclass(frozen=True)
class Story:
    """One story and the facts it tells.

    `text` has one to five paragraphs, one per line. `plot` is its name; `signature` (plot, place, things..., topic)
    decides the split; `cast` are its characters, the main one first; `events` all that happens in it, in order, told
    or not, and `told` those that the text tells. `seed`, `index`, `split` and `names` give the same story again.
    """

    text: str
    plot: str
    signature: Signature
    cast: tuple[Character, ...]
    events: tuple[StoryEvent, ...]
    seed: int
    index: int
    split: Split
    names: int = ALL_NAMES
    told: tuple[StoryEvent, ...] = ()


def story(seed: int, index: int, split: Split = "train", names: int = ALL_NAMES) -> Story:
    """The story number `index` of the endless corpus `seed`: 60 to 150 words.

    It depends on nothing but the arguments: not on other stories, the platform or the hash seed of Python. `names` of
    each kind (girls, boys, animals) may be given: fewer make an easier language. Raises `UserError` for an unknown
    split, or fewer than 2 or more than `ALL_NAMES` names.
    """
    if not 2 <= names <= ALL_NAMES:
        raise UserError(f"stories: names: {names}: expected 2 to {ALL_NAMES}")
    programme = _programme(split)
    for attempt in count_from():
        rng = Random(f"linnet stories {seed} {split} {index} {attempt}")
        plot, settings = rng.choice(programme)
        setting = rng.choice(settings)
        stage = Stage(rng, setting, names)
        plot.tell(stage)
        text = stage.text
        if MIN_WORDS <= len(text.split()) <= MAX_WORDS:
            break
    signature, cast, events = plot.signature(setting), tuple(stage.cast), tuple(stage.events)
    return Story(text, plot.name, signature, cast, events, seed, index, split, names, tuple(stage.told))


def stories(seed: int = 0, split: Split = "train", names: int = ALL_NAMES) -> Iterator[Story]:
    """The stories 0, 1, 2, ... of a seed, without end; `names` as in `story`."""
    return (story(seed, index, split, names) for index in count_from())


def texts(count: int, seed: int = 0, split: Split = "train", names: int = ALL_NAMES) -> Iterator[str]:
    """The texts of the first `count` stories of a seed; `names` as in `story`."""
    return (one.text for one in islice(stories(seed, split, names), count))


def signatures(split: Split) -> frozenset[Signature]:
    """Every signature that a story of the split can have, whatever the seed."""
    return frozenset(plot.signature(setting) for plot, settings in _programme(split) for setting in settings)


@cache
def _programme(split: Split) -> tuple[tuple[StoryPlot, tuple[Setting, ...]], ...]:
    """Every plot with the settings that belong to the split."""
    if split not in get_args(Split):
        raise UserError(f"stories: split: {split!r} is unknown; accepted: {', '.join(get_args(Split))}")
    return tuple((plot, plot.settings_of(split)) for plot in PLOTS)
