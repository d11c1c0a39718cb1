"""Comparing contexts of a model folder on a data folder."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from linnet.core.errors import UserError
from linnet.data.loader import spread_batches
from linnet.data.split import Split
from linnet.data.windows import document_windows
from linnet.evaluation.cache_policies import parse_cache_policies
from linnet.evaluation.folder import TOKENS_AT_ONCE, ModelOnData
from linnet.evaluation.frozen import CalibrationText
from linnet.evaluation.likelihood import text_bytes
from linnet.inference.cache_policy import chooses
from linnet.inspection.contexts.measure import CachePolicyComparison, compare
from linnet.inspection.contexts.reading import Batch, WindowReader
from linnet.inspection.subject import text_model_on_data
from linnet.layers.registry import CACHE_POLICIES, kinds_with_cache_policies


def inspect_contexts(
    model: str | Path,
    data_folder: str | Path,
    split: Split = "validation",
    windows: int = 32,
    cache_policies: Sequence[str] = (),
    within_percent: float = 0.1,
    context_length: int | None = None,
    calibrate_on: CalibrationText = "train",
    device: str = "auto",
) -> CachePolicyComparison:
    """Read windows of a split with each cache policy, and compare.

    `cache_policies`: beside the full cache and those that every comparison shows, those of the texts; without any,
    those that the kinds of layer suggest (`CachePolicy.sweep`).

    The windows are those of `evaluate_folder`, so many of them, spread evenly, and the bits per byte with all tokens
    are its bits per byte on them. `UserError` if no layer of the model has a choice, or model and data do not fit.
    """
    subject = text_model_on_data(model, data_folder, split, context_length, calibrate_on, device)
    layers = [number for number, mixer in enumerate(subject.decoder.mixers) if chooses(mixer)]
    if not layers:
        choosing = kinds_with_cache_policies()
        kinds = ", ".join(dict.fromkeys(block.mixer.kind for block in subject.decoder.spec.blocks))
        raise UserError(f"{model}: has one cache policy: its token mixer is {kinds}; expected a model with {choosing}")
    batches = list(_batches(subject, windows))
    token_bytes_V = torch.from_numpy(subject.data.tokenizer.token_bytes()).to(subject.decoder.device)
    compared = parse_cache_policies(cache_policies, subject.context_length)
    if not cache_policies:
        sweep = [policy for kind in CACHE_POLICIES.values() for policy in kind.sweep(subject.context_length)]
        compared = list(dict.fromkeys([*compared, *sweep]))
    reader = WindowReader.of(subject.decoder, subject.calibration(), subject.context_length)
    bytes_N = torch.stack([text_bytes(row_T, token_bytes_V) for batch in batches for row_T in batch.targets_BT]).cpu()
    if not bytes_N.any():
        raise UserError(f"the {len(bytes_N)} windows hold no text; read more `windows`")
    return compare(reader, batches, bytes_N, compared, layers, subject.context_length, within_percent)


def _batches(subject: ModelOnData, count: int) -> Iterator[Batch]:
    end_id = subject.data.tokenizer.end_id
    cut = document_windows(subject.sequence, end_id, subject.context_length)
    at_once = max(1, TOKENS_AT_ONCE // subject.context_length)
    for inputs_BT, targets_BT in spread_batches(subject.sequence, cut, end_id, at_once, count):
        yield Batch.left_padded(inputs_BT.to(subject.decoder.device), targets_BT.to(subject.decoder.device))
