"""The n-gram model on data folders: train, evaluate, generate. What `linnet ngram` does, for Python."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from linnet.core.arrays import Indices
from linnet.core.errors import UserError
from linnet.core.system import available_bytes
from linnet.data.shards import TokenData
from linnet.data.split import Split
from linnet.data.tokenizer import TOKENIZER
from linnet.inference.continuation import Continuation
from linnet.inference.engine import Step
from linnet.inference.sampling import Sampling, choose, fresh_seed, row_uniforms
from linnet.model.store import check_new_folder
from linnet.present import numbers
from linnet.present.progress import progress
from linnet.training.ngram.counts import MOST_ORDER, count_ngrams
from linnet.training.ngram.folder import StoredNGram, load_ngram, write_ngram
from linnet.training.ngram.kneser_ney import NGram
from linnet.training.ngram.reading import NGramEvaluation, read

BYTES_PER_TOKEN = 80
"""Of memory for counting one more length: positions, keys, their order, and the table, where all n-grams differ."""


def train_ngram(data: str | Path, out: str | Path, order: int = 5, command: str | None = None) -> StoredNGram:
    """Count the n-grams of a data folder's training split, and write the model as the new folder `out`.

    order: tokens of the longest n-grams. command: kept in `run.json`. `UserError` for a folder that is there, data that
    cannot be read, an order out of bounds, or too little memory.
    """
    if not 1 <= order <= MOST_ORDER:
        raise UserError(field="order", value=order, accepted=f"1 to {MOST_ORDER}")
    check_new_folder(out)
    begun_s = time.perf_counter()
    source = TokenData.open(data)
    tokens_T = _tokens(source, "train")
    tokenizer = source.tokenizer
    with progress("counting", order, "orders") as advance:

        def before(length: int) -> None:
            _check_memory(len(tokens_T), length)
            advance(length > 1)

        tables = count_ngrams(tokens_T, tokenizer.end_id, tokenizer.vocab_size, order, before)
        advance(1)
    model = NGram(tables, tokenizer.end_id)
    made = {
        "data": str(data),
        "tokens": len(tokens_T),
        "seconds": round(time.perf_counter() - begun_s, 3),
        "command": command,
    }
    write_ngram(out, model, tokenizer, made)
    return StoredNGram(model, tokenizer, Path(out))


def evaluate_ngram(model: str | Path | StoredNGram, data: str | Path, split: Split = "validation") -> NGramEvaluation:
    """Measure a model, or a folder with one, on a split of a data folder.

    As for every other model each token but the split's first is predicted once, the end tokens among them, and the
    nats of all are divided by the bytes of the text. A prediction sees the last `order - 1` tokens of its document,
    the end token before it included. `UserError` where model and data do not fit.
    """
    stored = model if isinstance(model, StoredNGram) else load_ngram(model)
    source = TokenData.open(data)
    source.check_tokenizer(stored.folder / TOKENIZER)
    return read(stored.model, _tokens(source, split), stored.tokenizer.token_bytes())


def continue_ngram(stored: StoredNGram, prompt: str, max_tokens: int, sampling: Sampling) -> Continuation:
    """The continuation of a prompt, piece by piece, until its document ends; an empty prompt begins a new one."""
    if max_tokens < 1:
        raise UserError(field="max_tokens", value=max_tokens, accepted="at least 1")
    tokens = [stored.model.end_id, *stored.tokenizer.encode(prompt)]
    kept = stored.model.order - 1

    def state_bytes(length: int) -> int:
        return 8 * min(length, kept)

    steps = _steps(stored.model, np.array(tokens), max_tokens, sampling)
    return Continuation(steps, stored.tokenizer.stream(tokens), len(tokens), state_bytes)


def _steps(model: NGram, tokens_T: Indices, max_tokens: int, sampling: Sampling) -> Iterator[Step]:
    uniforms = row_uniforms(fresh_seed() if sampling.seed is None else sampling.seed, 1, sampling.drawn)
    for _ in range(max_tokens):
        logits_1V = torch.from_numpy(np.log(model.next_probabilities(tokens_T)))[None]
        token = int(choose(logits_1V, sampling, None if sampling.greedy else next(uniforms)))
        yield [None if token == model.end_id else token]
        if token == model.end_id:
            return
        tokens_T = np.append(tokens_T[-model.order :], token)


def _tokens(source: TokenData, split: Split) -> Indices:
    """All tokens of a split; `UserError` where it is no text between end tokens."""
    sequence = source.split(split)
    if len(sequence) < 2:
        raise UserError(f"{sequence.name}: {len(sequence)} tokens; expected at least 2")
    tokens_T = sequence.read(0, len(sequence))
    if tokens_T[0] != source.tokenizer.end_id:
        raise UserError(f"{sequence.name}: expected the end token first, as `linnet prepare` puts it")
    return tokens_T


def _check_memory(tokens: int, length: int) -> None:
    needed, free = BYTES_PER_TOKEN * tokens, available_bytes(torch.device("cpu"))
    if needed > free:
        said = f"n-grams of length {length} of {tokens:,} tokens may take {numbers.binary(needed)}"
        raise UserError(
            f"{said}; {numbers.binary(free)} are free", field="order", accepted="a lower order or less text"
        )
