"""Evaluating models on a data folder or a file of text: what `linnet evaluate` does."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.pairs import check_reads
from linnet.data.shards import TokenData
from linnet.data.sources import STDIN
from linnet.data.split import Split
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.cache_policies import check_chooses, parse_cache_policies
from linnet.evaluation.comparison import ModelComparison
from linnet.evaluation.documents import (
    Documents,
    documents_of_split,
    documents_of_texts,
    take_excerpts,
    texts_of_file,
    texts_of_split,
)
from linnet.evaluation.folder import TOKENS_AT_ONCE
from linnet.evaluation.frozen import CalibrationText
from linnet.evaluation.likelihood import Tokens
from linnet.evaluation.measure import EvaluationSet, apart, measure, of_pairs, side_by_side
from linnet.evaluation.measured import TextEvaluation
from linnet.evaluation.statistics import RESAMPLES
from linnet.evaluation.subject import EvaluatedModel, ModelOptions, check_calibrate_on
from linnet.layers.cache_policy import CachePolicy
from linnet.model.store import TOKENIZER, model_folder


def evaluate(
    model: str | Path,
    data: str | Path,
    split: Split | None = None,
    limit_tokens: int | None = None,
    context_length: int | None = None,
    calibrate_on: CalibrationText | None = None,
    device: str = "auto",
    calibration: str | None = None,
    precision: str | None = None,
    seed: int = 0,
    stride: int | None = None,
    cache_policies: Sequence[str] | None = None,
    tokens_at_once: int = TOKENS_AT_ONCE,
) -> TextEvaluation:
    """Evaluate a model folder, or a run's, on a side of a data folder (`split`, None: validation), or a file of text.

    A file is read with the model's own tokenizer, its documents apart from each other. `context_length`: tokens of a
    window, None for the model's. `stride`: each token is predicted once, with at least `context_length - stride` tokens
    of its document before it, as far as there are; documents are apart from each other. None: for a file windows that
    do not overlap; for a data folder windows that begin with a document where they can, and hold several.

    `limit_tokens` spreads fewer windows evenly, or fewer documents, of which the longest are cut where they had more.
    `calibrate_on`: the text that calibrates a model that is not causal by itself, None for `train`, which
    a file has not, else `empty`. `operator`: what replaces the model's own calibration;
    random ones are drawn from `seed`. `precision`: that the weights are converted to, None: as stored.
    `cache_policies`: measure, beside the full cache and those that every comparison shows, what is lost with these
    policies (`top_k=16,threshold=1e-4`). `tokens_at_once`: tokens that are computed at once; changes time and memory,
    not the figures.
    `UserError` where model and data do not fit.
    """
    options = ModelOptions(context_length, device, calibration, precision, seed)
    _check_counts(stride, tokens_at_once)
    if _is_text(data):
        _refuse_sides(data, split, calibrate_on)
        subject = EvaluatedModel.load(model, options)
        subject.check_reads_text(str(data))
        some, folder = take_excerpts(texts_of_file(data), [subject.tokenizer], limit_tokens), None
        documents = documents_of_texts(some.texts, subject.tokenizer, some.whole)
        reading = apart(documents, *_windows(subject, stride), tokens_at_once)
    else:
        folder = TokenData.open(data)
        folder.check_tokenizer(model_folder(model) / TOKENIZER)
        subject = EvaluatedModel.load(model, options)
        check_reads(subject.decoder.spec, folder)
        reading = _of_folder(folder, split or "validation", subject, stride, tokens_at_once, limit_tokens)
    calibration_1T = _calibration(subject, calibrate_on, folder, split)
    return measure(subject, reading, calibration_1T, tokens_at_once, _cache_policies(subject, reading, cache_policies))


def evaluate_models(
    models: Sequence[str | Path],
    data: str | Path,
    split: Split | None = None,
    limit_tokens: int | None = None,
    context_length: int | None = None,
    calibrate_on: CalibrationText | None = None,
    device: str = "auto",
    calibration: str | None = None,
    precision: str | None = None,
    seed: int = 0,
    stride: int | None = None,
    tokens_at_once: int = TOKENS_AT_ONCE,
    resamples: int = RESAMPLES,
) -> ModelComparison:
    """Evaluate several models on the same documents, each with its own tokenizer; compare them document by document.

    Arguments as those of `evaluate`, for each model; documents are always apart from each other. `limit_tokens` holds
    for each model: all read the same text, of which none makes more than about so many. `resamples`: behind the
    bootstrap's intervals.
    """
    if len(models) < 2:
        raise UserError(f"{len(models)}: expected at least 2 to compare", field="models")
    _check_counts(stride, tokens_at_once)
    options = ModelOptions(context_length, device, calibration, precision, seed)
    folder = None
    if _is_text(data):
        _refuse_sides(data, split, calibrate_on)
        texts = texts_of_file(data)
    else:
        folder = TokenData.open(data)
        if folder.holds_rows:
            raise UserError(f"{data}: holds pairs; expected text to compare several models on")
        texts = texts_of_split(folder, split or "validation")
    sources_N = None if folder is None else folder.sources(split or "validation")
    names = [] if folder is None else [source.file for source in folder.manifest.sources]
    some = take_excerpts(texts, [] if limit_tokens is None else _tokenizers(models), limit_tokens)
    sources_N = None if sources_N is None else sources_N[some.numbers]
    found = []
    for model in models:
        subject = EvaluatedModel.load(model, options)
        subject.check_reads_text(str(data))
        documents = _with_sources(documents_of_texts(some.texts, subject.tokenizer, some.whole), sources_N, names)
        reading = apart(documents, *_windows(subject, stride), tokens_at_once)
        found.append(measure(subject, reading, _calibration(subject, calibrate_on, folder, split), tokens_at_once))
    return ModelComparison.of([str(model) for model in models], found, resamples)


def _is_text(data: str | Path) -> bool:
    """Whether it is a file, a pipe, or the standard input."""
    path = Path(data)
    return str(data) == STDIN or (path.exists() and not path.is_dir())


def _check_counts(stride: int | None, tokens_at_once: int) -> None:
    for field, value in (("stride", stride), ("tokens_at_once", tokens_at_once)):
        if value is not None and value < 1:
            raise UserError(field=field, value=value, accepted="at least 1")


def _refuse_sides(data: str | Path, split: Split | None, calibrate_on: CalibrationText | None) -> None:
    """`UserError` for what a file of text has not."""
    if split is not None:
        raise UserError(f"{data} is a file of text, and has no sides", field="split", value=split)
    if calibrate_on == "train":
        raise UserError(
            f"{data} is a file of text, without a training side", field="calibrate_on", value="train", accepted="empty"
        )


def _windows(subject: EvaluatedModel, stride: int | None) -> tuple[int, int]:
    """Context length and stride; `UserError` for a stride that leaves tokens out."""
    context_length = subject.context_length
    if stride is not None and stride > context_length:
        raise UserError(field="stride", value=stride, accepted=f"at most the context of {context_length} tokens")
    return context_length, stride or context_length


def _of_folder(
    data: TokenData,
    split: Split,
    subject: EvaluatedModel,
    stride: int | None,
    tokens_at_once: int,
    limit_tokens: int | None,
) -> EvaluationSet:
    if data.holds_rows:
        if stride is not None:
            raise UserError(f"{data.folder}: holds pairs, which are read whole", field="stride", value=stride)
        return of_pairs(data, split, subject, tokens_at_once, limit_tokens)
    if stride is None:
        return side_by_side(data, split, subject.context_length, tokens_at_once, limit_tokens)
    return apart(documents_of_split(data, split), *_windows(subject, stride), tokens_at_once, limit_tokens)


def _calibration(
    subject: EvaluatedModel, calibrate_on: CalibrationText | None, data: TokenData | None, split: Split | None
) -> Tensor | None:
    source: CalibrationText = calibrate_on or ("empty" if data is None else "train")
    check_calibrate_on(subject.decoder, source, split or "validation")
    return None if subject.decoder.causal else subject.calibration(source, data)


def _cache_policies(
    subject: EvaluatedModel, reading: EvaluationSet, cache_policies: Sequence[str] | None
) -> list[CachePolicy]:
    if cache_policies is None:
        return []
    check_chooses(subject.decoder)
    if reading.pairs:
        raise UserError("goes with text; this model reads pairs", field="cache_policies")
    return parse_cache_policies(cache_policies, subject.context_length)


def _tokenizers(models: Sequence[str | Path]) -> list[Tokenizer]:
    """Those of the models, each once."""
    read = [Tokenizer.load(model_folder(model)) for model in models]
    return list({tokenizer.hash: tokenizer for tokenizer in read}.values())


def _with_sources(documents: Documents, sources_N: Tokens | None, names: Sequence[str]) -> Documents:
    return Documents(documents.read, documents.lengths_N, documents.bytes_N, sources_N, names)
