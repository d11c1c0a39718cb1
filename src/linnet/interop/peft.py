"""Low-rank parts in the format of PEFT (https://huggingface.co/docs/peft), for models of Transformers: both ways.

A published model has the rows of some of our maps as maps of their own (queries, keys, values). The parts of such a map
are `W + s U D`, so that each published map has its rows of `U` and all of `D`: `lora_B` and `lora_A` of PEFT. Parts
that are read are added to the published weights, since those of published maps that are joined here share no `D`.

Legend: `O` outputs, `I` inputs, `R` rank.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from linnet.core.arrays import read_tensors, write_tensors
from linnet.core.atomic import atomic_directory
from linnet.core.errors import UserError, note
from linnet.core.files import read_json, write_json
from linnet.interop.families.matching import match_family
from linnet.model.adapter import AdapterInfo, base_folder
from linnet.model.folder import ADAPTER, ADAPTER_WEIGHTS, CONFIG
from linnet.model.spec import ModelSpec
from linnet.model.store import check_new_folder
from linnet.training.metrics import ADAPTER_FOLDER

PEFT_CONFIG, PEFT_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"

_BASE = "base_model_name_or_path"
_ORDINARY: Mapping[str, Any] = {
    "peft_type": "LORA", "bias": "none", "use_dora": False, "fan_in_fan_out": False, "rank_pattern": {},
    "alpha_pattern": {}, "lora_bias": False, "layer_replication": None, "modules_to_save": None,
    "target_parameters": None, "use_qalora": False, "trainable_token_indices": None,
}  # fmt: skip
"""What the fields of `adapter_config.json` that change the sum must be; those of other fields do not change it."""


def export_peft(source: str | Path, out: str | Path) -> dict[str, Any]:
    """Write the low-rank parts of a run (`RUN`, or `RUN/adapter`) into the folder `out`, as PEFT reads them.

    Returns the content of `adapter_config.json`. `UserError` if there are none, the base is not the one that they were
    trained on, other tensors were trained as well, or the model is of no family of Transformers.
    """
    folder, out = _adapter_folder(Path(source)), Path(out)
    check_new_folder(out, "a new folder")
    info = AdapterInfo.read(folder)
    if info.whole:
        names = ", ".join(info.whole)
        raise UserError(
            f"{folder}: {names}: trained as well, as the vocabulary has grown; expected low-rank parts alone"
        )
    if info.precision != "float32":
        note(
            f"{folder}: the parts were trained beside weights of {info.precision}; PEFT adds them to those of the base"
        )
    spec = ModelSpec.load(base_folder(folder, info) / CONFIG)
    named = peft_tensors(read_tensors(folder / ADAPTER_WEIGHTS), spec)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(info.base),
        "r": info.rank,
        "lora_alpha": info.alpha,
        "target_modules": sorted({name.split(".")[-3] for name in named}),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    with atomic_directory(out) as made:
        write_tensors(made / PEFT_WEIGHTS, named, {"format": "pt"})
        write_json(made / PEFT_CONFIG, config)
    return config


def peft_tensors(parts: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """The parts (`MAP.up` `[O, R]`, `MAP.down` `[R, I]`) by PEFT's names; `UserError` for a model of no family."""
    table = match_family(spec).tensors
    if table.transposed:
        raise UserError(f"{spec.name}: its family stores maps as [inputs, outputs]; expected a model such as a Llama")
    ups = {f"{name.removesuffix('.up')}.weight": part for name, part in parts.items() if name.endswith(".up")}
    named = dict[str, Tensor]()
    for published, up_OR in table.to_published(ups, spec).items():
        named[f"{_PREFIX}{published.removesuffix('.weight')}{_UP}"] = up_OR.contiguous()
    for ours in ups:
        for published in table.names([ours], spec):
            down_RI = parts[f"{ours.removesuffix('.weight')}.down"]
            named[f"{_PREFIX}{published.removesuffix('.weight')}{_DOWN}"] = down_RI.clone()
    return named


