"""The text of an experiment: prepared once, then reused by whoever asks for the same."""

from collections.abc import Iterator
from pathlib import Path

from linnet.data.split import Split
from linnet.data.token_data import TokenData
from linnet.present.progress import progress
from linnet.stories import texts

STORIES_SEED = 0
STORIES_PER_VALIDATION_STORY = 20


def built_in_stories(stories: int, names: int) -> tuple[list[str], list[str]]:
    """So many stories to train on, with `names` of each kind, and those held out beside them."""
    held_out = validation_stories(stories)
    with progress("writing stories", stories + held_out, "stories") as advance:

        def written(count: int, split: Split) -> Iterator[str]:
            for text in texts(count, STORIES_SEED, split, names):
                advance(1)
                yield text

        return list(written(stories, "train")), list(written(held_out, "validation"))


def validation_stories(stories: int) -> int:
    """How many stories are held out beside `stories` to train on."""
    return max(2, stories // STORIES_PER_VALIDATION_STORY)


def is_prepared(folder: Path, name: str) -> bool:
    """Whether a folder holds the text of that name, prepared by an earlier call."""
    return folder.is_dir() and TokenData.open(folder).manifest.sources[0].file == name
