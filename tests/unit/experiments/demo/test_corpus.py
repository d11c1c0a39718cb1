"""The demo's text: built once, built again when asked for another amount."""

from pathlib import Path

import pytest

from linnet.data.token_data import TokenData
from linnet.experiments.demo.corpus import Corpus, build_corpus
from linnet.experiments.demo.recipes import NAMES
from linnet.experiments.text import STORIES_SEED, validation_stories
from linnet.stories import texts

STORIES = 60


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return build_corpus(tmp_path_factory.mktemp("demo") / "data", STORIES)


def test_it_holds_the_stories_of_its_split(corpus: Corpus):
    data = TokenData.open(corpus.folder)
    for split, count in (("train", STORIES), ("validation", validation_stories(STORIES))):
        sequence = data.split(split)
        text = data.tokenizer.decode(sequence.read(0, len(sequence)).tolist())
        stories = list(texts(count, STORIES_SEED, split, NAMES))
        counted = vars(corpus.figures)
        assert counted[f"{split}_stories"] == len(stories)
        assert counted[f"{split}_tokens"] == len(sequence)
        assert counted[f"{split}_bytes"] == len(text.encode()) == sum(len(story.encode()) for story in stories)
        assert all(story in text for story in stories)


def test_xz_finds_some_order_in_the_text_but_not_much(corpus: Corpus):
    assert 1.5 < corpus.figures.xz_bits_per_byte < 5


def test_it_is_reused_as_it_is(corpus: Corpus):
    written = {path: path.stat().st_mtime_ns for path in corpus.folder.iterdir()}
    again = build_corpus(corpus.folder, STORIES)
    assert (corpus.reused, again.reused) == (False, True)
    assert {path: path.stat().st_mtime_ns for path in corpus.folder.iterdir()} == written
    assert again.figures == corpus.figures and again.tokenizer.hash == corpus.tokenizer.hash


def test_another_number_of_stories_is_another_corpus(tmp_path: Path):
    build_corpus(tmp_path / "data", 45)
    larger = build_corpus(tmp_path / "data", 50)
    assert not larger.reused
    assert larger.figures.train_stories == 50
