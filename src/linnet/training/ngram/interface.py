"""The n-gram model on data folders and on disk: train, store, evaluate and generate; what `linnet ngram` does.

The folder of a model has `ngram.json` (its description), `counts.safetensors` (keys, counts and suffixes of each
length), `tokenizer.json`, `run.json` (how it was made), and `manifest.json` with the size and checksum of each.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from linnet.core.arrays import Indices, read_tensors, write_tensors
from linnet.core.atomic import atomic_directory, not_replaced, restore
from linnet.core.bounds import MAX_NGRAM_ORDER
from linnet.core.checksum import check_files, write_file_checksums
from linnet.core.errors import UserError
from linnet.core.files import read_json, write_json
from linnet.core.spec import Spec, Vocabulary
from linnet.core.system import available_bytes
from linnet.data.split import Split
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import TOKENIZER, Tokenizer
from linnet.inference.continuation import Continuation
from linnet.inference.sampling import Sampling
from linnet.inference.streams import Request, streams_of
from linnet.inference.text_events import TextEvents
from linnet.model.folder import NGRAM
from linnet.model.store import check_new_folder
from linnet.present import numbers
from linnet.present.progress import progress
from linnet.training.ngram.evaluation import NGramEvaluation, evaluate_tokens
from linnet.training.ngram.model import NGram, NGramTable, count_ngrams

BYTES_PER_TOKEN = 80
"""Memory for counting one more length: positions, keys, their order, and the table, if all n-grams differ."""

DESCRIPTION, COUNTS, RUN = NGRAM, "counts.safetensors", "run.json"
PARTS = ("keys", "counts", "suffixes")


class NGramSpec(Spec):
    """The description of an n-gram model. tokenizer: the hash of the tokenizer whose tokens were counted."""

    version: Literal[1] = 1
    smoothing: Literal["modified Kneser-Ney"] = "modified Kneser-Ney"
    order: int = Field(ge=1, le=MAX_NGRAM_ORDER)
    vocab_size: Vocabulary
    end_id: int = Field(ge=0)
    tokenizer: str


@dataclass(frozen=True)
class StoredNGram:
    """A model with its tokenizer and its folder."""

    model: NGram
    tokenizer: Tokenizer
    folder: Path


def train_ngram(data: str | Path, out: str | Path, order: int = 5, command: str | None = None) -> StoredNGram:
    """Count the n-grams of a data folder's training split, and write the model as the new folder `out`.

    order: tokens of the longest n-grams. command: stored in `run.json`. `UserError` for a folder that exists, data that
    cannot be read, an order out of bounds, or too little memory.
    """
    if not 1 <= order <= MAX_NGRAM_ORDER:
        raise UserError(field="order", value=order, accepted=f"1 to {MAX_NGRAM_ORDER}")
    check_new_folder(out)
    start_s = time.perf_counter()
    source = TokenData.open(data)
    tokens_T = _tokens(source, "train")
    tokenizer = source.tokenizer
    with progress("counting", order, "orders") as advance:

        def before(length: int) -> None:
            needed, free = BYTES_PER_TOKEN * len(tokens_T), available_bytes(torch.device("cpu"))
            if needed > free:
                problem = (
                    f"n-grams of length {length} of {len(tokens_T):,} tokens may take {numbers.binary(needed)};"
                    f" {numbers.binary(free)} are free"
                )
                raise UserError(problem, field="order", accepted="a lower order or less text")
            advance(length > 1)

        tables = count_ngrams(tokens_T, tokenizer.end_id, tokenizer.vocab_size, order, before)
        advance(1)
    model = NGram(tables, tokenizer.end_id)
    seconds = round(time.perf_counter() - start_s, 3)
    made = {"data": str(data), "tokens": len(tokens_T), "seconds": seconds, "command": command}
    write_ngram(out, model, tokenizer, made)
    return StoredNGram(model, tokenizer, Path(out))


def evaluate_ngram(model: str | Path | StoredNGram, data: str | Path, split: Split = "validation") -> NGramEvaluation:
    """Measure a model, or a folder with one, on a split of a data folder.

    As for every other model each token but the split's first is predicted once, end tokens included, and the nats of
    all are divided by the bytes of the text. A prediction sees the last `order - 1` tokens of its document, including
    the end token before it. `UserError` if model and data do not fit.
    """
    stored = model if isinstance(model, StoredNGram) else load_ngram(model)
    source = TokenData.open(data)
    source.check_tokenizer(stored.folder / TOKENIZER)
    found = evaluate_tokens(stored.model, _tokens(source, split), stored.tokenizer.byte_counts())
    return replace(found, about={"model": str(stored.folder), "data": str(data), "split": split})


def continue_ngram(stored: StoredNGram, prompt: str, max_tokens: int, sampling: Sampling) -> Continuation:
    """The continuation of a prompt, piece by piece, until its document ends; an empty prompt begins a new one."""
    if max_tokens < 1:
        raise UserError(field="max_tokens", value=max_tokens, accepted="at least 1")
    model, tokens = stored.model, [stored.model.end_id, *stored.tokenizer.encode(prompt)]
    history_T = np.array([], dtype=np.int64)

    def next_logits(tokens_1T: Tensor) -> Tensor:
        nonlocal history_T
        history_T = np.concatenate([history_T[-model.order :], tokens_1T[0].numpy()])
        return torch.from_numpy(np.log(model.next_probabilities(history_T)))[None]

    request = Request(tokens, max_tokens, sampling, {model.end_id})
    (stream,) = streams_of([request], next_logits, stored.tokenizer.vocab_size, torch.tensor([tokens]))
    text = TextEvents(stored.tokenizer, tokens)
    return Continuation(stream, text, len(tokens), lambda length: 8 * min(length, model.order - 1))


def _tokens(source: TokenData, split: Split) -> Indices:
    """All tokens of a split; `UserError` if they are not documents between end tokens."""
    sequence = source.split(split)
    if len(sequence) < 2:
        raise UserError(f"{sequence.name}: {len(sequence)} tokens; expected at least 2")
    tokens_T = sequence.read(0, len(sequence))
    if tokens_T[0] != source.tokenizer.end_id:
        raise UserError(f"{sequence.name}: expected the end token first, as `linnet prepare` puts it")
    return tokens_T


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
    """Read a folder that `write_ngram` made; `UserError` names what is missing, changed, or does not fit."""
    folder = Path(folder)
    restore(folder)
    if not (folder / DESCRIPTION).is_file():
        raise UserError(f"{folder}: not an n-gram model (no {DESCRIPTION}); `linnet ngram train` makes one")
    with not_replaced(folder):
        check_files(folder, (DESCRIPTION, COUNTS, TOKENIZER))
        spec = NGramSpec.parse(read_json(folder / DESCRIPTION), str(folder / DESCRIPTION))
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        if tokenizer.hash != spec.tokenizer:
            raise UserError(
                f"{folder / TOKENIZER}: not the tokenizer whose tokens were counted (hash {tokenizer.hash[:12]},"
                f" {DESCRIPTION} says {spec.tokenizer[:12]})"
            )
        if (tokenizer.vocab_size, tokenizer.end_id) != (spec.vocab_size, spec.end_id):
            expected = f"vocab_size {tokenizer.vocab_size} and end_id {tokenizer.end_id}, as in {TOKENIZER}"
            raise UserError(f"{folder / DESCRIPTION}: expected {expected}")
        tables = _read_tables(folder / COUNTS, spec)
    return StoredNGram(NGram(tables, spec.end_id), tokenizer, folder)


def _read_tables(path: Path, spec: NGramSpec) -> list[NGramTable]:
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


def _check_table(table: NGramTable, shorter: NGramTable | None, origin: str) -> None:
    """`UserError` for numbers of n-grams that do not exist."""
    if not len(table.keys) == len(table.counts) == len(table.suffixes):
        raise UserError(f"{origin}: expected as many keys as counts and suffixes")
    if shorter is None:
        fits = np.array_equal(table.keys, np.arange(table.vocab_size)) and table.counts.min() >= 0 < table.counts.max()
        fits = fits and not table.suffixes.any()
    else:
        ascend = bool((np.diff(table.keys) > 0).all())
        references = [table.keys // table.vocab_size, table.suffixes]
        within = all(not len(part) or (part.min() >= 0 and part.max() < len(shorter)) for part in references)
        fits = ascend and within and bool((table.counts > 0).all())
    if not fits:
        raise UserError(
            f"{origin}: expected ascending keys, counts above 0, and numbers of shorter n-grams that are there"
        )
