"""One model measured on windows of text: by document, by position, by source, and with each cache policy."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from linnet.core.errors import note
from linnet.data.loader import Batch, validation_batches
from linnet.data.pieces import ByteCounts
from linnet.data.split import Split
from linnet.data.token_data import TokenData
from linnet.evaluation.documents import (
    Coverage,
    Documents,
    WindowBatch,
    batches,
    documents_of_split,
    packed,
    sample_numbers,
    sliding,
)
from linnet.evaluation.evaluator import WindowEvaluator, measure_cache_policies
from linnet.evaluation.likelihood import DocumentLosses, Evaluation, Likelihood, LossSums, Tokens
from linnet.evaluation.models import TOKENS_AT_ONCE, EvaluatedModel, ModelOnData
from linnet.evaluation.results import TextEvaluation
from linnet.layers.cache_policy import CachePolicy
from linnet.model.decoder import Decoder
from linnet.model.example_loss import example_losses
from linnet.present.progress import Advance, progress

Total = Callable[[Tensor], Tensor]

UNLIMITED = 1 << 62
"""Tokens at once if windows are read in the batches in which they come."""


@dataclass(frozen=True)
class EvaluationSet:
    """What is read: `batches` starts a new pass over all of them; `targets` is about the number of predicted tokens.

    bytes_N, sources_N, source_names: as in `Documents`. stride: of sliding windows. pairs: rows for a model that reads
    pairs. row_reading: of windows that are a row each, how they are read, in words. lengths_N: targets of each
    document, also of what is not read.
    """

    batches: Callable[[], Iterator[WindowBatch]]
    documents: int
    targets: int
    bytes_N: Tokens | None = None
    sources_N: Tokens | None = None
    source_names: Sequence[str] = ()
    stride: int | None = None
    pairs: bool = False
    row_reading: str = ""
    lengths_N: Tokens | None = None


def sliding_windows(
    documents: Documents, context_length: int, stride: int, tokens_at_once: int, limit_tokens: int | None = None
) -> EvaluationSet:
    """Separate documents in sliding windows."""

    def read() -> Iterator[WindowBatch]:
        most = documents.max_tokens(limit_tokens)
        return batches(sliding(documents.sample(limit_tokens), context_length, stride, most), tokens_at_once)

    sources = documents.bytes_N, documents.sources_N, documents.source_names
    targets, lengths_N = documents.count_targets(limit_tokens), documents.lengths_N
    return EvaluationSet(read, len(documents), targets, *sources, stride=stride, lengths_N=lengths_N)


def packed_windows(
    data: TokenData, split: Split, context_length: int, tokens_at_once: int, limit_tokens: int | None = None
) -> EvaluationSet:
    """The windows of `evaluate_split`: consecutive documents, as many as fit in one."""
    documents, sequence = documents_of_split(data, split), data.split(split)

    def read() -> Iterator[WindowBatch]:
        return batches(packed(sequence, context_length, limit_tokens), tokens_at_once)

    targets, sources = min(limit_tokens or len(sequence), len(sequence)), (documents.sources_N, documents.source_names)
    return EvaluationSet(read, len(documents), targets, None, *sources, lengths_N=documents.lengths_N)


def pair_rows(
    data: TokenData, split: Split, model: EvaluatedModel, tokens_at_once: int, limit_tokens: int | None = None
) -> EvaluationSet:
    """Rows, such as pairs of an input and a target; only the targets count, and each row is a document."""
    sequence = data.split(split)
    pairs = data.measured_spans(sequence, model.context_length, model.decoder.encoder is not None)
    rows = max(1, tokens_at_once // model.context_length)
    chosen = sample_numbers(pairs.counts_N, limit_tokens)

    def read() -> Iterator[WindowBatch]:
        numbers = iter(chosen)
        for batch in validation_batches(sequence, pairs, rows, limit_tokens):
            own = torch.tensor([next(numbers) for _ in range(len(batch))])
            documents_BT = own[:, None].expand_as(batch.tokens)
            yield WindowBatch(batch.tokens, batch.labels, documents_BT, batch.prefix_lengths)

    reads_prefix = model.decoder.spec.prefix_field is not None
    targets, reading = int(pairs.counts_N[chosen].sum()), data.row_reading(sequence)
    return EvaluationSet(read, len(pairs), targets, pairs=reads_prefix, row_reading=reading)


def measure(
    model: EvaluatedModel,
    text: EvaluationSet,
    calibration_1T: Tensor | None,
    tokens_at_once: int,
    cache_policies: Sequence[CachePolicy] = (),
) -> TextEvaluation:
    """Read the whole set once, and once more with each of the cache policies."""
    byte_counts = model.tokenizer.byte_counts()
    evaluator = WindowEvaluator.create(model.decoder, calibration_1T, model.context_length, tokens_at_once)

    def new_sums() -> LossSums:
        return LossSums(text.documents, byte_counts, model.context_length)

    def losses_of(sums: LossSums) -> DocumentLosses:
        return sums.documents(text.sources_N, text.bytes_N)

    causal, whole, policies = new_sums(), new_sums(), []
    with progress("evaluating", (1 + len(cache_policies)) * text.targets, "tokens", is_estimate=True) as advance:
        _read(evaluator, text.batches(), text.pairs, causal, whole, advance)
        if cache_policies:
            policies = measure_cache_policies(evaluator, text.batches, cache_policies, new_sums, losses_of, advance)
    losses = losses_of(causal)
    assert losses.likelihood.tokens
    represented, text_bytes = int(causal.documents().bytes_N.sum()), losses.likelihood.bytes
    if represented < text_bytes:  # of a file: a data folder counts the bytes of its tokens
        share = f"{represented / text_bytes:.2%} of the text's bytes"
        note(f"the model's tokens stand for {share}, the rest is lost or changed; bits per byte count them all")
    return TextEvaluation(
        losses,
        causal.positions(),
        losses.by_source(text.source_names),
        None if model.decoder.causal else losses_of(whole).likelihood,
        model.context_length,
        text.stride,
        tuple(policies),
        text.row_reading,
        coverage=None if text.lengths_N is None else Coverage.of(causal.tokens_N, text.lengths_N),
    )


def evaluate_split(model: ModelOnData, limit_tokens: int | None = None) -> Evaluation:
    """The sums over every token of a split but the first, or every target of pairs, each predicted once.

    limit_tokens: fewer windows, evenly spaced.
    """
    sequence = model.sequence
    spans = model.data.measured_spans(sequence, model.context_length, model.decoder.encoder is not None)
    rows = max(1, TOKENS_AT_ONCE // model.context_length)
    targets = min(limit_tokens or len(sequence), len(sequence))
    with progress("evaluating", targets, "tokens", is_estimate=True) as advance:

        def batches() -> Iterator[Batch]:
            for batch in validation_batches(sequence, spans, rows, limit_tokens):
                yield batch
                advance(batch.count)

        byte_counts = model.data.tokenizer.byte_counts()
        return evaluate_windows(model.decoder, batches(), byte_counts, model.context_length, model.calibration())


@torch.no_grad()
def evaluate_windows(
    decoder: Decoder,
    windows: Iterable[Batch],
    byte_counts: ByteCounts[Tokens],
    context_length: int,
    calibration_1T: Tensor | None = None,
    total: Total = lambda sums: sums,
) -> Evaluation:
    """The sums over windows of at most `context_length` tokens, also of a whole-sequence pass that sees the future.

    byte_counts: of the tokenizer. calibration_1T: required for a decoder that is not causal by itself.
    total: adds up the sums of several processes, each of which reads its part of the windows. `UserError` if the
    targets contain no text.
    """
    evaluator = WindowEvaluator.create(decoder, calibration_1T, context_length, UNLIMITED)
    causal, whole = (LossSums(1, byte_counts, context_length) for _ in range(2))
    batches = (
        WindowBatch(batch.tokens, batch.labels, torch.zeros_like(batch.targets, device="cpu"), batch.prefix_lengths)
        for batch in windows
    )
    _read(evaluator, batches, decoder.spec.prefix_field is not None, causal, whole)

    def totaled(sums: LossSums) -> Likelihood:
        losses = sums.documents()
        nats = total(torch.tensor(float(losses.nats_N.sum()), dtype=torch.float64, device=decoder.device))
        counts = [int(counts_N.sum()) for counts_N in (losses.tokens_N, losses.bytes_N, losses.correct_N)]
        return Likelihood.of_text(float(nats), *total(torch.tensor(counts, device=decoder.device)).tolist())

    return Evaluation(totaled(causal), None if decoder.causal else totaled(whole))


def _read(
    evaluator: WindowEvaluator,
    batches: Iterable[WindowBatch],
    pairs: bool,
    causal: LossSums,
    whole: LossSums,
    advance: Advance = lambda *_: None,
) -> None:
    decoder = evaluator.decoder
    for batch in batches:
        on_device = batch.to(decoder.device)
        if pairs:
            rows = example_losses(decoder, on_device.inputs_BT, on_device.targets_BT, batch.prefix_lengths)
            documents = batch.documents_BT[:, :1].expand(rows.labels.shape)
            advance(causal.add(rows.each, rows.tokens, rows.labels, documents))
            continue
        read = on_device.inputs_BT, on_device.targets_BT, batch.documents_BT
        advance(causal.add(evaluator.losses(on_device), *read))
        if not decoder.causal:
            whole.add(evaluator.whole_sequence_losses(on_device), *read)
