"""The data folder of a run: its compatibility with the model, its identity, and its batches."""

from pathlib import Path

import torch

from linnet.core.errors import UserError
from linnet.data.batch_stages import BatchStage, StagedBatches, StagedPackedBatches
from linnet.data.chat_template import ChatTemplate, chat_files, files_of_template
from linnet.data.loader import Batches, Spans, document_windows
from linnet.data.mixed_batches import MixedBatches, mixed_batches, source_parts
from linnet.data.mixture import MixtureSpec
from linnet.data.packing import PackedBatches
from linnet.data.preferences import PreferenceBatches
from linnet.data.prepare_conversations import ADDED_TOKENS, SPECIAL_TOKENS
from linnet.data.replay import ReplayBatches, open_replayed
from linnet.data.shards import TokenSequence
from linnet.data.split import Split
from linnet.data.token_data import TokenData
from linnet.model.cost import model_cost
from linnet.model.decoder import meta_decoder
from linnet.model.folder import PUBLISHED, find_model_folder
from linnet.present import numbers
from linnet.training.objectives.preference import REFERENCE
from linnet.training.rollout_batches import RolloutBatches
from linnet.training.sections import TargetsSpec
from linnet.training.spec import RunSpec, TrainingSpec

TrainingBatches = (
    Batches
    | StagedBatches
    | PackedBatches
    | StagedPackedBatches
    | MixedBatches
    | PreferenceBatches
    | ReplayBatches
    | RolloutBatches
)


def fit_to_data(run: RunSpec, data: TokenData) -> RunSpec:
    """The run as it is trained: resolved, with a model for the data's tokenizer.

    A model that starts from another's weights keeps its vocabulary, unless control tokens were added to its tokenizer.
    `UserError` if the model cannot read the data, or a field does not apply to it.
    """
    data.check_prefixes(run.model.prefix_field)
    _check_objective(run, data)
    if data.is_rows:
        check_training_on_rows(run)
    if run.training.replay is not None:
        _check_replay(run, data)
    if not data.is_rows and run.training.fill_in_the_middle is not None and (rate := _fim_rate(data)):
        problem = f"{data.folder}: {rate:.0%} of its documents are rearranged already"
        raise UserError(f"training.fill_in_the_middle: {problem}; expected text of `linnet prepare --fim-rate 0`")
    if not data.is_rows and run.training.targets != TargetsSpec():
        raise UserError(f"training.targets: applies only to rows, such as conversations; {data.folder} holds text")
    vocab_size = data.tokenizer.vocab_size
    grows = run.start_from is not None and run.model.vocab_size < vocab_size and ADDED_TOKENS in data.manifest.settings
    if run.model.vocab_size != vocab_size and (run.start_from is None or grows):
        run = run.model_copy(update={"model": run.model.replace(vocab_size=vocab_size)})
    return run.resolved()


def _check_objective(run: RunSpec, data: TokenData) -> None:
    """`UserError` unless pairs of answers, and prompts, meet an objective for them."""
    preference, spec = run.training.preference, run.training
    if preference is None and data.is_preferences:
        problem = f"null: {data.folder} holds pairs of answers"
        raise UserError(f"training.preference: {problem}; expected a kind (`set` training.preference.kind=dpo)")
    if preference is not None and not data.is_preferences:
        raise UserError(f"training.preference: applies only to pairs of answers, and not to what {data.folder} holds")
    if (spec.grpo is None) == data.is_prompts:
        problem = f"null: {data.folder} holds prompts" if data.is_prompts else f"{data.folder} holds no prompts"
        raise UserError(f"training.grpo: {problem}; expected prompts (`linnet train --prompts`) and their objective")
    if (preference or spec.grpo) is not None and (spec.windows != "stream" or spec.targets != TargetsSpec()):
        field = "windows" if spec.windows != "stream" else "targets"
        problem = "cannot be combined with training.preference or training.grpo"
        raise UserError(f"training.{field}: {problem}; expected the default")


def _check_replay(run: RunSpec, data: TokenData) -> None:
    """`UserError` unless the data are conversations, whose rows are read from left to right."""
    if data.manifest.layout != "rows" or run.model.prefix_field is not None:
        problem = f"applies only to conversations, and not to what {data.folder} holds"
        raise UserError(f"training.replay: {problem}; training.mixture has shares of texts")


