"""One model measured on windows of text: by document, by position, by source, with each way of keeping the past.

A decoder that is not causal without a state reads each window with an operator frozen from another text
(`frozen.frozen_state`), and what its own whole-sequence pass would have claimed is measured beside it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from linnet.data.labels import rows_of
from linnet.data.pairs import Rows, validation_pairs
from linnet.data.shards import TokenData
from linnet.data.split import Split
from linnet.evaluation.cache_policies import measure_cache_policies
from linnet.evaluation.documents import (
    Documents,
    WindowBatch,
    batches,
    documents_of_split,
    packed,
    sample_numbers,
    sliding,
)
from linnet.evaluation.likelihood import DocumentLosses, Evaluation, Likelihood, LossSums, Tokens
from linnet.evaluation.measured import TextEvaluation
from linnet.evaluation.reader import WindowEvaluator
from linnet.evaluation.subject import EvaluatedModel
from linnet.layers.cache_policy import CachePolicy
from linnet.model.decoder import Decoder
from linnet.model.pairs import losses_of_rows
from linnet.present.progress import Advance, progress

Windows = Iterable[tuple[Tensor, Tensor]]
"""Inputs and targets, int64 `[B, T]` each; targets that are `IGNORE_INDEX` do not count: at the end of a row, or in the
input of a pair.
"""

Total = Callable[[Tensor], Tensor]

UNCUT = 1 << 62
"""Tokens at once where windows come in batches that are read as they are."""


@dataclass(frozen=True)
class EvaluationSet:
    """What is read: batches, from the first each time they are asked for, of so many documents with `targets` tokens to
    predict, about. bytes, sources: as `Documents` has them. `pairs`: rows for a model that reads pairs. single_pairs:
    windows are rows, one in each.
    """

    batches: Callable[[], Iterator[WindowBatch]]
    documents: int
    targets: int
    bytes_N: Tokens | None = None
    sources_N: Tokens | None = None
    source_names: Sequence[str] = ()
    stride: int | None = None
    pairs: bool = False
    single_pairs: bool = False


def apart(
    documents: Documents, context_length: int, stride: int, tokens_at_once: int, limit_tokens: int | None = None
) -> EvaluationSet:
    """Documents that do not see each other, in sliding windows."""
    targets = documents.count_targets(limit_tokens)

    def read() -> Iterator[WindowBatch]:
        return batches(sliding(documents.sample(limit_tokens), context_length, stride), tokens_at_once)

    told = documents.bytes_N, documents.sources_N, documents.source_names
    return EvaluationSet(read, len(documents), targets, *told, stride=stride)


def side_by_side(
    data: TokenData, split: Split, context_length: int, tokens_at_once: int, limit_tokens: int | None = None
) -> EvaluationSet:
    """The windows of `ModelOnData.evaluate`: as many documents as fit follow each other in one."""
    documents, sequence, end_id = documents_of_split(data, split), data.split(split), data.tokenizer.end_id

    def read() -> Iterator[WindowBatch]:
        return batches(packed(sequence, end_id, context_length, limit_tokens), tokens_at_once)

    targets = min(limit_tokens or len(sequence), len(sequence))
    return EvaluationSet(read, len(documents), targets, None, documents.sources_N, documents.source_names)


def of_pairs(
    data: TokenData, split: Split, subject: EvaluatedModel, tokens_at_once: int, limit_tokens: int | None = None
) -> EvaluationSet:
    """Pairs, of which the targets alone count; each is a document of its own."""
    pairs = rows_of(data, split)
    pairs.check_lengths(subject.context_length, subject.decoder.encoder is not None)
    rows = max(1, tokens_at_once // subject.context_length)

    def read() -> Iterator[WindowBatch]:
        numbers = iter(_pair_numbers(pairs, limit_tokens))
        for tokens, targets in validation_pairs(pairs, rows, limit_tokens):
            own = torch.tensor([next(numbers) for _ in range(len(tokens))])
            yield WindowBatch(tokens, targets, own[:, None].expand_as(tokens))

    targets = int(pairs.target_lengths[_pair_numbers(pairs, limit_tokens)].sum())
    return EvaluationSet(read, len(pairs), targets, pairs=subject.decoder.spec.reads_pairs, single_pairs=True)


def _pair_numbers(pairs: Rows, limit_tokens: int | None) -> list[int]:
    return sample_numbers(pairs.target_lengths, limit_tokens)


def measure(
    subject: EvaluatedModel,
    reading: EvaluationSet,
    calibration_1T: torch.Tensor | None,
    tokens_at_once: int,
    cache_policies: Sequence[CachePolicy] = (),
) -> TextEvaluation:
    """Read everything once, and once more with each of the cache_policies."""
    decoder, token_bytes_V = subject.decoder, subject.tokenizer.token_bytes()
    reader = WindowEvaluator.create(decoder, calibration_1T, subject.context_length, tokens_at_once)

    def tally() -> LossSums:
        return LossSums(reading.documents, token_bytes_V, subject.context_length)

    def losses_of(sums: LossSums) -> DocumentLosses:
        return sums.documents(reading.sources_N, reading.bytes_N)

    causal, whole = tally(), tally()
    with progress("evaluating", (1 + len(cache_policies)) * reading.targets, "tokens") as advance:
        _read(reader, reading.batches(), reading.pairs, causal, whole, advance)
        kept = (
            measure_cache_policies(reader, reading.batches, cache_policies, tally, losses_of, advance)
            if cache_policies
            else []
        )
    losses = losses_of(causal)
    leaking: Likelihood | None = None if decoder.causal else losses_of(whole).likelihood
    sources = losses.by_source(reading.source_names)
    assert losses.likelihood.tokens
    return TextEvaluation(
        losses,
        causal.positions(),
        sources,
        leaking,
        subject.context_length,
        reading.stride,
        tuple(kept),
        reading.single_pairs,
    )


@torch.no_grad()
def evaluate_windows(
    decoder: Decoder,
    windows: Windows,
    token_bytes_V: Tensor,
    context_length: int,
    calibration_1T: Tensor | None = None,
    total: Total = lambda sums: sums,
) -> Evaluation:
    """The sums over windows of at most `context_length` tokens, and of a whole-sequence pass that sees the future.

    `token_bytes_V`: bytes of text of each token. `calibration_1T`: needed by a decoder that is not causal by itself.
    `total` adds up what several processes found, each in its part of the windows. `UserError` where the targets hold no
    text at all.
    """
    reader = WindowEvaluator.create(decoder, calibration_1T, context_length, UNCUT)
    causal, whole = (LossSums(1, token_bytes_V.cpu().numpy(), context_length) for _ in range(2))
    batches = (WindowBatch(inputs, targets, torch.zeros_like(targets, device="cpu")) for inputs, targets in windows)
    _read(reader, batches, decoder.spec.reads_pairs, causal, whole)
    found = _totaled(causal, total, decoder.device)
    return Evaluation(found, None if decoder.causal else _totaled(whole, total, decoder.device))


def _totaled(tally: LossSums, total: Total, device: torch.device) -> Likelihood:
    sums = tally.documents()
    nats = total(torch.tensor(float(sums.nats_N.sum()), dtype=torch.float64, device=device))
    counts = [int(counts_N.sum()) for counts_N in (sums.tokens_N, sums.bytes_N, sums.correct_N)]
    return Likelihood.of_text(float(nats), *total(torch.tensor(counts, device=device)).tolist())


def _read(
    reader: WindowEvaluator,
    batches: Iterable[WindowBatch],
    pairs: bool,
    causal: LossSums,
    whole: LossSums,
    advance: Advance = lambda *_: None,
) -> None:
    decoder = reader.decoder
    for batch in batches:
        on_device = batch.to(decoder.device)
        if pairs:
            rows = losses_of_rows(decoder, on_device.inputs_BT, on_device.targets_BT)
            documents = batch.documents_BT[:, :1].expand(rows.targets.shape)
            advance(causal.add(rows.each, rows.targets, documents))
            continue
        advance(causal.add(reader.losses(on_device), on_device.targets_BT, batch.documents_BT))
        if not decoder.causal:
            whole.add(reader.whole_sequence_losses(on_device), on_device.targets_BT, batch.documents_BT)
