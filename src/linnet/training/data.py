"""The data folder of a run: its compatibility with the model, its identity, and its batches."""

from pathlib import Path

from linnet.core.errors import UserError
from linnet.data.loader import Batches, BatchStage, Spans, StagedBatches, document_windows
from linnet.data.token_data import TokenData
from linnet.model.cost import model_cost
from linnet.present import numbers
from linnet.training.spec import RunSpec, TrainingSpec

TrainingBatches = Batches | StagedBatches


def fit_to_data(run: RunSpec, data: TokenData) -> RunSpec:
    """The run as it is trained: resolved, with a model for the data's tokenizer.

    A model that starts from another's weights keeps its vocabulary, which the tokenizer has to fit into. `UserError` if
    the model cannot read the data, or a field does not apply to it.
    """
    data.check_prefixes(run.model.prefix_field)
    if data.is_rows:
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
            raise UserError(f"training.{field}: {value}: applies only to text: {why}")


def training_batches(data: TokenData, run: RunSpec) -> TrainingBatches:
    """The batches of a resolved run; `UserError` for a row that is longer than the model's context."""
    spec, sequence = run.training, data.split("train")
    assert spec.context_length is not None, "an unresolved run"
    if data.is_rows:
        rows = data.spans(sequence, spec.context_length, run.model.encoder is not None)
        return Batches(sequence, spec.batch_size, spec.context_length, spec.seed, rows)

    def windows(context_length: int) -> Spans | None:
        if spec.windows == "stream":
            return None
        return document_windows(sequence, context_length).whole_windows(sequence, context_length)

    full = Batches(
        sequence, spec.batch_size, spec.context_length, spec.seed, windows(spec.context_length), spec.document_mask
    )
    smaller = []
    for stage in run.growth.stages:
        if (stage.batch_size, stage.context_length) != (spec.batch_size, spec.context_length):
            batches = (stage.ends - stage.begins) * spec.gradient_accumulation
            cut = windows(stage.context_length)
            starts = None if cut is None else cut.starts_N
            smaller.append(BatchStage(batches, stage.batch_size, stage.context_length, starts))
    return StagedBatches(full, smaller, spec.seed) if smaller else full


def check_data(known: str | None, data: TokenData, trained: Path) -> None:
    """`UserError` unless `data` has the hash `known`, that of the data of the run in the folder `trained`."""
    found = data.hash
    if known is not None and known != found:
        raise UserError(
            f"not the data that {trained} was trained on (manifest {found[:12]}, not {known[:12]});"
            " choose another `out`",
            field="data",
            value=data.folder,
        )


def vocabulary_note(requested: RunSpec, run: RunSpec) -> str:
    """A message that the vocabulary of `run`, which is that of its data, differs from the requested one."""
    before, after = (numbers.metric(model_cost(spec.model).parameters) for spec in (requested, run))
    return (
        f"note: vocabulary: {run.model.vocab_size:,} tokens of {run.data} instead of the"
        f" {requested.model.vocab_size:,} of the description ({run.model.name}): {after} parameters instead of {before}"
    )
