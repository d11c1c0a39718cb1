"""The demo's text: stories written by `linnet.stories`, prepared once and reused."""

import lzma
from dataclasses import dataclass
from pathlib import Path

from linnet.data.prepare import prepare_texts
from linnet.data.shards import Manifest, TokenData
from linnet.data.split import Split
from linnet.data.tokenizer import Tokenizer
from linnet.experiments.demo.recipes import NAMES, VOCAB_SIZE
from linnet.experiments.text import STORIES_SEED, built_in_stories, is_prepared


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
    name = f"linnet.stories, seed {STORIES_SEED}, {stories} stories, {3 * NAMES} names"
    reused = is_prepared(folder, name)
    if not reused:
        prepare_texts(*built_in_stories(stories, NAMES), folder, "bpe", VOCAB_SIZE, name, overwrite=True)
    data = TokenData.open(folder)
    return Corpus(folder, data.manifest, data.tokenizer, _xz_bits_per_byte(data), reused)


def _xz_bits_per_byte(data: TokenData) -> float:
    """What a general compressor makes of the validation text, having seen no other."""
    sequence = data.split("validation")
    text = data.tokenizer.decode(sequence.read(0, len(sequence)).tolist()).encode()
    return 8 * len(lzma.compress(text, preset=9)) / len(text)
