"""The demo's folder, and its text: stories written by `linnet.stories`, prepared once and reused."""

import lzma
from dataclasses import asdict, dataclass
from pathlib import Path

from linnet.core.atomic import is_leftover
from linnet.core.checksum import read_checked_json, write_checked_json
from linnet.core.errors import UserError
from linnet.data.prepare import prepare_texts
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer
from linnet.experiments.demo.figures import CorpusFigures
from linnet.experiments.demo.recipes import NAMES, VOCAB_SIZE
from linnet.experiments.text import STORIES_SEED, built_in_stories, is_prepared
from linnet.stories import names_of


@dataclass(frozen=True)
class Corpus:
    """A data folder, its tokenizer, what it holds, and whether it was there already."""

    folder: Path
    tokenizer: Tokenizer
    figures: CorpusFigures
    reused: bool


def build_corpus(folder: Path, stories: int) -> Corpus:
    """Write and prepare `stories` training stories and a share of validation stories, unless they are there."""
    name = f"linnet.stories, seed {STORIES_SEED}, {stories} stories, {len(names_of(NAMES))} names"
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
        names=len(names_of(NAMES)),
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


SETTINGS, DATA = "demo.json", "data"


@dataclass(frozen=True)
class Settings:
    """What decides the corpus and the models: a demo goes on only with the same."""

    stories: int
    steps: int
    seed: int


def claim(out: Path, settings: Settings) -> None:
    """Make `out` this demo's folder; `UserError` where it is a file, another demo's, or holds anything else."""
    if out.exists() and not out.is_dir():
        raise UserError("is a file", field="out", value=out, accepted="a new folder or that of a demo")
    if (out / SETTINGS).is_file():
        _check_same(out, settings)
        return
    if out.is_dir() and not all(map(is_leftover, out.iterdir())):
        raise UserError(
            f"holds other files (no {SETTINGS})", field="out", value=out, accepted="a new folder or that of a demo"
        )
    write_checked_json(out / SETTINGS, asdict(settings))


def _check_same(out: Path, settings: Settings) -> None:
    found = read_checked_json(out / SETTINGS)
    for field, wanted in asdict(settings).items():
        value = found.get(field) if isinstance(found, dict) else None
        if value != wanted:
            raise UserError(
                f"holds a demo with {field}: {value!r}, not {wanted!r}; choose another `out`, the same settings to go"
                " on, or remove the folder",
                field="out",
                value=out,
            )
