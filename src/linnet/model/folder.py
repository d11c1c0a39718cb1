"""Where a model's description lies: model folders and presets. This module imports no PyTorch.

A model folder is `config.json` (the description), `model.safetensors` (the weights), `tokenizer.json` and `run.json`
(how it was made). Instead of weights it may have low-rank parts that are added to those of another model
(`model.adapter`). The folder of a training run has one in `model/`.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from linnet.core.checksum import check_files
from linnet.core.errors import UserError, did_you_mean
from linnet.core.files import read_json
from linnet.core.migration import upgrade_model
from linnet.core.spec import read_yaml

PRESETS = Path(__file__).parent / "presets"

CONFIG, WEIGHTS, TOKENIZER, RUN = "config.json", "model.safetensors", "tokenizer.json", "run.json"

ADAPTER, ADAPTER_WEIGHTS = "adapter.json", "adapter.safetensors"
"""In a model folder instead of weights: which model its low-rank parts are added to, and these parts."""

NGRAM = "ngram.json"
"""Describes the model in the folder of an n-gram model, which has none of the files above."""

PUBLISHED = "published"
"""The folder in a model folder with the files of the published model that it was imported from, except the weights:
chat template, license, configuration, tokenizer, unchanged.
"""

MODEL, RUNS = "model", "runs"
"""The name of the model folder in the folder of a run, and of the folder of runs in that of a comparison."""


def preset_names() -> list[str]:
    """The names of the presets that come with linnet."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def is_preset_or_description(source: str | Path) -> bool:
    """True for the name of a preset that is no path as well, and for a YAML or JSON file with the blocks of a model."""
    path = Path(source)
    if not path.exists():
        return str(source) in preset_names()
    return path.suffix in (".yaml", ".yml", ".json") and path.is_file() and "blocks" in read_description(path)


def find_model_folder(path: Path) -> Path | None:
    """`path` if it is a model folder, or the model folder in the run folder `path`; None if there is none."""
    return next((folder for folder in (path, path / MODEL) if (folder / CONFIG).is_file()), None)


def weights_file(folder: Path) -> Path:
    """The file that tells the weights of a model folder from others: its weights, or its low-rank parts."""
    return folder / (ADAPTER_WEIGHTS if (folder / ADAPTER).is_file() else WEIGHTS)


def published_files(source: Path | None) -> dict[str, Path]:
    """The files in `PUBLISHED` of a model folder, or of a run's, by their names there; empty if it has none."""
    folder = None if source is None else find_model_folder(source)
    if folder is None:
        return {}
    root = folder / PUBLISHED
    return {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*")) if path.is_file()}


def model_folder(source: str | Path) -> Path:
    """The model folder itself, or the one in a run folder; `UserError`, with advice, if there is none."""
    path = Path(source)
    folder = find_model_folder(path)
    if folder is not None:
        refuse_transformers(folder)
        check_files(folder, (CONFIG, TOKENIZER, RUN))
        return folder
    if not path.exists() and str(source) in preset_names():
        command = f"linnet train --model {source} --data DIR --out runs/{source}"
        raise UserError(f"{source}: a preset, a description without weights; `{command}` trains it")
    if not path.is_dir():
        raise UserError(f"{source}: no such folder; expected a model folder or the folder of a training run")
    runs = sorted(str(run) for run in path.glob(f"{RUNS}/*") if find_model_folder(run))
    if runs:
        raise UserError(f"{source}: the folder of a comparison; expected one of its runs, as {runs[0]}")
    if (path / NGRAM).is_file():
        verbs = f"`linnet ngram evaluate {source} --data DIR`, or `linnet ngram generate {source}`"
        raise UserError(f"{source}: an n-gram model, which has no weights; expected {verbs}")
    raise UserError(f"{source}: neither a model folder nor a run folder with one (no {CONFIG})")


def refuse_transformers(folder: Path) -> None:
    """`UserError`, with the command that imports it, for the folder of a model of Transformers."""
    config = None
    with suppress(UserError):  # a damaged file is named where its checksum is compared
        config = read_json(folder / CONFIG)
    if isinstance(config, dict) and "model_type" in config:
        command = f"linnet import transformers {folder} --out models/{folder.resolve().name}"
        raise UserError(f"{folder}: a model of Transformers ({config['model_type']}); `{command}` imports it")


def read_description(source: str | Path) -> dict[str, Any]:
    """The plain description of a model, from a preset's name, a YAML or JSON file, a model folder, or a run folder.

    Raises `UserError` if there is no such file or preset, or if it holds no mapping.
    """
    preset = PRESETS / f"{source}.yaml"
    path = preset if preset.parent == PRESETS and preset.is_file() else Path(source)
    if path.is_dir():
        path = model_folder(source) / CONFIG
    if not path.exists():
        instead = did_you_mean(str(source), preset_names(), f"presets: {', '.join(preset_names())}")
        raise UserError(f"{source}: no such file, and no preset of that name; {instead}")
    data = upgrade_model(read_json(path), str(path)) if path.suffix == ".json" else read_yaml(path)
    if not isinstance(data, dict):
        kind = "nothing" if data is None else type(data).__name__
        raise UserError(f"{source}: expected a mapping (name, vocab_size, d_model, …), found {kind}")
    return data
