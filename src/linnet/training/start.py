"""What a run begins with: weights that the seed draws, or another model's, and the files that these come from."""

from pathlib import Path

import torch

from linnet.data.shards import TokenData
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec, operator_file
from linnet.model.store import TOKENIZER, WEIGHTS, find_model_folder, model_folder, read_weights, shapes_of
from linnet.model.undrawn import without_operator_file
from linnet.training.spec import RunSpec

OPERATOR, START_FROM = "model.initialisation.operator", "start_from"
"""The fields that may name a file, or a folder with one, which is compared by its content."""


def first_decoder(run: RunSpec, data: TokenData) -> Decoder:
    """A decoder with the weights that a run begins with; `UserError` where another model's are no such ones."""
    if run.start_from is None:
        return _drawn(run, run.model)
    folder = model_folder(run.start_from)
    data.check_tokenizer(folder / TOKENIZER)
    decoder = unfilled_decoder(run)
    decoder.load_state_dict(read_weights(folder, shapes_of(decoder), "the run's model"))
    return decoder


def unfilled_decoder(run: RunSpec) -> Decoder:
    """A decoder of a run whose weights a checkpoint has: what a file or another model gave may be gone."""
    return _drawn(run, without_operator_file(run.model))


def _drawn(run: RunSpec, model: ModelSpec) -> Decoder:
    """A decoder with the weights that the seed gives; the caller's random numbers are left as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.training.seed)
        return Decoder(model)


def begun_with(operator: str, start_from: str | Path | None) -> dict[str, Path]:
    """By field, the files that decide what a run begins with; one that is not there is left out."""
    start = None if start_from is None else find_model_folder(Path(start_from))
    found = {OPERATOR: operator_file(operator), START_FROM: start and start / WEIGHTS}
    return {field: file for field, file in found.items() if file is not None and file.is_file()}