def _adapter_folder(source: Path) -> Path:
    folder = next((each for each in (source, source / ADAPTER_FOLDER) if (each / ADAPTER).is_file()), None)
    if folder is None:
        accepted = f"the folder of a run with training.lora, which has {ADAPTER_FOLDER}/{ADAPTER}"
        raise UserError(field="model", value=source, accepted=accepted)
    return folder


@dataclass(frozen=True)
class PeftParts:
    """The low-rank parts of a folder of PEFT, and the folder of Transformers that they belong to.

    path: their file. pairs: `lora_A` `[R, I]` and `lora_B` `[O, R]` by the published name of the weight.
    """

    base: Path
    path: Path
    scale: float
    pairs: Mapping[str, tuple[Tensor, Tensor]]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a folder with `adapter_config.json`; `UserError` names a field, a tensor or a file that does not fit."""
        config = read_json(folder / PEFT_CONFIG)
        if not isinstance(config, dict):
            raise UserError(f"{folder / PEFT_CONFIG}: expected a mapping, found {type(config).__name__}")
        for field, ordinary in _ORDINARY.items():
            found = config.get(field, ordinary)
            if found != ordinary and (found or ordinary):
                raise UserError(f"{folder / PEFT_CONFIG}: {field}: {found!r}: cannot be read; expected {ordinary!r}")
        rank, alpha = (config.get(field) for field in ("r", "lora_alpha"))
        if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
            raise UserError(f"{folder / PEFT_CONFIG}: r: {rank!r}, lora_alpha: {alpha!r}: expected two numbers")
        scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
        path = folder / PEFT_WEIGHTS
        return cls(_published_base(folder, str(config.get(_BASE))), path, scale, _pairs(read_tensors(path), path))

    def added_to(self, weights: Mapping[str, Tensor], own_name: Callable[[str], str]) -> dict[str, Tensor]:
        """The published weights with the parts added, in their precision; `UserError` for a part of none of them.

        own_name: the name in `weights` of a published tensor.
        """
        merged = dict(weights)
        for published, (down_RI, up_OR) in self.pairs.items():
            name = own_name(published)
            weight_OI = merged.get(name)
            if weight_OI is None or weight_OI.shape != (len(up_OR), down_RI.shape[1]) or up_OR.shape[1] != len(down_RI):
                raise UserError(f"{self.path}: parts of {published}: fit no weight of {self.base}")
            added_OI = self.scale * up_OR.float() @ down_RI.float()
            merged[name] = (weight_OI.float() + added_OI).to(weight_OI.dtype)
        return merged


def _published_base(folder: Path, named: str) -> Path:
    """The folder of the base: `named` in the working folder, or in one around the parts; `UserError` if it is none."""
    places = (Path(named), *(parent / named for parent in folder.resolve().parents))
    base = next((place for place in places if (place / CONFIG).is_file()), None)
    if base is None:
        problem = f"no folder of a model; expected where the base is on this machine, as in {_BASE}: models/base"
        raise UserError(f"{folder / PEFT_CONFIG}: {_BASE}: {named}: {problem}")
    return base


def _pairs(tensors: Mapping[str, Tensor], path: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """The parts `lora_A` and `lora_B` by the published name of their weight."""
    pairs = dict[str, tuple[Tensor, Tensor]]()
    for name in tensors:
        owner = name.removesuffix(_DOWN).removesuffix(_UP)
        parts = [tensors.get(f"{owner}{end}") for end in (_DOWN, _UP)]
        if owner == name or not name.startswith(_PREFIX) or parts[0] is None or parts[1] is None:
            raise UserError(f"{path}: tensor {name}: expected pairs of lora_A and lora_B of linear maps alone")
        pairs[f"{owner.removeprefix(_PREFIX)}.weight"] = parts[0], parts[1]
    return pairs
