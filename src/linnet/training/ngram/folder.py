"""An n-gram model on disk.

Its folder holds `ngram.json` (what the model is), `counts.safetensors` (keys, counts and suffixes of each length),
`tokenizer.json`, `run.json` (how it was made), and `manifest.json` with the size and the hash of each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from linnet.core.arrays import read_tensors, write_tensors
from linnet.core.atomic import atomic_directory, not_replaced, restore
from linnet.core.checksum import check_files, write_file_checksums
from linnet.core.errors import UserError
from linnet.core.files import read_json, write_json
from linnet.core.spec import Spec, Vocabulary
from linnet.data.tokenizer import TOKENIZER, Tokenizer
from linnet.model.store import NGRAM
from linnet.training.ngram.counts import MOST_ORDER, NGramTable
from linnet.training.ngram.kneser_ney import NGram

DESCRIPTION, COUNTS, RUN = NGRAM, "counts.safetensors", "run.json"

PARTS = ("keys", "counts", "suffixes")


class NGramSpec(Spec):
    """What an n-gram model is. `tokenizer`: the hash of the tokenizer whose tokens were counted."""

    version: Literal[1] = 1
    smoothing: Literal["modified Kneser-Ney"] = "modified Kneser-Ney"
    order: int = Field(ge=1, le=MOST_ORDER)
    vocab_size: Vocabulary
    end_id: int = Field(ge=0)
    tokenizer: str


@dataclass(frozen=True)
class StoredNGram:
    """A model with its tokenizer, and the folder that it was read from."""

    model: NGram
    tokenizer: Tokenizer
    folder: Path


def write_ngram(folder: str | Path, model: NGram, tokenizer: Tokenizer, made: Mapping[str, Any]) -> None:
    """Write a whole folder or nothing; `made` becomes `run.json`."""
    spec = NGramSpec(order=model.order, vocab_size=model.vocab_size, end_id=model.end_id, tokenizer=tokenizer.hash)
    tensors = {
        f"{length}.{part}": torch.from_numpy(getattr(table, part))
        for length, table in enumerate(model.tables, start=1)
        for part in PARTS
    }
    with atomic_directory(folder) as temporary:
        write_tensors(temporary / COUNTS, tensors)
        write_json(temporary / DESCRIPTION, spec.model_dump())
        tokenizer.save(temporary / TOKENIZER)
        write_json(temporary / RUN, made)
        write_file_checksums(temporary, (DESCRIPTION, COUNTS, TOKENIZER, RUN))


def load_ngram(folder: str | Path) -> StoredNGram:
    """Read a folder that `write_ngram` made; `UserError` names what is missing in it, changed, or does not fit."""
    folder = Path(folder)
    restore(folder)
    if not (folder / DESCRIPTION).is_file():
        raise UserError(f"{folder}: not an n-gram model (no {DESCRIPTION}); `linnet ngram train` makes one")
    with not_replaced(folder):
        check_files(folder, (DESCRIPTION, COUNTS, TOKENIZER))
        spec = NGramSpec.parse(read_json(folder / DESCRIPTION), str(folder / DESCRIPTION))
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        _check_tokenizer(spec, tokenizer, folder)
        tables = _read_tables(folder / COUNTS, spec)
    return StoredNGram(NGram(tables, spec.end_id), tokenizer, folder)


def _check_tokenizer(spec: NGramSpec, tokenizer: Tokenizer, folder: Path) -> None:
    if tokenizer.hash != spec.tokenizer:
        raise UserError(
            f"{folder / TOKENIZER}: not the tokenizer whose tokens were counted (hash {tokenizer.hash[:12]},"
            f" {DESCRIPTION} says {spec.tokenizer[:12]})"
        )
    if (tokenizer.vocab_size, tokenizer.end_id) != (spec.vocab_size, spec.end_id):
        said = f"vocab_size {tokenizer.vocab_size} and end_id {tokenizer.end_id}, as in {TOKENIZER}"
        raise UserError(f"{folder / DESCRIPTION}: expected {said}")


def _read_tables(path: Path, spec: NGramSpec) -> Sequence[NGramTable]:
    tensors = read_tensors(path)
    tables = list[NGramTable]()
    for length in range(1, spec.order + 1):
        names = [f"{length}.{part}" for part in PARTS]
        for name in names:
            found = tensors.get(name)
            if found is None or found.dim() != 1 or found.dtype not in (torch.int32, torch.int64):
                raise UserError(f"{path}: {name}: expected a row of whole numbers of 32 or 64 bits")
        keys, counts, suffixes = (tensors.pop(name).clone().numpy() for name in names)
        table = NGramTable(keys.astype(np.int64, copy=False), counts, suffixes, spec.vocab_size)
        _check_table(table, tables[-1] if tables else None, f"{path}: n-grams of length {length}")
        tables.append(table)
    return tables


def _check_table(table: NGramTable, shorter: NGramTable | None, said: str) -> None:
    """`UserError` for numbers that lead nowhere: what is looked up by them has to be there."""
    if not len(table.keys) == len(table.counts) == len(table.suffixes):
        raise UserError(f"{said}: expected as many keys as counts and suffixes")
    if shorter is None:
        fits = np.array_equal(table.keys, np.arange(table.vocab_size)) and table.counts.min() >= 0 < table.counts.max()
        fits = fits and not table.suffixes.any()
    else:
        ascend = bool((np.diff(table.keys) > 0).all())
        numbers = [table.keys // table.vocab_size, table.suffixes]
        within = all(not len(part) or (part.min() >= 0 and part.max() < len(shorter)) for part in numbers)
        fits = ascend and within and bool((table.counts > 0).all())
    if not fits:
        raise UserError(
            f"{said}: expected ascending keys, counts above 0, and numbers of shorter n-grams that are there"
        )
