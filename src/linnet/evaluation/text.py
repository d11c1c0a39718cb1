"""Evaluating models on a data folder or a text file: `linnet evaluate MODEL... --data`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.sources import STDIN
from linnet.data.split import Split
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.documents import (
    SPAN_TOKENS,
    Coverage,
    Excerpts,
    documents_of_split,
    documents_of_texts,
    take_excerpts,
    texts_of_file,
    texts_of_split,
)
from linnet.evaluation.evaluator import check_chooses, parse_cache_policies
from linnet.evaluation.likelihood import Evaluation
from linnet.evaluation.measure import EvaluationSet, evaluate_split, measure, packed_windows, pair_rows, sliding_windows
from linnet.evaluation.models import (
    TOKENS_AT_ONCE,
    CalibrationText,
    EvaluatedModel,
    ModelOptions,
    check_calibrate_on,
    model_on_data,
)
from linnet.evaluation.results import ModelComparison, TextEvaluation
from linnet.evaluation.statistics import RESAMPLES
from linnet.model.folder import CONFIG, TOKENIZER, model_folder
from linnet.model.spec import ModelSpec


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
    """Evaluate a model folder, or a run, on a split of a data folder (None: validation), or on a text file.

    A file is read with the model's own tokenizer, its documents separately. context_length: tokens of a window; None:
    the model's. stride: each token is predicted once, after at least `context_length - stride` tokens of its document,
    as far as they exist; documents are separate. None: for a file, windows that do not overlap; for a data folder,
    windows that begin with a document if possible and contain several.

    limit_tokens: fewer windows or documents, evenly spaced; of the longest documents spans that are spread evenly, if
    they have too many tokens. calibrate_on: the text that calibrates a model that is not causal by itself; None:
    `train` for a data folder, `empty` for a file. calibration: what replaces the model's own calibration; random ones
    are drawn from `seed`. precision: what the weights are converted to; None: as stored. cache_policies: also measure
    the loss with these policies (`top_k=16,threshold=1e-4`) and those that every comparison shows. tokens_at_once:
    tokens computed at once, which changes time and memory, but not the figures. `UserError` if model and data do not
    fit.
    """
    options = ModelOptions(context_length, device, calibration, precision, seed)
    text = _Text.open(data, split, calibrate_on, stride, tokens_at_once)
    if text.folder is not None:
        text.folder.check_tokenizer(model_folder(model) / TOKENIZER, may_have_more=True)
    loaded = EvaluatedModel.load(model, options)
    windows, coverage = text.read_by(loaded, limit_tokens, tokens_at_once)
    policies = []
    if cache_policies is not None:
        check_chooses(loaded.decoder)
        if windows.pairs:
            raise UserError("goes with text; this model reads pairs", field="cache_policies")
        policies = parse_cache_policies(cache_policies, loaded.context_length)
    found = measure(loaded, windows, text.calibration(loaded), tokens_at_once, policies)
    found = replace(found, coverage=found.coverage if coverage is None else coverage)
    return replace(found, about={"model": str(model), **text.about(options)})


def evaluate_folder(
    model: str | Path,
    data_folder: str | Path,
    split: Split = "validation",
    limit_tokens: int | None = None,
    context_length: int | None = None,
    calibrate_on: CalibrationText = "train",
    device: str = "auto",
    calibration: str | None = None,
    precision: str | None = None,
    seed: int = 0,
) -> Evaluation:
    """The sums of a model folder, or a run, on a split of a data folder, without documents and positions.

    Windows begin with a document if possible (`document_windows`); limit_tokens: fewer windows, evenly spaced. Other
    arguments as for `evaluate`.
    """
    found = model_on_data(model, data_folder, split, context_length, calibrate_on, device, calibration, precision, seed)
    return evaluate_split(found, limit_tokens)


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
    """Evaluate several models on the same separate documents, each with its own tokenizer, and compare them.

    Arguments as for `evaluate`. limit_tokens: all models read the same text, which has at most about this many tokens
    for each of them. resamples: of the bootstrap intervals.
    """
    if len(models) < 2:
        raise UserError(f"{len(models)}: expected at least 2 to compare", field="models")
    options = ModelOptions(context_length, device, calibration, precision, seed)
    text = _Text.open(data, split, calibrate_on, stride, tokens_at_once)
    some = text.excerpts(models, limit_tokens, context_length)
    sources_N, source_names = None, list[str]()
    if text.folder is not None:
        all_N = text.folder.sources(text.split)
        sources_N = None if all_N is None else all_N[some.numbers]
        source_names = text.folder.source_names
    evaluations = []
    for model in models:
        loaded = EvaluatedModel.load(model, options)
        loaded.check_reads_text(str(data))
        documents = documents_of_texts(some.texts, loaded.tokenizer, some.whole)
        documents = replace(documents, sources_N=sources_N, source_names=source_names)
        windows = sliding_windows(documents, *text.window(loaded), tokens_at_once)
        found = measure(loaded, windows, text.calibration(loaded), tokens_at_once)
        evaluations.append(replace(found, coverage=some.coverage))
    return ModelComparison.create([str(model) for model in models], evaluations, resamples, text.about(options))


@dataclass(frozen=True)
class _Text:
    """The text that models are evaluated on: a split of a data folder, or (folder None) a file."""

    data: str | Path
    folder: TokenData | None
    split: Split
    calibrate_on: CalibrationText
    stride: int | None

    @classmethod
    def open(
        cls,
        data: str | Path,
        split: Split | None,
        calibrate_on: CalibrationText | None,
        stride: int | None,
        tokens_at_once: int,
    ) -> "_Text":
        """`UserError` for options that do not fit the text."""
        for field, value in (("stride", stride), ("tokens_at_once", tokens_at_once)):
            if value is not None and value < 1:
                raise UserError(field=field, value=value, accepted="at least 1")
        path = Path(data)
        if str(data) != STDIN and (not path.exists() or path.is_dir()):
            folder = TokenData.open(data)
            return cls(data, folder, split or "validation", calibrate_on or "train", stride)
        if split is not None:
            raise UserError(f"{data} is a file of text, and has no splits", field="split", value=split)
        if calibrate_on == "train":
            problem = f"{data} is a file of text, without a training split"
            raise UserError(problem, field="calibrate_on", value="train", accepted="empty")
        return cls(data, None, "validation", "empty", stride)

    def window(self, model: EvaluatedModel) -> tuple[int, int]:
        """Context length and stride; `UserError` for a stride that would skip tokens."""
        context_length = model.context_length
        if self.stride is not None and self.stride > context_length:
            accepted = f"at most the context of {context_length} tokens"
            raise UserError(field="stride", value=self.stride, accepted=accepted)
        return context_length, self.stride or context_length

    def read_by(
        self, model: EvaluatedModel, limit_tokens: int | None, tokens_at_once: int
    ) -> tuple[EvaluationSet, Coverage | None]:
        """The windows that a model reads, and the share of a file that they are; `UserError` if it reads other data."""
        folder, split = self.folder, self.split
        if folder is None:
            model.check_reads_text(str(self.data))
            span_tokens = max(SPAN_TOKENS, model.context_length)
            some = take_excerpts(texts_of_file(self.data), [model.tokenizer], limit_tokens, span_tokens)
            documents = documents_of_texts(some.texts, model.tokenizer, some.whole)
            return sliding_windows(documents, *self.window(model), tokens_at_once), some.coverage
        folder.check_prefixes(model.decoder.spec.prefix_field)
        if folder.is_rows:
            if self.stride is not None:
                raise UserError(f"{self.data}: contains pairs, which are read whole", field="stride", value=self.stride)
            return pair_rows(folder, split, model, tokens_at_once, limit_tokens), None
        if self.stride is None:
            return packed_windows(folder, split, model.context_length, tokens_at_once, limit_tokens), None
        documents = documents_of_split(folder, split)
        return sliding_windows(documents, *self.window(model), tokens_at_once, limit_tokens), None

    def excerpts(self, models: Sequence[str | Path], limit_tokens: int | None, context_length: int | None) -> Excerpts:
        """The documents, or parts of them, that several models read."""
        if self.folder is not None and self.folder.is_rows:
            raise UserError(f"{self.data}: contains pairs; expected text to compare several models on")
        texts = texts_of_file(self.data) if self.folder is None else texts_of_split(self.folder, self.split)
        tokenizers: dict[str, Tokenizer] = {}
        if limit_tokens is not None:
            read = [Tokenizer.load(model_folder(model)) for model in models]
            tokenizers = {tokenizer.hash: tokenizer for tokenizer in read}
        specs = [ModelSpec.load(model_folder(model) / CONFIG) for model in models]
        span_tokens = max(SPAN_TOKENS, *(context_length or spec.context_length for spec in specs))
        return take_excerpts(texts, list(tokenizers.values()), limit_tokens, span_tokens)

    def calibration(self, model: EvaluatedModel) -> Tensor | None:
        """The calibration text of a model that is not causal by itself."""
        check_calibrate_on(model.decoder, self.calibrate_on, self.split)
        return None if model.decoder.causal else model.calibration(self.calibrate_on, self.folder)

    def about(self, options: ModelOptions) -> dict[str, Any]:
        """The text and the options, for results."""
        seed = options.seed if options.calibration == "random" else None
        split = None if self.folder is None else self.split
        replaced = {"calibration": options.calibration, "seed": seed, "precision": options.precision}
        return {"data": str(self.data), "split": split, **replaced}
