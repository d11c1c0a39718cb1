"""`run.json`: how a model was made, and what it came to."""

import platform
from typing import TYPE_CHECKING, Any

import torch

from linnet import __version__
from linnet.training.checkpoint import checkpoint_path
from linnet.training.initialization import EMBEDDING_FROM, START_FROM
from linnet.training.machine import peak_memory_bytes

if TYPE_CHECKING:
    from linnet.training.trainer import Trainer


def summarize(trainer: "Trainer", command: str | None) -> dict[str, Any]:
    """The figures of a run where it stands. The model's weights are those of the last step made, `step`,
    or an average up to it (`averaging`).

    `validation` is the latest evaluation, `best` the lowest bits per byte with its checkpoint; None before the first.
    `prolonged`: after which steps the run was given more.
    Speeds are means over all steps; `share_of_peak` is of a large matrix product on the same device and in `precision`.
    """
    standing = trainer.standing
    tokens_per_s = standing.tokens / standing.seconds if standing.seconds else None
    return {
        "finished": standing.step == trainer.steps and standing.closed,
        "step": standing.step,
        "steps": trainer.steps,
        "tokens": standing.tokens,
        "parameters": sum(parameter.numel() for parameter in trainer.decoder.parameters()),
        "seconds": standing.seconds,
        "tokens_per_s": tokens_per_s,
        "orthogonalizing_share": _orthogonalizing_share(trainer),
        "share_of_peak": tokens_per_s
        and tokens_per_s * trainer.work_of_token(0, standing.step) / trainer.peak_tokens_per_s,
        "memory_bytes": peak_memory_bytes(trainer.device),
        "validation": standing.validation and {"step": standing.evaluation_step, **standing.validation},
        "best": _best(trainer),
        "command": command,
        "configuration": trainer.folder.configuration_checksum(),
        "started_from": _start(trainer),
        "embedding_from": _word_vectors(trainer),
        "seed": trainer.spec.seed,
        "averaging": trainer.spec.averaging and trainer.spec.averaging.model_dump(),
        "prolonged": trainer.lengths.to_dict(),
        "spikes": standing.guard and {"count": standing.guard.count, "latest": standing.guard.spikes},
        "data": {
            "path": str(trainer.run.data),
            "manifest_sha256": standing.data_hash,
            "tokenizer_hash": trainer.data.tokenizer.hash,
        },
        "machine": _machine(trainer),
    }


def _orthogonalizing_share(trainer: "Trainer") -> float | None:
    """What part of the time in steps Muon's iteration took; None of another optimizer."""
    standing = trainer.standing
    if trainer.spec.optimizer.kind != "muon" or not standing.seconds:
        return None
    return standing.orthogonalizing_s / standing.seconds


def _best(trainer: "Trainer") -> dict[str, Any] | None:
    standing, folder = trainer.standing, trainer.folder
    if standing.best_step is None:
        return None
    path = checkpoint_path(folder.checkpoints, standing.best_step).relative_to(folder.path)
    return {"step": standing.best_step, "bits_per_byte": standing.best_bits_per_byte, "checkpoint": str(path)}


def _start(trainer: "Trainer") -> dict[str, Any] | None:
    """The model whose weights the run began with, and their hash."""
    source = trainer.run.start_from
    return None if source is None else {"model": str(source), "sha256": trainer.folder.hashes().get(START_FROM)}


def _word_vectors(trainer: "Trainer") -> dict[str, Any] | None:
    """The file of word vectors that tokens began with, its hash, and how many of the tokens it has a word for."""
    source = trainer.run.training.embedding_from
    if source is None:
        return None
    found = {"tokens_found": trainer.standing.embedded, "tokens": trainer.run.model.vocab_size}
    return {"file": str(source), "sha256": trainer.folder.hashes().get(EMBEDDING_FROM), **found}


def _machine(trainer: "Trainer") -> dict[str, Any]:
    device = trainer.device
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "precision": trainer.precision.name,
        "precision_reason": trainer.precision.reason,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "linnet": __version__,
    }
