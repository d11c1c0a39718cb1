"""The demo's text: stories written by `linnet.stories`, prepared once and reused."""

import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from linnet.data.prepare import prepare_texts
from linnet.data.shards import Manifest, TokenData
from linnet.data.split import Split
from linnet.data.tokenizer import Tokenizer
from linnet.experiments.demo.recipes import CORPUS_SEED, NAMES, STORIES_PER_VALIDATION_STORY, VOCAB_SIZE
from linnet.present.progress import progress
from linnet.stories import texts


@dataclass(frozen=True)
class Corpus:
    """A data folder and what it holds, counted per split. `xz_bits_per_byte`: of the validation text, for scale."""

    folder: Path
    manifest: Manifest
    tokenizer: Tokenizer
    xz_bits_per_byte: float
    reused: bool

    def stories(self, split: Split) -> int:
        """Stories in a split."""
        return self.manifest.splits[split].documents

    def tokens(self, split: Split) -> int:
        """Tokens in a split."""
        return self.manifest.splits[split].tokens

    def bytes(self, split: Split) -> int:
        """Bytes of text in a split."""
        return self.manifest.splits[split].bytes


def build_corpus(folder: Path, stories: int) -> Corpus:
    """Write and prepare `stories` training stories and a share of validation stories, unless they are there."""
    name = f"linnet.stories, seed {CORPUS_SEED}, {stories} stories, {3 * NAMES} names"
    reused = folder.is_dir() and TokenData.open(folder).manifest.sources[0].file == name
    if not reused:
        held_out = validation_stories(stories)
        with progress("writing stories", stories + held_out, "stories") as advance:

            def written(count: int, split: Split) -> Iterator[str]:
                for text in texts(count, CORPUS_SEED, split, NAMES):
                    advance(1)
                    yield text

            train, validation = list(written(stories, "train")), list(written(held_out, "validation"))
        prepare_texts(train, validation, folder, "bpe", VOCAB_SIZE, name, overwrite=True)
    data = TokenData.open(folder)
    return Corpus(folder, data.manifest, data.tokenizer, _xz_bits_per_byte(data), reused)


def validation_stories(stories: int) -> int:
    """How many stories are held out beside `stories` to train on."""
    return max(2, stories // STORIES_PER_VALIDATION_STORY)


def _xz_bits_per_byte(data: TokenData) -> float:
    """What a general compressor makes of the validation text, having seen no other."""
    sequence = data.split("validation")
    text = data.tokenizer.decode(sequence.read(0, len(sequence)).tolist()).encode()
    return 8 * len(lzma.compress(text, preset=9)) / len(text)
