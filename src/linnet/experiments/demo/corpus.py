"""The demo's text: stories written by `linnet.stories`, prepared once and reused."""

import lzma
from dataclasses import dataclass
from pathlib import Path

from linnet.data.prepare import prepare_texts
from linnet.data.shards import TokenData
from linnet.data.tokenizer import Tokenizer
from linnet.experiments.demo.figures import CorpusFigures
from linnet.experiments.demo.recipes import NAMES, VOCAB_SIZE
from linnet.experiments.text import STORIES_SEED, built_in_stories, is_prepared


@dataclass(frozen=True)
class Corpus:
    """A data folder, its tokenizer, what it holds, and whether it was there already."""

    folder: Path
    tokenizer: Tokenizer
    figures: CorpusFigures
    reused: bool


def build_corpus(folder: Path, stories: int) -> Corpus:
    """Write and prepare `stories` training stories and a share of validation stories, unless they are there."""
    name = f"linnet.stories, seed {STORIES_SEED}, {stories} stories, {3 * NAMES} names"
    reused = is_prepared(folder, name)
    if not reused:
        prepare_texts(*built_in_stories(stories, NAMES), folder, "bpe", VOCAB_SIZE, name, overwrite=True)
    data = TokenData.open(folder)
    return Corpus(folder, data.tokenizer, _figures(folder, data), reused)


def _figures(folder: Path, data: TokenData) -> CorpusFigures:
    train, validation = (data.manifest.splits[split] for split in ("train", "validation"))
    return CorpusFigures(
        folder=str(folder),
        vocab_size=data.manifest.tokenizer.vocab_size,
        train_stories=train.documents,
        train_tokens=train.tokens,
        train_bytes=train.bytes,
        validation_stories=validation.documents,
        validation_tokens=validation.tokens,
        validation_bytes=validation.bytes,
        xz_bits_per_byte=_xz_bits_per_byte(data),
    )


def _xz_bits_per_byte(data: TokenData) -> float:
    """What a general compressor makes of the validation text, having seen no other."""
    sequence = data.split("validation")
    text = data.tokenizer.decode(sequence.read(0, len(sequence)).tolist()).encode()
    return 8 * len(lzma.compress(text, preset=9)) / len(text)
