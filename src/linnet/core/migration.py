"""Reads folders that linnet 0.1 wrote: its names of fields and files, as those of 0.2. Nothing is rewritten on disk.

Model folders and run folders have other names of fields, checkpoints another form of the training state, and checksums
another field. A file of 0.1 is recognized by the names that only 0.1 used; a note says which file it was. Descriptions
that a user writes are not converted: a name of 0.1 in them is an unknown key. Data folders have `data.legacy`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnet.core.errors import UserError, note

CHECKSUM = "seal"
"""The field of a JSON file, or the word in the last line of a YAML file, that held its checksum."""

OPTIMIZER = "optimiser.safetensors"
CHECKPOINT_VERSIONS = (1, 2, 3)

EXTENSIONS = "prolonged.json"
"""Its list has the key `prolonged`, as in the summary of a run."""

_MODEL = {"initialisation": "initialization"}
_INITIALIZATION = {"operator": "calibration"}
_LAYER = {
    "first": "sink_tokens",
    "temperature": "gate_logit_normalizer",
    "discretisation": "discretization",
    "normalise": "normalize",
}
_TRAINING = {"optimiser": "optimizer", "accumulate": "gradient_accumulation", "documents": "document_mask"}
_SECTIONS = {
    "optimizer": {"sensitive_lr": "low_lr"},
    "evaluate": {"operator_from": "calibrate_on"},
    "guard": {"of": "metric", "in_a_row": "max_consecutive"},
}
_VALUES = {"joined": False, "apart": True, "back": "rewind"}
_FIGURES = {"orthogonalising_share": "orthogonalizing_share", "prolonged": "extensions"}
_HASHED = {"model.initialisation.operator": "model.initialization.calibration"}
_STATE = {
    "orthogonalising_s": "orthogonalizing_s",
    "seconds": "elapsed_s",
    "waited_s": "data_wait_s",
    "in_a_row": "consecutive",
    "returned_to": "rewound_to",
    "returns": "rewinds",
    "back": "rewind",
}


def upgrade_model(description: Any, origin: str) -> Any:
    """The description in a model folder, with the fields of 0.2; anything but a mapping is returned as it is."""
    if not isinstance(description, dict):
        return description
    upgraded = _renamed(_upgrade_layers(description), _MODEL)
    if isinstance(upgraded.get("initialization"), dict):
        upgraded["initialization"] = _renamed(upgraded["initialization"], _INITIALIZATION)
    return _noted(description, upgraded, origin)


def upgrade_run(configuration: Any, origin: str) -> Any:
    """The configuration of a run (`config.yaml`), with the fields of 0.2."""
    if not isinstance(configuration, dict) or not isinstance(configuration.get("training"), dict):
        return configuration
    training = _renamed(configuration["training"], _TRAINING)
    for name, fields in _SECTIONS.items():
        if isinstance(training.get(name), dict):
            training[name] = _renamed(training[name], fields)
    dag = training.pop("dag", None)  # the penalty of PLDR-LLM had a section of its own
    if dag is not None:
        training["penalties"] = {**training.get("penalties", {}), "dag": dag}
    if isinstance(training.get("document_mask"), str):
        training["document_mask"] = _VALUES.get(training["document_mask"], training["document_mask"])
    if isinstance(training.get("guard"), dict) and training["guard"].get("action") == "back":
        training["guard"]["action"] = "rewind"
    upgraded = {**configuration, "training": training}
    if isinstance(configuration.get("model"), dict):
        model = _renamed(_upgrade_layers(configuration["model"]), _MODEL)
        if isinstance(model.get("initialization"), dict):
            model["initialization"] = _renamed(model["initialization"], _INITIALIZATION)
        upgraded["model"] = model
    return _noted(configuration, upgraded, origin)


def upgrade_figures(figures: Any) -> Any:
    """A line of `metrics.jsonl`, or the summary in `model/run.json`, with the names of 0.2."""
    return _renamed(figures, _FIGURES) if isinstance(figures, dict) else figures


def upgrade_hashes(hashes: Any) -> Any:
    """The hashes in `files.json`, by the fields of 0.2 that name the files."""
    return _renamed(hashes, _HASHED) if isinstance(hashes, dict) else hashes


def upgrade_train_state(summary: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """The training state in the summary of a checkpoint of 0.1, in which it was one flat `standing`.

    `UserError`, which begins with `origin`, if it is not one.
    """
    try:
        standing = summary["standing"]
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
                "meter": {_STATE.get(name, name): meter[name] for name in meter if name not in ("lr", "gradient_norm")},
            },
        }
        skipped = 0
        if guard is not None:
            skipped = guard.get("skipped", 0)
            callbacks["guard"] = {_STATE.get(name, name): value for name, value in guard.items() if name != "skipped"}
            for spike in callbacks["guard"].get("spikes", []):
                spike["action"] = _STATE.get(spike["action"], spike["action"])
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
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{origin}: standing: not the state of a run ({error!r})") from None


def _upgrade_layers(value: Any) -> Any:
    """Data with the fields of all layer descriptions in it renamed; these are the mappings that have a `kind`."""
    if isinstance(value, list):
        return [_upgrade_layers(each) for each in value]
    if not isinstance(value, dict):
        return value
    upgraded = {name: _upgrade_layers(each) for name, each in value.items()}
    return _renamed(upgraded, _LAYER) if "kind" in upgraded else upgraded


def _renamed(fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in fields.items()}


def _noted(before: Any, after: Any, origin: str) -> Any:
    if before != after:
        note(f"{Path(origin)}: written by linnet 0.1; its fields are read under their names of 0.2")
    return after
