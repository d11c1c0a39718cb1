"""What a run begins with: weights that the seed draws, word vectors among them, or another model's, and the files that
these come from.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from linnet.core.errors import UserError
from linnet.data.shards import TokenData
from linnet.data.token_vectors import TokenVectors, token_vectors
from linnet.model.decoder import Decoder
from linnet.model.skip_init import without_calibration_file
from linnet.model.spec import ModelSpec, calibration_file
from linnet.model.store import CONFIG, TOKENIZER, WEIGHTS, find_model_folder, model_folder, read_weights, shapes_of
from linnet.training.distributed import Processes
from linnet.training.spec import RunSpec

CALIBRATION, START_FROM, EMBEDDING_FROM = "model.initialization.calibration", "start_from", "training.embedding_from"
"""The fields that may name a file, or a folder with one, which is compared by its content."""

DIFFERENCES = 3
"""So many differences between two descriptions are named."""


def initial_decoder(run: RunSpec, data: TokenData) -> Decoder:
    """A decoder with the weights that a run begins with; `UserError` where another model's are no such ones."""
    if run.start_from is None:
        return _drawn(run, run.model)
    folder = model_folder(run.start_from)
    data.check_tokenizer(folder / TOKENIZER)
    decoder = uninitialized_decoder(run)
    try:
        weights = read_weights(folder, shapes_of(decoder), "the run's model")
    except UserError as error:
        raise UserError(f"{_differences(ModelSpec.load(folder / CONFIG), run.model, folder)}{error}") from None
    decoder.load_state_dict(weights)
    return decoder


def _differences(found: ModelSpec, wanted: ModelSpec, folder: Path) -> str:
    """In which fields one description differs from the other, the first few; empty where they are the same."""
    there, here = (leaves(spec.model_dump(mode="json", exclude={"name", "initialization"})) for spec in (found, wanted))
    fields = [field for field in dict.fromkeys([*there, *here]) if there.get(field) != here.get(field)]
    said = [f"model.{field}: {here.get(field)}, not the {there.get(field)} of {folder}" for field in fields]
    return "".join(f"{difference}; " for difference in said[:DIFFERENCES])


def leaves(plain: Any, path: str = "") -> dict[str, Any]:
    """Nested data as `field.path -> value`."""
    if isinstance(plain, dict):
        pairs = [(str(key), value) for key, value in plain.items()]
    elif isinstance(plain, list):
        pairs = [(str(index), value) for index, value in enumerate(plain)]
    else:
        return {path: plain}
    return {leaf: v for key, value in pairs for leaf, v in leaves(value, f"{path}.{key}" if path else key).items()}


def uninitialized_decoder(run: RunSpec) -> Decoder:
    """A decoder of a run whose weights a checkpoint has: what a file or another model gave may be gone."""
    decoder = _drawn(run, without_calibration_file(run.model))
    decoder.spec = run.model
    return decoder


def _drawn(run: RunSpec, model: ModelSpec) -> Decoder:
    """A decoder with the weights that the seed gives; the caller's random numbers are left as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.training.seed)
        return Decoder(model)


def load_word_vectors(decoder: Decoder, run: RunSpec, data: TokenData, processes: Processes) -> int | None:
    """Let the tokens that the run's file of word vectors has a word for begin with its vector; how many these are.

    None: the run names no file. The first of several processes reads it for all. `UserError` as from `token_vectors`.
    """
    path = run.training.embedding_from
    if path is None:
        return None
    table = decoder.embedding.tokens
    assert isinstance(table, nn.Embedding), "weights that are trained"
    found = processes.broadcast_from_rank0(lambda: token_vectors(path, data.tokenizer, table.embedding_dim))
    _fill(table.weight, found)
    return len(found.tokens_F)


def word_vector_note(run: RunSpec, found: int) -> str:
    """What is said of tokens that begin with word vectors."""
    tokens = run.model.vocab_size
    return (
        f"note: {EMBEDDING_FROM}: {run.training.embedding_from}: a word vector for {found:,} of {tokens:,} tokens"
        f" ({found / tokens:.1%}); the others begin as ever"
    )


@torch.no_grad()
def _fill(weight_VE: torch.Tensor, found: TokenVectors) -> None:
    """Scaled by one number, so that the root of their mean square is that of what they replace."""
    tokens_F = torch.from_numpy(found.tokens_F).to(weight_VE.device)
    vectors_FE = torch.from_numpy(found.vectors_FE).to(weight_VE.device, torch.float64)
    drawn_FE = weight_VE[tokens_F].double()
    scale = drawn_FE.square().mean().sqrt() / vectors_FE.square().mean().sqrt()
    weight_VE[tokens_F] = (scale * vectors_FE).to(weight_VE.dtype)


def initial_files(
    operator: str, start_from: str | Path | None, embedding_from: str | Path | None = None
) -> dict[str, Path]:
    """By field, the files that decide what a run begins with; one that is not there is left out."""
    start = None if start_from is None else find_model_folder(Path(start_from))
    vectors = None if embedding_from is None else Path(embedding_from)
    found = {CALIBRATION: calibration_file(operator), START_FROM: start and start / WEIGHTS, EMBEDDING_FROM: vectors}
    return {field: file for field, file in found.items() if file is not None and file.is_file()}