def check_training_on_rows(run: RunSpec) -> None:
    """`UserError` for fields of training that apply to text and not to rows, or to rows of another model."""
    spec, plain = run.training, TrainingSpec()
    packed = {"windows", "document_mask"} if spec.windows == "packed" else set()
    for field, why in (
        ("tokens", "rows are of different lengths; `training.steps` says how long"),
        ("windows", "a row is no window of a text; `packed` puts several into one"),
        ("document_mask", "a row is read by itself; it needs `training.windows` packed"),
        ("growth", "a row has its own length"),
        ("mixture", "rows have no sources"),
        ("fill_in_the_middle", "rows keep their order"),
        ("compile", "rows are of other shapes in each batch"),
    ):
        value = getattr(spec, field)
        if value != getattr(plain, field) and field not in packed:
            raise UserError(f"training.{field}: {value}: applies only to text: {why}")
    for field, value, is_given in (
        ("windows", "packed", bool(packed)),
        ("targets", spec.targets.model_dump(), spec.targets != plain.targets),
    ):
        if is_given and run.model.prefix_field is not None:
            problem = f"the model reads the prefix of a row as a whole ({run.model.prefix_field})"
            raise UserError(f"training.{field}: {value}: {problem}; expected the default")
    if packed:
        _check_packed_rows(run)


def _check_packed_rows(run: RunSpec) -> None:
    """`UserError` unless rows in one window are read as each alone."""
    if not run.training.document_mask:
        problem = "False: rows in one window would see each other"
        raise UserError(f"training.document_mask: {problem}; expected true (`set` training.document_mask=true)")
    for sublayer in meta_decoder(run.model).sublayers:
        # Such a layer decides in training by all tokens of a window, whatever document they are of.
        if sublayer.traits.window == 1 and not sublayer.traits.same_in_training:
            problem = f"{type(sublayer).__name__} treats a token in training by all tokens of its window"
            raise UserError(f"training.windows: packed: {problem}; expected the default, a row of its own")


def _fim_rate(data: TokenData) -> float:
    """The share of the documents that `prepare` rearranged."""
    return float(data.manifest.settings.get("fill_in_the_middle", {}).get("rate", 0))


def training_batches(data: TokenData, run: RunSpec) -> TrainingBatches:
    """The batches of a resolved run; `UserError` for a row that is longer than the model's context."""
    spec = run.training
    if spec.mixture is not None:
        return _batches_of_mixture(data, spec.mixture, spec)
    sequence = data.split("train")
    assert spec.context_length is not None, "an unresolved run"
    if data.is_prompts:
        return RolloutBatches(data, run)
    if data.is_preferences:
        return preference_batches(data, run, "train")
    if data.is_rows:
        return _with_replay(_batches_of_rows(data, sequence, run), data, spec)

    full = _batches_of_windows(sequence, spec)
    smaller = []
    for stage in run.growth.stages:
        if (stage.batch_size, stage.context_length) != (spec.batch_size, spec.context_length):
            batches = (stage.ends - stage.begins) * spec.gradient_accumulation
            cut = None if spec.windows == "packed" else _windows(sequence, spec, stage.context_length)
            starts = None if cut is None else cut.starts_N
            smaller.append(BatchStage(batches, stage.batch_size, stage.context_length, starts))
    if not smaller:
        return full
    if isinstance(full, PackedBatches):
        return StagedPackedBatches(full, smaller, spec.seed)
    return StagedBatches(full, smaller, spec.seed)


def preference_batches(data: TokenData, run: RunSpec, side: Split) -> PreferenceBatches:
    """The pairs of a split, whose reference is 0 until it is computed; `UserError` for one beyond the context."""
    spec, sequence = run.training, data.split(side)
    assert spec.context_length is not None, "an unresolved run"
    rows = data.spans(sequence, spec.context_length, run.model.encoder is not None)
    batches = PreferenceBatches(sequence, rows, spec.batch_size, spec.context_length, spec.seed, _reads_apart(run))
    if spec.preference is not None and spec.preference.has_reference:
        batches.extras_D = {REFERENCE: torch.zeros(len(rows), dtype=torch.float64)}
    return batches


def _reads_apart(run: RunSpec) -> bool:
    """True if a layer sees later tokens, and so would see those that fill a row up."""
    return run.model.prefix_field is None and not meta_decoder(run.model).causal


