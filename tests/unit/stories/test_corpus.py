"""The corpus as a whole: reproducible, endless, two disjoint splits, spread over names, plots and openings."""

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.core.errors import UserError
from linnet.stories import Split, Story, signatures, stories, story, texts
from linnet.stories.corpus import MAX_WORDS, MIN_WORDS
from linnet.stories.plots import PLOTS
from linnet.stories.stage import StoryPlot

SPLITS = st.sampled_from(["train", "validation"])
WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")


def words(sample: list[Story]) -> Counter[str]:
    return Counter(word for one in sample for word in WORD.findall(one.text))


def opening(one: Story) -> str:
    """The first three words, every name made equal."""
    names = {character.name for character in one.cast}
    return " ".join("NAME" if word in names else word for word in WORD.findall(one.text)[:3])


@pytest.fixture(scope="module")
def train() -> list[Story]:
    return list(islice(stories(seed=0), 4000))


@pytest.fixture(scope="module")
def validation() -> list[Story]:
    return list(islice(stories(seed=0, split="validation"), 1000))


@given(seed=st.integers(-(2**40), 2**40), index=st.integers(0, 2**40), split=SPLITS)
@settings(max_examples=50, deadline=None)
def test_same_arguments_same_story(seed: int, index: int, split: Split) -> None:
    first = story(seed, index, split)
    assert first == story(seed, index, split)
    assert (first.seed, first.index, first.split) == (seed, index, split)
    assert first.text != story(seed + 1, index, split).text
    assert first.text != story(seed, index + 1, split).text


def test_a_story_does_not_depend_on_the_others() -> None:
    in_order = [one.text for one in islice(stories(seed=3), 40)]
    assert [story(3, index).text for index in reversed(range(40))] == in_order[::-1]
    assert list(texts(40, seed=3)) == in_order


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_story_does_not_depend_on_the_hash_seed(hash_seed: str) -> None:
    program = (
        "import hashlib; from linnet.stories import texts;"
        "print(hashlib.sha256('|'.join([*texts(200), *texts(200, 1, 'validation')]).encode()).hexdigest())"
    )
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    here = "|".join([*texts(200), *texts(200, 1, "validation")])
    assert done.stdout.strip() == hashlib.sha256(here.encode()).hexdigest()


def test_unknown_split_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match=r"'test'.*train, validation"):
        story(0, 0, "test")  # type: ignore[arg-type]


def test_no_signature_is_in_both_splits() -> None:
    assert signatures("train").isdisjoint(signatures("validation"))
    every = [plot.signature(setting) for plot in PLOTS for setting in plot.settings]
    assert len(set(every)) == len(every)
    assert signatures("train") | signatures("validation") == set(every)


@given(seed=st.integers(0, 2**40), index=st.integers(0, 2**40), split=SPLITS)
@settings(max_examples=50, deadline=None)
def test_a_story_has_a_signature_of_its_split(seed: int, index: int, split: Split) -> None:
    one = story(seed, index, split)
    assert one.signature in signatures(split)
    assert one.signature[0] == one.plot


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.name)
def test_every_plot_is_in_both_splits(plot: StoryPlot) -> None:
    in_validation = sum(signature[0] == plot.name for signature in signatures("validation"))
    assert 0.02 < in_validation / len(plot.settings) < 0.25
    assert plot.tell.__doc__


def test_validation_has_no_word_of_its_own(train: list[Story], validation: list[Story]) -> None:
    assert words(validation).keys() <= words(train).keys()


def test_no_story_is_told_twice(train: list[Story], validation: list[Story]) -> None:
    every = [one.text for one in (*train, *validation)]
    assert len(set(every)) > 0.999 * len(every)


def test_vocabulary_is_small(train: list[Story]) -> None:
    lower = Counter(word.lower() for word in words(train).elements())
    assert 600 < len(lower) < 1000
    often = sum(count >= 10 for count in lower.values())
    assert often > 0.95 * len(lower)


def test_length(train: list[Story]) -> None:
    lengths = [len(one.text.split()) for one in train]
    assert min(lengths) >= MIN_WORDS
    assert max(lengths) <= MAX_WORDS
    assert 100 < sum(lengths) / len(lengths) < 130
    assert {one.text.count("\n") for one in train} <= {0, 1, 2}


def test_names_plots_places_and_things_are_spread(train: list[Story]) -> None:
    heroes = Counter(one.cast[0].name for one in train)
    assert len(heroes) == 36
    assert max(heroes.values()) < 2 * min(heroes.values())
    plots = Counter(one.plot for one in train)
    assert len(plots) == len(PLOTS) >= 12
    assert max(plots.values()) < 2 * min(plots.values())
    places = Counter(one.signature[1] for one in train)
    assert len(places) == 11
    assert max(places.values()) < 0.25 * len(train)
    things = Counter(thing for one in train for thing in one.signature[2:-1])
    assert len(things) > 50
    assert max(things.values()) < 0.05 * sum(things.values())


def test_no_opening_and_no_ending_dominates(train: list[Story]) -> None:
    openings = Counter(opening(one) for one in train)
    assert max(openings.values()) < 0.2 * len(train)
    assert len(openings) > 30
    endings = Counter(one.text.rsplit(". ", 1)[-1] for one in train)
    assert max(endings.values()) < 0.1 * len(train)


def test_the_hero_is_named_again_and_again(train: list[Story]) -> None:
    counts = sorted(len(re.findall(rf"\b{one.cast[0].name}\b", one.text)) for one in train)
    assert counts[0] >= 3
    assert counts[len(counts) // 2] >= 7
    assert all(1 <= len([who for who in one.cast if who.name]) <= 3 for one in train)


def test_fewer_names_mean_fewer_names():
    few = {member.name for one in islice(stories(5, names=3), 400) for member in one.cast if member.name}
    parents = {"Mom", "Dad", "Grandma", "Grandpa"}
    assert len(few - parents) == 9
    few_names = story(5, 7, names=3)
    assert story(few_names.seed, few_names.index, few_names.split, few_names.names) == few_names
    with pytest.raises(UserError, match="names: 1: expected 2 to 12"):
        story(0, 0, names=1)
