"""Stories to train on and held out, and a data folder that is known again."""

from pathlib import Path

from linnet.data.prepare import prepare_texts
from linnet.experiments.data import (
    STORIES_PER_VALIDATION_STORY,
    STORIES_SEED,
    built_in_stories,
    is_prepared,
    validation_stories,
)
from linnet.stories import texts


def test_a_share_is_held_out_and_never_less_than_two_stories():
    assert validation_stories(100 * STORIES_PER_VALIDATION_STORY) == 100
    assert validation_stories(STORIES_PER_VALIDATION_STORY) == 2


def test_the_stories_are_those_of_their_split():
    train, validation = built_in_stories(60, names=2)
    assert train == list(texts(60, STORIES_SEED, "train", 2))
    assert validation == list(texts(3, STORIES_SEED, "validation", 2))


def test_a_folder_is_known_by_the_name_of_its_text(tmp_path: Path):
    assert not is_prepared(tmp_path / "data", "one")
    prepare_texts(["a bird sang."] * 3, ["a tree."] * 2, tmp_path / "data", "bytes", None, "one")
    assert is_prepared(tmp_path / "data", "one") and not is_prepared(tmp_path / "data", "two")
