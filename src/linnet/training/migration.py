"""Reads checkpoints and names files that linnet 0.1 wrote; nothing else in `training` knows their form.

Version 1 has the hashes of its tensors in the summary and no manifest; versions 2 and 3 have a manifest. In all three
the optimizer's tensors are in `optimiser.safetensors`, and the state of the run is one flat `standing`.
"""

from pathlib import Path
from typing import Any

from linnet.core.checksum import CHECKSUM_MISMATCH, MANIFEST, check_files
from linnet.core.errors import UserError
from linnet.core.files import sha256_of
from linnet.training.state import TrainState

EXTENSIONS_0_1 = "prolonged.json"
"""Its list has the key `prolonged`."""

WEIGHTS, OPTIMIZER_0_1, SUMMARY = "model.safetensors", "optimiser.safetensors", "checkpoint.json"
VERSIONS_0_1 = (1, 2, 3)


def check_checkpoint_0_1(path: Path, summary: dict[str, Any]) -> None:
    """`UserError` unless the tensors of a checkpoint of linnet 0.1 are what it wrote."""
    check_files(path, (WEIGHTS, OPTIMIZER_0_1))
    hashes = summary.get("sha256")
    if not isinstance(hashes, dict):
        if not (path / MANIFEST).exists():
            raise UserError(f"{path / MANIFEST}: missing")
        return
    for name in (WEIGHTS, OPTIMIZER_0_1):
        if sha256_of(path / name) != hashes.get(name):
            raise UserError(f"{path / name}: {CHECKSUM_MISMATCH}")


def state_of_0_1(summary: dict[str, Any], origin: str) -> TrainState:
    """The state of a run in the summary of a checkpoint of linnet 0.1; `UserError` if it is not one."""
    try:
        return TrainState.from_dict(_converted(summary["standing"]), origin)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{origin}: standing: not the state of a run ({error!r})") from None


def _converted(standing: dict[str, Any]) -> dict[str, Any]:
    guard, meter = standing.get("guard"), standing.get("meter", {})
    callbacks: dict[str, Any] = {
        "evaluation": {
            "step": standing.get("evaluation_step"),
            "sums": standing.get("evaluation"),
            "best_step": standing.get("best_step"),
            "best_bits_per_byte": standing.get("best_bits_per_byte"),
        },
        "log": {
            "orthogonalizing_s": standing.get("orthogonalising_s", 0.0),
            "meter": {_RENAMED.get(name, name): meter[name] for name in meter if name not in ("lr", "gradient_norm")},
        },
    }
    skipped = 0
    if guard is not None:
        skipped = guard.get("skipped", 0)
        callbacks["guard"] = {_RENAMED.get(name, name): value for name, value in guard.items() if name != "skipped"}
        for spike in callbacks["guard"].get("spikes", []):
            spike["action"] = _RENAMED.get(spike["action"], spike["action"])
    return {
        "data_hash": standing["data_hash"],
        "step": standing["step"],
        "tokens": standing["tokens"],
        "data_position": standing["step"] + skipped,
        "lr": meter.get("lr", 0.0),
        "gradient_norm": meter.get("gradient_norm", 0.0),
        "elapsed_s": standing["seconds"],
        "callbacks_done": standing["closed"],
        "word_vectors": standing.get("embedded"),
        "callbacks": callbacks,
    }


_RENAMED = {
    "orthogonalising_s": "orthogonalizing_s", "seconds": "elapsed_s", "waited_s": "data_wait_s",
    "in_a_row": "consecutive", "returned_to": "rewound_to", "returns": "rewinds", "back": "rewind",
}  # fmt: skip
