"""A run and its data folder: whether they fit each other, which data it is, and its batches."""

import hashlib
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from linnet.core.errors import UserError
from linnet.data.labels import rows_of
from linnet.data.loader import Batches
from linnet.data.pairs import PairBatches, check_reads
from linnet.data.shards import TokenData
from linnet.data.stages import BatchStage, StagedBatches
from linnet.data.windows import document_windows
from linnet.model.cost import model_cost
from linnet.present import numbers
from linnet.training.spec import RunSpec, TrainingSpec

TrainingBatches = Batches | StagedBatches | PairBatches


def fit_to_data(run: RunSpec, data: TokenData) -> RunSpec:
    """The run as it is trained: resolved, with a model for the data's tokenizer.

    A model that starts from another's weights keeps its vocabulary, which the tokenizer has to fit into. `UserError` if
    the model cannot read the data, or a field does not go with it.
    """
    check_reads(run.model, data)
    if data.holds_rows:
        check_training_on_pairs(run.training)
    vocab_size = data.tokenizer.vocab_size
    if run.model.vocab_size != vocab_size and run.start_from is None:
        run = run.model_copy(update={"model": run.model.replace(vocab_size=vocab_size)})
    return run.resolved()


def check_training_on_pairs(spec: TrainingSpec) -> None:
    """`UserError` for fields of training that apply to text and not to pairs."""
    plain = TrainingSpec()
    for field, why in (
        ("tokens", "pairs are of different lengths; `training.steps` says how long"),
        ("windows", "a pair is a row, and no window of a text"),
        ("document_mask", "a pair is a row of its own"),
        ("growth", "a pair is a row of its own length"),
        ("compile", "pairs are of other shapes in each batch"),
    ):
        value = getattr(spec, field)
        if value != getattr(plain, field):
            raise UserError(f"training.{field}: {value}: goes with text: {why}")


def training_batches(data: TokenData, run: RunSpec) -> TrainingBatches:
    """The batches of a resolved run."""
    spec = run.training
    assert spec.context_length is not None, "an unresolved run"
    if data.holds_rows:
        for split in data.manifest.splits:
            rows_of(data, split).check_lengths(spec.context_length, run.model.encoder is not None)
        return PairBatches(rows_of(data, "train"), spec.batch_size, spec.seed)
    sequence = data.split("train")

    def starts(context_length: int) -> NDArray[np.int64] | None:
        if spec.windows == "stream":
            return None
        return document_windows(sequence, data.tokenizer.end_id, context_length).whole(sequence, context_length)

    full = Batches(sequence, spec.batch_size, spec.context_length, spec.seed, starts(spec.context_length))
    smaller = [
        BatchStage(
            (stage.ends - stage.begins) * spec.gradient_accumulation,
            stage.batch_size,
            stage.context_length,
            starts(stage.context_length),
        )
        for stage in run.growth.stages
        if (stage.batch_size, stage.context_length) != (spec.batch_size, spec.context_length)
    ]
    return StagedBatches(full, smaller, spec.seed) if smaller else full


def manifest_hash(data: TokenData) -> str:
    """SHA-256 of a data folder's manifest: which tokenizer, how many tokens and which, from what."""
    plain = data.manifest.model_dump()
    for split in plain["splits"].values():
        for shard in split["shards"]:
            if shard["blocks"] is None:
                del shard["blocks"]  # the hash of folders from before there were blocks stays the same
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def check_data(known: str | None, data: TokenData, trained: Path) -> None:
    """`UserError` unless a data folder is the one that the run in the folder `trained` was trained on: `known`."""
    found = manifest_hash(data)
    if known is not None and known != found:
        raise UserError(
            f"not the data that {trained} was trained on (manifest {found[:12]}, not {known[:12]});"
            " choose another `out`",
            field="data",
            value=data.folder,
        )


def vocabulary_note(requested: RunSpec, run: RunSpec) -> str:
    """A message that `run`, fitted to its data, has another vocabulary than `requested`."""
    before, after = (numbers.metric(model_cost(spec.model).parameters) for spec in (requested, run))
    return (
        f"note: vocabulary: {run.model.vocab_size:,} tokens of {run.data} instead of the"
        f" {requested.model.vocab_size:,} of the description ({run.model.name}): {after} parameters instead of {before}"
    )