def _with_replay(batches: Batches | PackedBatches, data: TokenData, spec: TrainingSpec) -> TrainingBatches:
    """The batches of rows, among which stand windows of a text if the run replays one."""
    if spec.replay is None:
        return batches
    text = _batches_of_windows(open_replayed(str(spec.replay.data), data).split("train"), spec)
    return ReplayBatches(batches, text, spec.replay.share, spec.targets.weights.per_row)


def _batches_of_rows(data: TokenData, sequence: TokenSequence, run: RunSpec) -> Batches | PackedBatches:
    spec, separate_prefix = run.training, run.model.encoder is not None
    assert spec.context_length is not None, "an unresolved run"
    if spec.targets != TargetsSpec():
        sequence = spec.targets.weights.applied(sequence)
    rows = data.spans(sequence, spec.context_length, separate_prefix)
    if spec.windows == "packed":
        return _batches_of_windows(sequence, spec)
    return Batches(sequence, spec.batch_size, spec.context_length, spec.seed, rows, _reads_apart(run))


def _batches_of_mixture(data: TokenData, mixture: MixtureSpec, spec: TrainingSpec) -> MixedBatches:
    assert spec.steps is not None, "an unresolved run"
    parts = source_parts(data, mixture)
    batches = [_batches_of_windows(part.sequence, spec) for part in parts]
    return mixed_batches(mixture, parts, batches, spec.gradient_accumulation, spec.steps)


def _batches_of_windows(sequence: TokenSequence, spec: TrainingSpec) -> Batches | PackedBatches:
    assert spec.context_length is not None, "an unresolved run"
    if spec.windows == "packed":
        return PackedBatches(sequence, spec.batch_size, spec.context_length, spec.seed, spec.document_mask)
    spans = _windows(sequence, spec, spec.context_length)
    return Batches(sequence, spec.batch_size, spec.context_length, spec.seed, spans, spec.document_mask)


def _windows(sequence: TokenSequence, spec: TrainingSpec, context_length: int) -> Spans | None:
    """The windows of a length that begin with documents; None: the text is cut evenly."""
    if spec.windows == "stream":
        return None
    return document_windows(sequence, context_length).whole_windows(sequence, context_length)


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


def mixture_note(run: RunSpec, data: TokenData) -> str | None:
    """A message that a run does not read the mixture that its data were prepared from; None if it does."""
    if run.training.mixture is not None or "mixture" not in data.manifest.settings:
        return None
    return (
        f"training.mixture: null: the run reads the text of {data.folder} as it is, each source once in an epoch; the"
        " mixture.yaml that it was prepared from gives shares"
    )


def packing_note(batches: TrainingBatches) -> str | None:
    """How full packed windows are, in a line; None for other batches."""
    packed = batches.full if isinstance(batches, StagedPackedBatches) else batches
    packed = packed.rows if isinstance(packed, ReplayBatches) else packed
    return f"training.windows: packed: {packed.describe()}" if isinstance(packed, PackedBatches) else None


def chat_files_of(run: RunSpec, data: TokenData) -> dict[str, str]:
    """The chat template that a trained model gets: that of its conversations, or else of the model that it began with.

    Texts by the names of files in the model folder.
    """
    start = None if run.start_from is None else find_model_folder(run.start_from)
    known = ChatTemplate.find(*(() if start is None else (start, start / PUBLISHED)))
    settings = data.manifest.settings
    source, special_tokens = settings.get("chat_template"), settings.get(SPECIAL_TOKENS)
    if source is None or special_tokens is None or (source, special_tokens) == (known.source, known.special_tokens):
        return chat_files(start)
    return files_of_template(source, special_tokens)


def vocabulary_note(requested: RunSpec, run: RunSpec) -> str:
    """A message that the vocabulary of `run`, which is that of its data, differs from the requested one."""
    if run.start_from is not None:
        return f"note: vocabulary: {run.model.vocab_size:,} tokens instead of {requested.model.vocab_size:,}"
    before, after = (numbers.metric(model_cost(spec.model).parameters) for spec in (requested, run))
    return (
        f"note: vocabulary: {run.model.vocab_size:,} tokens of {run.data} instead of the"
        f" {requested.model.vocab_size:,} of the description ({run.model.name}): {after} parameters instead of {before}"
    )
